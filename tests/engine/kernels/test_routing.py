"""The choice of experts against the reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import reference
from engine.kernels.routing import route
from tests.engine.kernels.checks import draw, for_reference, generator, strided


def check(logits, top_k, renormalize):
    weights, ids = route(logits, top_k, renormalize=renormalize)
    expected_weights, expected_ids = reference.route(
        for_reference(logits), top_k, renormalize=renormalize
    )
    assert ids.cpu().tolist() == expected_ids.tolist()
    assert (ids.dtype, weights.dtype) == (torch.int32, torch.float32)
    torch.testing.assert_close(weights.cpu(), expected_weights, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("num_experts", "top_k"), [(5, 2), (60, 8), (256, 8)])
@pytest.mark.parametrize("renormalize", [True, False])
def test_matches_the_reference(device, dtype, num_tokens, num_experts, top_k, renormalize):
    logits = draw((num_tokens, num_experts), dtype, device, generator(num_tokens))
    check(strided(logits), top_k, renormalize)


@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (3, 3), (9, 1)])
def test_all_of_few_and_one_of_many(device, dtype, num_experts, top_k):
    check(draw((17, num_experts), dtype, device, generator(0)), top_k, True)


def test_equal_experts_in_order(device):
    logits = torch.zeros((2, 12), device=device)
    logits[1, [4, 9]] = 1.0
    check(logits, 4, True)
    assert route(logits, 4, renormalize=True)[1].tolist() == [[0, 1, 2, 3], [4, 9, 0, 1]]


def test_a_token_of_nan_names_experts_that_exist(device):
    ids = route(torch.full((1, 5), float("nan"), device=device), 2, renormalize=True)[1]
    assert all(0 <= expert < 5 for expert in ids.flatten().tolist())
