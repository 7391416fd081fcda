"""Softmax attention over the paged cache, with optional head norms and output gate."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from engine.batch import Batch
from engine.config import ModelConfig
from engine.kv_cache import KvLayer
from engine.layers.linear import Linear, load_linear
from engine.layers.norm import norm_weight
from engine.loader import Weights
from engine.state_cache import StateLayer


class Attention:
    """Project, normalise and rotate, store, attend, gate, project back.

    `cos_sin: [max_positions, rotary_dim]` is the table that all layers share.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        name: str,
        operations: ModuleType,
        cos_sin: Tensor,
    ) -> None:
        self.config = config.attention
        self.eps = config.eps
        self.plus_one = config.norm_plus_one
        self.operations = operations
        self.cos_sin = cos_sin
        self.scale = self.config.head_dim**-0.5
        head_dim, hidden_size = self.config.head_dim, config.hidden_size
        self.q_rows = self.config.num_heads * head_dim * (2 if self.config.output_gate else 1)
        self.kv_rows = self.config.num_kv_heads * head_dim
        parts = [
            (f"{name}.q_proj", self.q_rows),
            (f"{name}.k_proj", self.kv_rows),
            (f"{name}.v_proj", self.kv_rows),
        ]
        self.qkv = load_linear(weights, parts, hidden_size, bias=self.config.qkv_bias)
        output = [(f"{name}.o_proj", hidden_size)]
        width = self.config.num_heads * head_dim
        self.output = load_linear(weights, output, width, bias=self.config.output_bias)
        self.q_norm: Tensor | None = None
        self.k_norm: Tensor | None = None
        if self.config.head_norm:
            self.q_norm = norm_weight(config, weights, f"{name}.q_norm", head_dim)
            self.k_norm = norm_weight(config, weights, f"{name}.k_norm", head_dim)

    def linears(self) -> list[Linear]:
        """The projections of each token."""
        return [self.qkv, self.output]

    def __call__(self, x: Tensor, batch: Batch, cache: KvLayer | StateLayer) -> Tensor:
        """`x: [num_tokens, hidden_size]`; the result is shaped like it."""
        assert isinstance(cache, KvLayer)
        q, gate, k, v = self.project(x)
        q = self.operations.rope_and_store(
            q,
            k,
            v,
            self.q_norm,
            self.k_norm,
            self.eps,
            self.cos_sin,
            batch.positions,
            cache.k,
            cache.v,
            batch.slot_mapping,
            plus_one=self.plus_one,
        )
        return self.output(self.attend(q, gate, batch, cache).flatten(1))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Queries, gate or None, keys and values: `[num_tokens, heads, head_dim]` views."""
        head_dim = self.config.head_dim
        q, k, v = self.qkv(x).split([self.q_rows, self.kv_rows, self.kv_rows], dim=-1)
        q = q.unflatten(-1, (self.config.num_heads, -1))
        gate = q[..., head_dim:] if self.config.output_gate else None
        heads = (self.config.num_kv_heads, head_dim)
        return q[..., :head_dim], gate, k.unflatten(-1, heads), v.unflatten(-1, heads)

    def attend(self, q: Tensor, gate: Tensor | None, batch: Batch, cache: KvLayer) -> Tensor:
        """Attention of the new tokens over their sequences, times the gate."""
        if batch.is_decode:
            return self.operations.attention_update(
                q, cache.k, cache.v, batch.block_table, batch.context_lens, self.scale, gate
            )
        return self.operations.attention(
            q,
            cache.k,
            cache.v,
            batch.block_table,
            batch.cu_seqlens,
            batch.context_lens,
            batch.max_query_len,
            self.scale,
            gate,
        )
