"""What each family makes of a configuration: kinds of layers, norms, gates, parts rotated."""

from __future__ import annotations

import pytest

from engine.config import LayerConfig
from engine.hf_config import ConfigFile, parse, read_config_file
from engine.models.registry import family_of

DENSE, MOE = LayerConfig("full_attention", "dense"), LayerConfig("full_attention", "moe")
LINEAR_DENSE = LayerConfig("linear_attention", "dense")
LINEAR_MOE = LayerConfig("linear_attention", "moe")


def config_of(architecture, **fields):
    """As a checkpoint of `architecture` with the preset `tiny`'s sizes."""
    raw = {**read_config_file("tiny").raw, "intermediate_size": 48, "rope_parameters": None}
    file = ConfigFile({**raw, "architectures": [architecture], **fields}, "config.json")
    return family_of(file).read_config(parse(file))


@pytest.mark.parametrize(
    ("architecture", "layers"),
    [
        ("LlamaForCausalLM", (DENSE,) * 4),
        ("Qwen3ForCausalLM", (DENSE,) * 4),
        ("Qwen3MoeForCausalLM", (DENSE, MOE, DENSE, DENSE)),
        ("Qwen3NextForCausalLM", (LINEAR_DENSE, LINEAR_MOE, LINEAR_DENSE, DENSE)),
        ("Qwen3_5ForCausalLM", (LINEAR_DENSE,) * 3 + (DENSE,)),
        # These have experts in every layer.
        ("Qwen3_5MoeForCausalLM", (LINEAR_MOE,) * 3 + (MOE,)),
    ],
)
def test_layers(architecture, layers):
    config = config_of(architecture, decoder_sparse_step=2, mlp_only_layers=[3])
    assert config.layers == layers
    assert (config.linear_attention is None) == (
        "Next" not in architecture and "_5" not in architecture
    )
    assert (config.moe is None) == all(layer.mlp == "dense" for layer in layers)
    has_dense = any(layer.mlp == "dense" for layer in layers)
    assert config.dense_width == (48 if has_dense else None)


@pytest.mark.parametrize(
    ("architecture", "head_norm", "gate", "plus_one", "rotary_dim"),
    [
        ("LlamaForCausalLM", False, False, False, 32),
        ("Qwen3ForCausalLM", True, False, False, 32),
        ("Qwen3MoeForCausalLM", True, False, False, 32),
        ("Qwen3NextForCausalLM", True, True, True, 8),
        ("Qwen3_5ForCausalLM", True, True, True, 8),
        ("Qwen3_5MoeForCausalLM", True, True, True, 8),
    ],
)
def test_attention(architecture, head_norm, gate, plus_one, rotary_dim):
    config = config_of(architecture)
    assert (config.attention.head_norm, config.attention.output_gate) == (head_norm, gate)
    assert (config.norm_plus_one, config.rope.rotary_dim) == (plus_one, rotary_dim)


@pytest.mark.parametrize(
    ("architecture", "given", "renormalize", "shared"),
    [
        # The defaults of the classes, where a config.json leaves it open.
        ("Qwen3MoeForCausalLM", None, False, None),
        ("Qwen3MoeForCausalLM", True, True, None),
        ("Qwen3NextForCausalLM", None, True, 32),
        ("Qwen3NextForCausalLM", False, False, 32),
        ("Qwen3_5MoeForCausalLM", False, True, 32),
    ],
)
def test_experts(architecture, given, renormalize, shared):
    config = config_of(architecture, norm_topk_prob=given)
    assert config.moe is not None
    assert (config.moe.renormalize, config.moe.shared_width) == (renormalize, shared)


def test_only_llama_has_biases_in_the_feed_forward_network():
    assert config_of("LlamaForCausalLM", mlp_bias=True).mlp_bias
    assert not config_of("Qwen3ForCausalLM", mlp_bias=True).mlp_bias
