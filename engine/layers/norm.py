"""RMSNorm with the weight as the checkpoint stores it: `w`, or the `w` of `1 + w`."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.loader import Weights


def ones(tensor: Tensor, generator: torch.Generator) -> None:
    """The initialisation of a norm's weight, where weights are made up."""
    del generator
    tensor.fill_(1.0)


def zeros(tensor: Tensor, generator: torch.Generator) -> None:
    """The initialisation of the `w` of `1 + w`."""
    del generator
    tensor.fill_(0.0)


def norm_weight(config: ModelConfig, weights: Weights, name: str, width: int) -> Tensor:
    """The weight of one of the model's norms over `width` values."""
    init = zeros if config.norm_plus_one else ones
    return weights.take(f"{name}.weight", (width,), init)


class RmsNorm:
    """A norm over the hidden size, alone or after adding to the residual."""

    def __init__(
        self, config: ModelConfig, weights: Weights, name: str, operations: ModuleType
    ) -> None:
        self.weight = norm_weight(config, weights, name, config.hidden_size)
        self.eps = config.eps
        self.plus_one = config.norm_plus_one
        self.operations = operations

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [num_tokens, hidden_size]`, normalised."""
        return self.operations.rms_norm(x, self.weight, self.eps, plus_one=self.plus_one)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Add `x` to `residual` in place and return the sum, normalised."""
        return self.operations.add_rms_norm(
            x, residual, self.weight, self.eps, plus_one=self.plus_one
        )
