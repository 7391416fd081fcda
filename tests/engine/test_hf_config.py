"""A config.json read, and every way in which it can be unreadable."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.config import LayerConfig
from engine.errors import ConfigError
from engine.hf_config import ConfigFile, parse, preset_names, read_config_file
from engine.models.registry import FAMILIES, family_of

QWEN = "qwen3.6-35b-a3b"
REMEDY = "take the config.json that came with the checkpoint"


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


@pytest.mark.parametrize(("given", "ids"), [(None, ()), (0, (0,)), (7, (7,)), ([7, 8], (7, 8))])
def test_end_tokens(given, ids):
    assert config_of(llama(eos_token_id=given)).eos_token_ids == ids


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
            {"architectures": ["LlamaForCausalLM", "Other"]},
            "config.json: architectures is ['LlamaForCausalLM', 'Other']; "
            f"it must name one model class; {REMEDY}",
        ),
        (
            {"quantization_config": ["?"]},
            "config.json: quantization 'unnamed' is not supported; "
            "take the checkpoint in bfloat16, float16 or float32",
        ),
        (
            {"text_config": "nested"},
            f"config.json: text_config holds a str where an object belongs; {REMEDY}",
        ),
        (
            {"eos_token_id": [1, None]},
            "config.json: eos_token_id: Input should be a valid integer (it is [1, None]); "
            + REMEDY,
        ),
        (
            {"num_hidden_layers": 2**40},
            "config.json: num_hidden_layers: Input should be less than or equal to 10000 "
            f"(it is {2**40}); {REMEDY}",
        ),
        (
            {"rms_norm_eps": float("nan")},
            "config.json: rms_norm_eps: Input should be a finite number (it is nan); " + REMEDY,
        ),
    ],
)
def test_what_is_wrong_is_named(fields, message):
    with pytest.raises(ConfigError) as caught:
        config_of(llama(**fields))
    assert str(caught.value) == message
    # What came with the checkpoint is read.
    assert config_of(llama()).vocab_size == 97


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


@pytest.mark.parametrize("value", ["4", [4], {}, 4.5, True, 0, -4, 2**31, float("inf")])
@pytest.mark.parametrize("field", [name for name in llama() if name != "architectures"])
def test_sizes_are_whole_numbers_above_0(field, value):
    with pytest.raises(
        ConfigError, match=rf"^config\.json: {field}: Input should be .*; {REMEDY}$"
    ):
        config_of(llama(**{field: value}))


def test_the_architecture_is_refused_before_its_quantization():
    raw = {"architectures": ["GptOss"], "quantization_config": {"quant_method": "mxfp4"}}
    with pytest.raises(ConfigError, match="architecture 'GptOss' is not supported"):
        config_of(raw)


def test_null_is_not_given():
    nulls = dict.fromkeys(["torch_dtype", "head_dim", "hidden_act", "tie_word_embeddings"])
    assert config_of(llama(**nulls)) == config_of(llama())
    nested = config_of(llama(text_config={"vocab_size": None, "hidden_size": 32}))
    assert (nested.vocab_size, nested.hidden_size) == (97, 32)


def test_a_quantization_that_is_none():
    assert config_of(llama(quantization_config=None)) == config_of(llama())
    assert config_of(llama(quantization_config={})) == config_of(llama())


def test_a_conditional_generation_model_has_its_text_model_nested():
    flat = read_config_file("tiny").raw
    text = {name: value for name, value in flat.items() if name != "architectures"}
    nested = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "vision_config": {"hidden_size": 7, "depth": 3},
        "text_config": {**text, "architectures": ["Other"], "origin": "elsewhere"},
        "hidden_size": 9,
        "tie_word_embeddings": False,
    }
    # The file's own word for what it is, whatever a field is called.
    hf = parse(ConfigFile(nested, "config.json"))
    assert (hf.architecture, hf.origin) == (nested["architectures"][0], "config.json")
    expected = replace(config_of(flat), architecture="Qwen3_5MoeForConditionalGeneration")
    assert config_of(nested) == expected


@pytest.mark.parametrize("text", ["", "{", "\x00", "[" * 100_000, "\ufeff{}"])
def test_a_file_that_is_no_json(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    start = rf"^{re.escape(str(path))}: not readable as JSON: .*; {REMEDY}$"
    with pytest.raises(ConfigError, match=start):
        read_config_file(tmp_path)
    path.write_text(json.dumps(llama()))
    assert read_config_file(tmp_path).architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(("text", "kind"), [("[1]", "list"), ('"x"', "str"), ("null", "NoneType")])
def test_a_file_that_is_no_object(tmp_path, text, kind):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_config_file(tmp_path)
    assert str(caught.value) == f"{path}: holds a {kind} where an object belongs; {REMEDY}"


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    # Nothing is forbidden to root, who may run this.
    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(ConfigError) as caught:
        read_config_file(tmp_path)
    assert str(caught.value) == f"{tmp_path / 'config.json'}: can't be read: Permission denied"


@pytest.mark.parametrize("model", [None, 5, b"tiny", ["tiny"]])
def test_a_model_that_is_no_path(model):
    with pytest.raises(ConfigError) as caught:
        read_config_file(model)
    assert str(caught.value) == (
        f"model is a {type(model).__name__}; give a preset's name or a checkpoint directory"
    )


def test_neither_preset_nor_directory(tmp_path):
    (tmp_path / "file").touch()
    for model in (tmp_path, tmp_path / "absent", tmp_path / "file", "tinny"):
        with pytest.raises(ConfigError) as caught:
            read_config_file(model)
        assert str(caught.value) == (
            f"{str(model)!r} is neither a preset ({QWEN}, tiny) nor a directory with a config.json"
        )


def test_a_file_beside_a_checkpoint_is_no_preset(tmp_path):
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(ConfigError, match="neither a preset"):
        read_config_file(tmp_path / "model")
