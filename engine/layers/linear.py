"""Projections, several of a checkpoint's in one matrix where they share their input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from engine.loader import Weights


class Linear:
    """`x @ weight.T + bias` with `weight: [rows, width]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight, self.bias)


def load_linear(
    weights: Weights, parts: Sequence[tuple[str, int]], width: int, *, bias: bool = False
) -> Linear:
    """One projection of the parts `(name, rows)`, stacked in order; `width` is the input's."""
    matrices = [weights.take(f"{name}.weight", (rows, width)) for name, rows in parts]
    if not bias:
        return Linear(stack(matrices))
    biases = [weights.take(f"{name}.bias", (rows,)) for name, rows in parts]
    return Linear(stack(matrices), stack(biases))


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """The tensors one below the other, without a copy where there is only one."""
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
