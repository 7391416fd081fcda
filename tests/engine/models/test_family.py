"""What families share in reading a configuration, and the faults that only they can see."""

from __future__ import annotations

import pytest

from engine.config import AttentionConfig
from engine.errors import ConfigError
from engine.hf_config import ConfigFile, parse, read_config_file
from engine.models.family import attention, hybrid_mixers, is_sparse
from engine.models.registry import family_of
from tests.engine.test_hf_config import REMEDY

L, F = "linear_attention", "full_attention"


def hf_of(**fields):
    """The fields of the preset `tiny`, some of them changed; None takes one away."""
    return parse(ConfigFile({**read_config_file("tiny").raw, **fields}, "config.json"))


def config_of(**fields):
    file = ConfigFile({**read_config_file("tiny").raw, **fields}, "config.json")
    return family_of(file).read_config(parse(file))


def test_heads():
    assert attention(hf_of(), head_norm=True, output_gate=False) == AttentionConfig(
        4, 2, 32, qkv_bias=False, output_bias=False, head_norm=True, output_gate=False
    )
    fewer = {"head_dim": None, "num_key_value_heads": None, "attention_bias": True}
    assert attention(hf_of(**fewer), head_norm=False, output_gate=True) == AttentionConfig(
        4, 4, 16, qkv_bias=True, output_bias=True, head_norm=False, output_gate=True
    )


@pytest.mark.parametrize(
    ("listed", "interval", "mixers"),
    [
        (None, 4, (L, L, L, F)),
        (None, 2, (L, F, L, F)),
        (None, 1, (F, F, F, F)),
        (None, 5, (L, L, L, L)),
        # What is listed wins.
        ([F, F, L, F], 4, (F, F, L, F)),
    ],
)
def test_mixers(listed, interval, mixers):
    assert hybrid_mixers(hf_of(layer_types=listed, full_attention_interval=interval)) == mixers


@pytest.mark.parametrize(
    ("step", "dense", "sparse"),
    [
        (1, None, [True, True, True, True]),
        (2, None, [False, True, False, True]),
        (2, [1], [False, False, False, True]),
        (1, [0, 3], [False, True, True, False]),
    ],
)
def test_sparse_layers(step, dense, sparse):
    hf = hf_of(decoder_sparse_step=step, mlp_only_layers=dense)
    assert [is_sparse(hf, index) for index in range(4)] == sparse


@pytest.mark.parametrize(
    ("fault", "message", "remedy"),
    [
        (
            {"num_attention_heads": 5},
            "num_attention_heads 5 is not a multiple of num_key_value_heads 2",
            {"num_attention_heads": 6},
        ),
        (
            {"use_sliding_window": True},
            "use_sliding_window is true; the engine has no sliding window",
            {"use_sliding_window": False},
        ),
        (
            {"linear_num_value_heads": 3},
            "linear_num_value_heads 3 is not a multiple of linear_num_key_heads 2",
            {"linear_num_value_heads": 6},
        ),
        (
            {"linear_key_head_dim": None},
            f"linear_key_head_dim is missing, and Qwen3_5MoeForCausalLM needs it; {REMEDY}",
            {"linear_key_head_dim": 8},
        ),
        (
            {"num_experts_per_tok": 9},
            "num_experts_per_tok 9 is more than num_experts 8",
            {"num_experts_per_tok": 8},
        ),
        (
            {"shared_expert_intermediate_size": None},
            "shared_expert_intermediate_size is missing, and Qwen3_5MoeForCausalLM needs it; "
            + REMEDY,
            {"shared_expert_intermediate_size": 1},
        ),
        (
            {"layer_types": [L, F]},
            "layer_types names 2 layers, num_hidden_layers is 4",
            {"layer_types": [L, F], "num_hidden_layers": 2},
        ),
        (
            {"layer_types": []},
            "layer_types names 0 layers, num_hidden_layers is 4",
            {"layer_types": None},
        ),
        (
            {"layer_types": [L, "mamba", L, L]},
            "layer_types has 'mamba'; known: full_attention, linear_attention",
            {"layer_types": [L, F, L, L]},
        ),
        (
            {"hidden_act": "gelu"},
            "hidden_act 'gelu'; the engine runs 'silu'",
            {"hidden_act": "silu"},
        ),
    ],
)
def test_faults_and_their_remedies(fault, message, remedy):
    with pytest.raises(ConfigError) as caught:
        config_of(**fault)
    assert str(caught.value) == f"config.json: {message}"
    assert config_of(**remedy).architecture == "Qwen3_5MoeForCausalLM"
