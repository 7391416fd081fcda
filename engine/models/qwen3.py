"""Qwen3: attention with normalised heads, dense layers or experts without a shared one."""

from __future__ import annotations

from engine.config import LayerConfig, ModelConfig
from engine.hf_config import HfConfig
from engine.models.family import Family, attention, is_sparse, model_config, moe


def read_config(hf: HfConfig) -> ModelConfig:
    """The configuration of a `Qwen3ForCausalLM` checkpoint."""
    layers = (LayerConfig("full_attention", "dense"),) * hf.num_hidden_layers
    return model_config(hf, attention(hf, head_norm=True, output_gate=False), layers)


def read_moe_config(hf: HfConfig) -> ModelConfig:
    """The configuration of a `Qwen3MoeForCausalLM` checkpoint."""
    layers = tuple(
        LayerConfig("full_attention", "moe" if is_sparse(hf, index) else "dense")
        for index in range(hf.num_hidden_layers)
    )
    heads = attention(hf, head_norm=True, output_gate=False)
    # The class's default is false, and released checkpoints say true.
    experts = moe(hf, renormalize=bool(hf.norm_topk_prob), shared=False)
    return model_config(hf, heads, layers, moe=experts)


FAMILY = Family(read_config)
MOE_FAMILY = Family(read_moe_config)
