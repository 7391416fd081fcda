"""Llama 3: grouped-query attention and dense SwiGLU layers."""

from __future__ import annotations

from engine.config import LayerConfig, ModelConfig
from engine.hf_config import HfConfig
from engine.models.family import Family, attention, model_config


def read_config(hf: HfConfig) -> ModelConfig:
    """The configuration of a `LlamaForCausalLM` checkpoint."""
    layers = (LayerConfig("full_attention", "dense"),) * hf.num_hidden_layers
    heads = attention(hf, head_norm=False, output_gate=False)
    return model_config(hf, heads, layers, mlp_bias=hf.mlp_bias)


FAMILY = Family(read_config)
