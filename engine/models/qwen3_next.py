"""Qwen3-Next: the hybrid of Qwen3.5 with experts, its linear projections packed by key head."""

from __future__ import annotations

from engine.config import LayerConfig, LinearAttentionConfig, ModelConfig
from engine.hf_config import HfConfig
from engine.layers.linear import Linear, stack
from engine.loader import Weights
from engine.models.family import (
    Family,
    attention,
    hybrid_mixers,
    is_sparse,
    linear_attention,
    model_config,
    moe,
)

PARTIAL_ROTARY = 0.25


def read_config(hf: HfConfig) -> ModelConfig:
    """The configuration of a `Qwen3NextForCausalLM` checkpoint."""
    layers = tuple(
        LayerConfig(mixer, "moe" if is_sparse(hf, index) else "dense")
        for index, mixer in enumerate(hybrid_mixers(hf))
    )
    return model_config(
        hf,
        attention(hf, head_norm=True, output_gate=True),
        layers,
        linear_attention=linear_attention(hf),
        moe=moe(hf, renormalize=hf.norm_topk_prob is not False, shared=True),
        norm_plus_one=True,
        partial_rotary=PARTIAL_ROTARY,
    )


def load_packed(
    config: LinearAttentionConfig, hidden_size: int, weights: Weights, name: str
) -> Linear:
    """The input projections as [q | k | v | z | b | a].

    The checkpoint has, for each key head in turn, its rows [q | k | v | z] in one matrix and
    [b | a] in another, where v, z, b and a are those of the value heads that share the key head.
    """
    groups = config.num_v_heads // config.num_k_heads
    sizes = [config.k_dim, config.k_dim, groups * config.v_dim, groups * config.v_dim]
    parts = []
    for matrix, widths in (("in_proj_qkvz", sizes), ("in_proj_ba", [groups, groups])):
        rows = config.num_k_heads * sum(widths)
        packed = weights.take(f"{name}.{matrix}.weight", (rows, hidden_size))
        by_head = packed.unflatten(0, (config.num_k_heads, sum(widths)))
        parts += [part.flatten(0, 1) for part in by_head.split(widths, dim=1)]
    return Linear(stack(parts))


FAMILY = Family(read_config, load_packed)
