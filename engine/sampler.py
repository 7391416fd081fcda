"""Sampling parameters as the tensors that the sampling kernel reads, one entry a sequence."""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

from engine.request import Sequence

# float32 must hold a logit over any temperature but 0, and top_p must not become 0 in it.
SMALLEST = 1e-30


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """`temperature, top_p, min_p: [num_seqs]` float32, `top_k` int32, `seeds` int64."""

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seeds: Tensor

    def copy_(self, other: SamplingTensors) -> None:
        """Take over `other`'s values, in place."""
        for name in self.__slots__:
            getattr(self, name).copy_(getattr(other, name))


def make_sampling_tensors(sequences: Sequence_[Sequence], device: str) -> SamplingTensors:
    """The parameters of these sequences on the device."""
    params = [sequence.params for sequence in sequences]

    def send(values: list[float] | list[int], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype).to(device)

    return SamplingTensors(
        temperature=send([float32_temperature(p.temperature) for p in params], torch.float32),
        top_k=send([p.top_k for p in params], torch.int32),
        top_p=send([max(float(p.top_p), SMALLEST) for p in params], torch.float32),
        min_p=send([float(p.min_p) for p in params], torch.float32),
        seeds=send([sequence.seed for sequence in sequences], torch.int64),
    )


def float32_temperature(temperature: float) -> float:
    """The temperature, or the lowest that sampling can do with; 0 stays greedy."""
    return max(float(temperature), SMALLEST) if temperature else 0.0


def draw(
    operations: ModuleType, logits: Tensor, sampling: SamplingTensors, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """The next token of each sequence, int64, and its log-probability, float32: `[num_seqs]`.

    `positions: [num_seqs]` are those of the tokens that the logits follow.
    """
    tokens, logprobs = operations.sample(
        logits,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.seeds,
        positions,
    )
    return tokens, logprobs
