"""Sampling parameters as tensors."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from engine.request import SamplingParams, Sequence
from engine.sampler import SamplingTensors, make_sampling_tensors


def tensors_of(*params, seeds=None):
    seeds = seeds or [0] * len(params)
    sequences = [Sequence([1], 1, p, seed) for p, seed in zip(params, seeds, strict=True)]
    return make_sampling_tensors(sequences, "cpu")


def test_each_in_its_dtype():
    found = tensors_of(
        SamplingParams(temperature=0, top_k=2**31 - 1, top_p=0.5),
        SamplingParams(temperature=Fraction(1, 2), top_k=np.int64(3), min_p=np.float32(0.25)),
        seeds=[2**63 - 1, 4],
    )
    expected = SamplingTensors(
        temperature=torch.tensor([0.0, 0.5]),
        top_k=torch.tensor([2**31 - 1, 3], dtype=torch.int32),
        top_p=torch.tensor([0.5, 1.0]),
        min_p=torch.tensor([0.0, 0.25]),
        seeds=torch.tensor([2**63 - 1, 4]),
    )
    for name in SamplingTensors.__slots__:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=0, atol=0)


def test_the_smallest_numbers_stay_above_0_in_float32():
    found = tensors_of(SamplingParams(temperature=1e-300, top_p=1e-300), SamplingParams())
    largest_logit = torch.tensor(1e4)
    assert (largest_logit / found.temperature).isfinite().all()
    assert found.temperature[0] > 0
    assert found.top_p[0] > 0
    assert (found.temperature[1], found.top_p[1]) == (1, 1)


def test_copying_keeps_the_tensors():
    first, second = tensors_of(SamplingParams(temperature=0)), tensors_of(SamplingParams(top_k=7))
    kept = first.top_k
    first.copy_(second)
    assert first.top_k is kept
    assert (kept.item(), first.temperature.item()) == (7, 1.0)
