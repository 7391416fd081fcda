"""The sampling kernel draws what the reference draws, and what the distribution says."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import reference
from engine.kernels.sampling import sample
from tests.engine.kernels.checks import draw, generator, strided

# temperature, top_k, top_p, min_p: alone and together.
PARAMETERS = [
    (0.0, 0, 1.0, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (1.0, 0, 1.0, 0.1),
    (0.9, 20, 0.9, 0.02),
    (1.0, 1, 1.0, 0.0),
    (1.0, 0, 1e-6, 0.0),
    (2.0, 10**6, 0.999, 0.0),
    (0.0, 3, 0.5, 0.5),
]
SEEDS = [0, 1, 2**31, 2**32 + 5, 2**63 - 1]


def arguments(rows, device):
    """Tensors of (temperature, top_k, top_p, min_p, seed, position) rows."""
    columns = list(zip(*rows, strict=True))
    dtypes = [torch.float32, torch.int32, torch.float32, torch.float32, torch.int64, torch.int32]
    return [
        torch.tensor(column, dtype=dtype, device=device)
        for column, dtype in zip(columns, dtypes, strict=True)
    ]


def check(logits, rows, device):
    """One launch for all rows, against the reference on the same values."""
    given = arguments(rows, device)
    tokens, logprobs = sample(logits, *given)
    expected, expected_logprobs = reference.sample(
        logits.cpu().float(), *(tensor.cpu() for tensor in given)
    )
    assert tokens.tolist() == expected.tolist()
    assert tokens.dtype == torch.int64
    torch.testing.assert_close(logprobs.cpu(), expected_logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocab_size", [1, 97, 4096, 20_000])
def test_every_mix_in_one_batch(vocab_size, dtype, device):
    seeds = SEEDS if device == "cuda" else SEEDS[:1] if vocab_size > 97 else SEEDS[:3]
    rows = [(*p, seed, place) for place, seed in enumerate(seeds) for p in PARAMETERS]
    logits = draw((len(rows), vocab_size), dtype, device, generator(vocab_size)) * 4
    check(strided(logits), rows, device)


def test_model_vocabulary(dtype, device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    rows = [(*p, seed, 7) for p, seed in zip(PARAMETERS, SEEDS * 2, strict=True)]
    check(draw((len(rows), 248_320), dtype, device, generator(0)) * 3, rows, device)


def test_ties_go_to_the_lowest_and_are_kept(device):
    logits = torch.full((3, 50), -5.0)
    logits[:, [7, 30, 41]] = 2.0
    rows = [(0.0, 0, 1.0, 0.0, 1, 1), (1.0, 1, 1.0, 0.0, 1, 1), (1.0, 0, 0.3, 0.0, 1, 1)]
    check(logits.to(device), rows, device)
    tokens = drawn(logits[1].to(device), (1.0, 1, 1.0, 0.0), 60, device)
    assert set(tokens) == {7, 30, 41}


def drawn(row, parameters, count, device):
    """Tokens drawn from one row with that many seeds."""
    rows = [(*parameters, seed, 3) for seed in range(count)]
    return sample(row.expand(count, -1), *arguments(rows, device))[0].tolist()


def test_impossible_tokens_are_never_drawn(device):
    row = torch.full((97,), float("-inf"), device=device)
    row[[3, 90]] = 0.0
    assert set(drawn(row, (1.5, 0, 1.0, 0.0), 40, device)) == {3, 90}
    assert set(drawn(row, (1.5, 10, 0.99, 0.1), 40, device)) == {3, 90}


def test_frequencies_follow_the_distribution(device):
    count = 150 if device == "cpu" else 20_000
    row = torch.tensor([2.0, 1.0, 0.0, -1.0, 1.5], device=device)
    tokens = torch.tensor(drawn(row, (1.0, 4, 1.0, 0.0), count, device))
    expected = row.cpu().masked_fill(row.cpu() < 0, float("-inf")).softmax(-1) * count
    found = torch.bincount(tokens, minlength=5)
    assert found[3] == 0
    kept = expected > 0
    chi_square = ((found - expected)[kept] ** 2 / expected[kept]).sum().item()
    # Three degrees of freedom: one draw in 10,000 is above 21.
    assert chi_square < 21


def test_exactly_what_belongs_is_kept(device):
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04])
    row = probabilities.log().to(device)
    # An interpreted draw takes a tenth of a second.
    count = 25 if device == "cpu" else 200
    for top_p, kept in ((0.39, {0}), (0.41, {0, 1}), (0.69, {0, 1}), (0.71, {0, 1, 2})):
        assert set(drawn(row, (1.0, 0, top_p, 0.0), count, device)) == kept
    assert set(drawn(row, (1.0, 2, 1.0, 0.0), count, device)) == {0, 1}
    # Of the three likeliest, renormalised, two reach 0.75.
    assert set(drawn(row, (1.0, 3, 0.75, 0.0), count, device)) == {0, 1}
    assert set(drawn(row, (1.0, 0, 1.0, 0.16), count, device)) == {0, 1, 2}
