"""Sampling parameters and their ranges; a sequence's bookkeeping."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.errors import EngineError, RequestError
from engine.request import SamplingParams, Sequence

NAN, INFINITE = float("nan"), float("inf")
NUMBERS = {
    "temperature": ([0, 0.0, 0.7, 1e30, np.float32(0.5)], "a number from 0 (greedy) to 1e30"),
    "top_k": ([0, 1, 2**31 - 1, np.int64(3)], "a whole number, 0 (all tokens) or more"),
    "top_p": ([1, 0.5, 1e-50, np.float32(0.5)], "a number above 0, up to 1 (all tokens)"),
    "min_p": ([0, 0.5, 1], "a number from 0 (all tokens) to 1"),
    "max_tokens": ([1, 2**63 - 1, np.int32(3)], "a whole number, 1 or more"),
    "seed": ([0, 2**63 - 1, None, np.uint8(3)], "a whole number from 0 to 2**63 - 1, or None"),
    "ignore_eos": ([True, False], "True or False"),
    "stop_token_ids": ([[], (1,), {1, 2}, range(3), np.array([1])], "a list of token ids"),
}
OTHERS = {
    "temperature": [-0.1, 1e31, NAN, INFINITE],
    "top_k": [-1, 1.5, 2**31],
    "top_p": [0, -0.5, 1.1, NAN],
    "min_p": [-0.1, 1.1, NAN],
    "max_tokens": [0, 1.0, 2**63],
    "seed": [-1, 2**63, 0.5],
    "ignore_eos": [0, 1],
    "stop_token_ids": [5, "abc", [None], [1.5], ["1"], [[1]], [True], [1, None]],
}


@pytest.mark.parametrize("name", NUMBERS)
def test_values_in_range(name):
    for value in NUMBERS[name][0]:
        assert getattr(SamplingParams(**{name: value}), name) is value


@pytest.mark.parametrize("name", NUMBERS)
def test_values_out_of_range(name):
    kinds = ["1", b"1", {None: 1}.keys(), 1j, torch.tensor(0.5)]
    if name != "ignore_eos":
        kinds.append(True)
    for value in OTHERS[name] + kinds:
        with pytest.raises(RequestError) as caught:
            SamplingParams(**{name: value})
        assert str(caught.value) == f"{name}={value!r}: must be {NUMBERS[name][1]}"
        assert isinstance(caught.value, EngineError | ValueError)


def test_a_sequence_keeps_its_output_apart():
    sequence = Sequence([4, 5], 2, SamplingParams(), seed=0)
    assert sequence.output_ids == []
    sequence.append(6, -0.5)
    assert (sequence.token_ids, sequence.output_ids, sequence.logprobs) == ([4, 5, 6], [6], [-0.5])
