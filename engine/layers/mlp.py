"""The dense SwiGLU feed-forward network, also a MoE layer's shared expert."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from engine.layers.linear import Linear, load_linear
from engine.loader import Weights


class Mlp:
    """`down(silu(gate(x)) * up(x))`, gate and up in one projection."""

    def __init__(
        self,
        hidden_size: int,
        width: int,
        weights: Weights,
        name: str,
        operations: ModuleType,
        *,
        bias: bool = False,
    ) -> None:
        parts = [(f"{name}.gate_proj", width), (f"{name}.up_proj", width)]
        self.gate_up = load_linear(weights, parts, hidden_size, bias=bias)
        self.down = load_linear(weights, [(f"{name}.down_proj", hidden_size)], width, bias=bias)
        self.operations = operations

    def linears(self) -> list[Linear]:
        """The projections of each token."""
        return [self.gate_up, self.down]

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [num_tokens, hidden_size]`; the result is shaped like it."""
        return self.down(self.operations.silu_and_mul(self.gate_up(x)))
