"""A mixture-of-experts layer: router, routed experts, shared expert."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.layers.linear import Linear
from engine.layers.mlp import Mlp
from engine.loader import Weights

# cuBLAS takes its fast paths where a matrix has a multiple of this many rows.
ROUTER_ROWS = 8


class MoeBlock:
    """`Σ weight * expert(x)` over each token's experts, plus the gated shared expert.

    The router and the shared expert's gate are one projection: rows `0 … num_experts - 1` are the
    router, the next is the gate, the rest is padding that nothing reads.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, name: str, operations: ModuleType
    ) -> None:
        assert config.moe is not None
        self.config = config.moe
        self.operations = operations
        self.router = load_router(config, weights, name)
        self.gate_up, self.down = load_experts(config, weights, f"{name}.experts")
        self.shared: Mlp | None = None
        if self.config.shared_width is not None:
            self.shared = Mlp(
                config.hidden_size,
                self.config.shared_width,
                weights,
                f"{name}.shared_expert",
                operations,
            )

    def linears(self) -> list[Linear]:
        """The projections of each token that aren't an expert's."""
        return [self.router, *(self.shared.linears() if self.shared is not None else ())]

    def __call__(self, x: Tensor) -> Tensor:
        """`x: [num_tokens, hidden_size]`; the result is shaped like it."""
        num_experts = self.config.num_experts
        logits = self.router(x)
        expert_weights, expert_ids = self.operations.route(
            logits[:, :num_experts], self.config.top_k, renormalize=self.config.renormalize
        )
        shared, shared_gate = None, None
        if self.shared is not None:
            shared, shared_gate = self.shared(x), logits[:, num_experts]
        return self.operations.experts(
            x, expert_weights, expert_ids, self.gate_up, self.down, shared, shared_gate
        )


def load_router(config: ModelConfig, weights: Weights, name: str) -> Linear:
    """The router's and the shared gate's rows, padded to a multiple of `ROUTER_ROWS`."""
    assert config.moe is not None
    rows = [weights.take(f"{name}.gate.weight", (config.moe.num_experts, config.hidden_size))]
    if config.moe.shared_width is not None:
        rows.append(weights.take(f"{name}.shared_expert_gate.weight", (1, config.hidden_size)))
    padding = -sum(part.shape[0] for part in rows) % ROUTER_ROWS
    if padding:
        rows.append(rows[0].new_zeros((padding, config.hidden_size)))
    return Linear(torch.cat(rows))


def load_experts(config: ModelConfig, weights: Weights, name: str) -> tuple[Tensor, Tensor]:
    """`gate_up: [num_experts, 2 * width, hidden_size]` and `down: [num_experts, hidden_size,
    width]`, from one tensor each or from three for every expert."""
    assert config.moe is not None
    width, hidden_size = config.moe.width, config.hidden_size
    num_experts = config.moe.num_experts
    if not weights.has(f"{name}.0.gate_proj.weight"):
        gate_up = weights.take(f"{name}.gate_up_proj", (num_experts, 2 * width, hidden_size))
        return gate_up, weights.take(f"{name}.down_proj", (num_experts, hidden_size, width))
    first = weights.take(f"{name}.0.gate_proj.weight", (width, hidden_size))
    gate_up = first.new_empty((num_experts, 2 * width, hidden_size))
    down = first.new_empty((num_experts, hidden_size, width))
    for expert in range(num_experts):
        prefix = f"{name}.{expert}"
        gate_up[expert, :width] = weights.take(f"{prefix}.gate_proj.weight", (width, hidden_size))
        gate_up[expert, width:] = weights.take(f"{prefix}.up_proj.weight", (width, hidden_size))
        down[expert] = weights.take(f"{prefix}.down_proj.weight", (hidden_size, width))
    return gate_up, down
