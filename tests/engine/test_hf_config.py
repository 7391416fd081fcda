"""A config.json read, and every way in which it can be unreadable."""

from __future__ import annotations

import json

import pytest

from engine.config import LayerConfig
from engine.errors import ConfigError
from engine.hf_config import PRESETS, ConfigFile, parse, preset_names, read_config_file
from engine.models.registry import FAMILIES, family_of

QWEN = "qwen3.6-35b-a3b"


def config_of(raw):
    file = ConfigFile(raw, "config.json")
    return family_of(file).read_config(parse(file))


def llama(**fields):
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        **fields,
    }


def test_presets_are_read_and_shortened_in_pattern():
    assert preset_names() == [QWEN, "tiny"]
    config = config_of(read_config_file(QWEN).raw)
    assert (len(config.layers), config.hidden_size, config.vocab_size) == (40, 2048, 248_320)
    assert config.moe is not None
    assert (config.moe.num_experts, config.moe.top_k, config.moe.shared_width) == (256, 8, 512)
    assert (config.rope.rotary_dim, config.rope.theta) == (64, 10_000_000.0)
    assert not config.tie_embeddings
    eight = config.shortened(8)
    linear, full = (LayerConfig(m, "moe") for m in ("linear_attention", "full_attention"))
    assert eight.layers == ((linear,) * 3 + (full,)) * 2
    with pytest.raises(ConfigError, match=r"layers=41: .* give a number from 1 to 40"):
        config.shortened(41)
    with pytest.raises(ConfigError, match="layers=0"):
        config.shortened(0)


def test_older_spellings():
    scaling = {"type": "linear", "factor": 4.0}
    old = llama(rope_scaling=scaling, rope_theta=500.0, torch_dtype="float16", eos_token_id=[1, 2])
    config = config_of(old)
    assert (config.rope.theta, config.rope.linear_factor, config.rope.rotary_dim) == (500, 4, 16)
    assert (config.dtype, config.eos_token_ids) == ("float16", (1, 2))


def test_the_whole_model_says_whether_the_head_is_tied():
    text = {key: value for key, value in llama().items() if key != "architectures"}
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "text_config": {**text, "tie_word_embeddings": True},
        "tie_word_embeddings": False,
    }
    assert not config_of(raw).tie_embeddings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "config.json: architecture 'GPT2LMHeadModel' is not supported; the engine runs "
            + ", ".join(sorted(FAMILIES)),
        ),
        (
            {"architectures": None},
            "config.json: architectures is None; it must name one model class; "
            "take the config.json that came with the checkpoint",
        ),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "config.json: quantization 'fp8' is not supported; "
            "take the checkpoint in bfloat16, float16 or float32",
        ),
        (
            {"text_config": {"quantization_config": {"quant_algo": "NVFP4"}}},
            "config.json: quantization 'NVFP4' is not supported; "
            "take the checkpoint in bfloat16, float16 or float32",
        ),
        (
            {"intermediate_size": None},
            "config.json: intermediate_size is missing, and LlamaForCausalLM needs it; "
            "take the config.json that came with the checkpoint",
        ),
        (
            {"hidden_size": "wide"},
            "config.json: hidden_size: Input should be a valid integer (it is 'wide'); "
            "take the config.json that came with the checkpoint",
        ),
        (
            {"num_key_value_heads": 3},
            "config.json: num_attention_heads 4 is not a multiple of num_key_value_heads 3",
        ),
        ({"hidden_act": "gelu"}, "config.json: hidden_act 'gelu'; the engine runs 'silu'"),
        (
            {"use_sliding_window": True},
            "config.json: use_sliding_window is true; the engine has no sliding window",
        ),
        (
            {"rope_parameters": {"rope_type": "yarn"}},
            "config.json: rope type 'yarn' is not supported; "
            "the engine runs 'default', 'linear' and 'llama3'",
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8}},
            "config.json: rope parameters: low_freq_factor is missing, and rope type "
            "'llama3' needs it; take the config.json that came with the checkpoint",
        ),
        (
            {"rope_parameters": {"rope_theta": "far"}},
            "config.json: rope parameters: rope_theta: Input should be a valid number (it is "
            "'far'); take the config.json that came with the checkpoint",
        ),
    ],
)
def test_what_is_wrong_is_named(fields, message):
    with pytest.raises(ConfigError) as caught:
        config_of(llama(**fields))
    assert str(caught.value) == message


def test_a_missing_field_is_named():
    raw = llama()
    del raw["vocab_size"]
    with pytest.raises(ConfigError) as caught:
        config_of(raw)
    assert str(caught.value) == (
        "config.json: vocab_size is missing, and LlamaForCausalLM needs it; "
        "take the config.json that came with the checkpoint"
    )


def test_an_architecture_is_refused_before_its_fields():
    with pytest.raises(ConfigError, match="architecture 'GPT2LMHeadModel' is not supported"):
        config_of({"architectures": ["GPT2LMHeadModel"], "n_embd": 768})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["linear_attention"]}, "layer_types names 1 layers, num_hidden_layers is"),
        ({"layer_types": ["mamba"] * 4}, "layer_types has 'mamba'; known: full_attention, linear"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is more than num_experts 8"),
        ({"linear_num_value_heads": 3}, "linear_num_value_heads 3 is not a multiple of"),
    ],
)
def test_a_hybrids_own_faults(fields, message):
    raw = json.loads((PRESETS / "tiny.json").read_text())
    config_of(raw)
    with pytest.raises(ConfigError, match=message):
        config_of({**raw, **fields})


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "\x00", "[" * 100_000])
def test_a_file_that_is_no_object(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json: "):
        read_config_file(tmp_path)


def test_neither_preset_nor_directory(tmp_path):
    for model in (tmp_path, tmp_path / "absent", "tinny"):
        with pytest.raises(ConfigError) as caught:
            read_config_file(model)
        assert str(caught.value) == (
            f"{str(model)!r} is neither a preset ({QWEN}, tiny) nor a directory with a config.json"
        )


def test_a_file_beside_a_checkpoint_is_no_preset(tmp_path):
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ConfigError, match="neither a preset"):
        read_config_file(tmp_path / "model")
