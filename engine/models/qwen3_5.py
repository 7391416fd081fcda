"""Qwen3.5 and Qwen3.6: three gated delta nets to one gated attention, dense or with experts.

The `…ForConditionalGeneration` classes are the same text model beside a vision tower, which the
loader leaves out.
"""

from __future__ import annotations

from engine.attention.linear import load_separate
from engine.config import LayerConfig, MlpKind, ModelConfig
from engine.hf_config import HfConfig
from engine.models.family import (
    Family,
    attention,
    hybrid_mixers,
    linear_attention,
    model_config,
    moe,
)

PARTIAL_ROTARY = 0.25


def read_hybrid(hf: HfConfig, mlp: MlpKind) -> ModelConfig:
    """The hybrid's configuration with the same kind of feed-forward network in every layer."""
    return model_config(
        hf,
        attention(hf, head_norm=True, output_gate=True),
        tuple(LayerConfig(mixer, mlp) for mixer in hybrid_mixers(hf)),
        linear_attention=linear_attention(hf),
        moe=moe(hf, renormalize=True, shared=True) if mlp == "moe" else None,
        norm_plus_one=True,
        partial_rotary=PARTIAL_ROTARY,
    )


def read_config(hf: HfConfig) -> ModelConfig:
    """The configuration of a `Qwen3_5ForCausalLM` checkpoint."""
    return read_hybrid(hf, "dense")


def read_moe_config(hf: HfConfig) -> ModelConfig:
    """The configuration of a `Qwen3_5MoeForCausalLM` checkpoint."""
    return read_hybrid(hf, "moe")


FAMILY = Family(read_config, load_separate)
MOE_FAMILY = Family(read_moe_config, load_separate)
