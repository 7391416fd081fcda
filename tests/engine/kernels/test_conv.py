"""The causal convolution and its state against the reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import reference
from engine.kernels.conv import causal_conv1d, causal_conv1d_update
from tests.engine.kernels.checks import (
    assert_close,
    draw,
    for_reference,
    generator,
    poisoned,
    strided,
)

# (tokens before, new tokens) of each sequence: below, at and above the kernel's taps and block.
BATCH = ((0, 1), (5, 1), (9, 2), (0, 2), (3, 3), (0, 3), (7, 4), (0, 33), (64, 31), (1, 32))


def inputs(sequences, channels, taps, dtype, device):
    """The arguments for `sequences`; the states of new sequences and of no sequence are NaN."""
    random = generator(channels + taps)
    past = torch.tensor([before for before, _ in sequences], dtype=torch.int32)
    lengths = torch.tensor([new for _, new in sequences])
    num_seqs, num_tokens = len(sequences), int(lengths.sum())
    slots = torch.randperm(num_seqs + 2, generator=random)[:num_seqs].to(torch.int32)
    state = poisoned((num_seqs + 2, channels, taps - 1), dtype, device)
    kept = slots[past > 0].long().to(device)
    state[kept] = draw((len(kept), channels, taps - 1), dtype, device, random)
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    return {
        "x": strided(draw((num_tokens, channels), dtype, device, random)),
        "weight": draw((channels, taps), dtype, device, random),
        "state": state,
        "state_indices": slots.to(device),
        "cu_seqlens": cu_seqlens.to(torch.int32).to(device),
        "context_lens": past.to(device),
        "max_query_len": int(lengths.max()),
    }


def copied(arguments):
    """`arguments` for the reference, which writes a state of its own."""
    own_state = {**arguments, "state": arguments["state"].clone()}
    return {name: for_reference(value) for name, value in own_state.items()}


def assert_same_state(actual, expected):
    """States hold copies of inputs, so they are equal, NaN where no sequence is."""
    actual = actual.cpu().float()
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.nan_to_num(0.0), expected.nan_to_num(0.0))


def check(arguments, dtype):
    expected_arguments = copied(arguments)
    expected = reference.causal_conv1d(**expected_arguments)
    actual = causal_conv1d(**arguments)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert_close(actual, expected, dtype)
    assert_same_state(arguments["state"], expected_arguments["state"])


@pytest.mark.parametrize("past", [0, 2])
def test_one_sequence(device, dtype, num_tokens, past):
    check(inputs(((past, num_tokens),), 36, 4, dtype, device), dtype)


@pytest.mark.parametrize("taps", [2, 3, 4, 5])
def test_batch(device, dtype, taps):
    check(inputs(BATCH, 36, taps, dtype, device), dtype)


@pytest.mark.parametrize("channels", [16, 128, 132, 8192])
def test_channels(device, dtype, channels):
    if device == "cpu" and channels > 132:
        pytest.skip("needs a GPU")
    check(inputs(((0, 40), (3, 2), (3, 35)), channels, 4, dtype, device), dtype)


def test_longer_grid_than_any_sequence(device, dtype):
    arguments = inputs(BATCH, 36, 4, dtype, device)
    arguments["max_query_len"] = 200
    check(arguments, dtype)


@pytest.mark.parametrize("num_seqs", [1, 2, 17])
@pytest.mark.parametrize(("channels", "taps"), [(36, 4), (300, 3), (16, 2), (8192, 4)])
def test_update(device, dtype, num_seqs, channels, taps):
    if device == "cpu" and channels > 300:
        pytest.skip("needs a GPU")
    arguments = inputs(((4, 1),) * num_seqs, channels, taps, dtype, device)
    names = ("x", "weight", "state", "state_indices")
    update = {name: arguments[name] for name in names}
    expected_update = copied(update)
    expected = reference.causal_conv1d_update(**expected_update)
    actual = causal_conv1d_update(**update)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert_close(actual, expected, dtype)
    assert_same_state(update["state"], expected_update["state"])


def test_parts_are_the_whole(device, dtype):
    """A prompt in chunks of 1, 2, 33 and then token by token equals the prompt at once."""
    arguments = inputs(((0, 40),), 36, 4, dtype, device)
    whole_state = arguments.pop("state")
    part_state = whole_state.clone()
    x, weight, slots = arguments["x"], arguments["weight"], arguments["state_indices"]
    whole = causal_conv1d(state=whole_state, **arguments)
    parts, done = [], 0
    for length in (1, 2, 33):
        cu_seqlens = torch.tensor([0, length], dtype=torch.int32, device=device)
        context_lens = torch.tensor([done], dtype=torch.int32, device=device)
        part = x[done : done + length]
        parts.append(
            causal_conv1d(part, weight, part_state, slots, cu_seqlens, context_lens, length)
        )
        done += length
    for token in range(done, 40):
        parts.append(causal_conv1d_update(x[token : token + 1], weight, part_state, slots))
    assert_close(torch.cat(parts), whole.cpu(), dtype)
    assert_same_state(part_state, whole_state.cpu().float())
