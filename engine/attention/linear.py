"""The gated delta net: convolution, delta rule with a recurrent state, gated norm."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from engine.batch import Batch
from engine.config import LinearAttentionConfig, ModelConfig
from engine.kv_cache import KvLayer
from engine.layers.linear import Linear, load_linear
from engine.layers.norm import ones
from engine.loader import Weights
from engine.state_cache import StateLayer

# Reads a layer's input projections, in whatever order its checkpoint has them, as one matrix with
# the rows [q | k | v | z | b | a].
LoadProjection = Callable[[LinearAttentionConfig, int, Weights, str], Linear]


def decay_init(tensor: Tensor, generator: torch.Generator) -> None:
    """`A_log` where weights are made up: the logarithm of a rate from 1 to 16."""
    tensor.uniform_(1.0, 16.0, generator=generator).log_()


class GatedDeltaNet:
    """A linear-attention layer. Source: Gated Delta Networks, arXiv 2412.06464."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        name: str,
        operations: ModuleType,
        load_projection: LoadProjection,
    ) -> None:
        assert config.linear_attention is not None
        self.config = linear = config.linear_attention
        self.eps = config.eps
        self.operations = operations
        self.projection = load_projection(linear, config.hidden_size, weights, name)
        channels, kernel = linear.conv_channels, linear.conv_kernel
        self.conv = weights.take(f"{name}.conv1d.weight", (channels, 1, kernel))[:, 0]
        heads, float32 = (linear.num_v_heads,), torch.float32
        self.a_log = weights.take(f"{name}.A_log", heads, decay_init, float32)
        self.dt_bias = weights.take(f"{name}.dt_bias", heads, ones, float32)
        self.norm = weights.take(f"{name}.norm.weight", (linear.v_dim,), ones)
        self.value_dim = linear.num_v_heads * linear.v_dim
        output = [(f"{name}.out_proj", config.hidden_size)]
        self.output = load_linear(weights, output, self.value_dim)

    def linears(self) -> list[Linear]:
        """The projections of each token."""
        return [self.projection, self.output]

    def __call__(self, x: Tensor, batch: Batch, cache: KvLayer | StateLayer) -> Tensor:
        """`x: [num_tokens, hidden_size]`; the result is shaped like it."""
        assert isinstance(cache, StateLayer)
        heads = self.config.num_v_heads
        sizes = [self.config.conv_channels, self.value_dim, heads, heads]
        mixed, z, b, a = self.projection(x).split(sizes, dim=-1)
        step = self.update if batch.is_decode else self.prefill
        out = step(mixed, a, b, batch, cache)
        gate = z.unflatten(-1, (heads, self.config.v_dim))
        return self.output(
            self.operations.gated_rms_norm(out, gate, self.norm, self.eps).flatten(1)
        )

    def split(self, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys `[num_tokens, 2 * num_k_heads, k_dim]`, values by their heads."""
        keys = 2 * self.config.num_k_heads * self.config.k_dim
        qk, v = mixed.split([keys, self.value_dim], dim=-1)
        v = v.unflatten(-1, (self.config.num_v_heads, self.config.v_dim))
        return qk.unflatten(-1, (2 * self.config.num_k_heads, self.config.k_dim)), v

    def prefill(
        self, mixed: Tensor, a: Tensor, b: Tensor, batch: Batch, cache: StateLayer
    ) -> Tensor:
        """Chunks of any length, from zeros or from the cached state."""
        mixed = self.operations.causal_conv1d(
            mixed,
            self.conv,
            cache.conv,
            batch.state_indices,
            batch.cu_seqlens,
            batch.context_lens,
            batch.max_query_len,
        )
        qk, v = self.split(mixed)
        q, k = self.operations.l2_norm(qk).split(self.config.num_k_heads, dim=1)
        return self.operations.gated_delta_rule(
            q,
            k,
            v,
            a,
            b,
            self.a_log,
            self.dt_bias,
            cache.recurrent,
            batch.state_indices,
            batch.cu_seqlens,
            batch.context_lens,
            batch.max_query_len,
        )

    def update(
        self, mixed: Tensor, a: Tensor, b: Tensor, batch: Batch, cache: StateLayer
    ) -> Tensor:
        """One token for each sequence, from its cached state."""
        mixed = self.operations.causal_conv1d_update(
            mixed, self.conv, cache.conv, batch.state_indices
        )
        qk, v = self.split(mixed)
        q, k = qk.split(self.config.num_k_heads, dim=1)
        return self.operations.gated_delta_rule_update(
            q, k, v, a, b, self.a_log, self.dt_bias, cache.recurrent, batch.state_indices
        )


def load_separate(
    config: LinearAttentionConfig, hidden_size: int, weights: Weights, name: str
) -> Linear:
    """The input projections of a checkpoint that has them apart (Qwen3.5, Qwen3.6)."""
    parts = [
        (f"{name}.in_proj_qkv", config.conv_channels),
        (f"{name}.in_proj_z", config.num_v_heads * config.v_dim),
        (f"{name}.in_proj_b", config.num_v_heads),
        (f"{name}.in_proj_a", config.num_v_heads),
    ]
    return load_linear(weights, parts, hidden_size)
