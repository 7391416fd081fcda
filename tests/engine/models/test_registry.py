"""Architectures that the engine runs."""

from __future__ import annotations

import pytest

from engine.errors import ConfigError
from engine.hf_config import ConfigFile
from engine.models import llama, qwen3, qwen3_5, qwen3_next
from engine.models.registry import family_of


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("LlamaForCausalLM", llama.FAMILY),
        ("Qwen3ForCausalLM", qwen3.FAMILY),
        ("Qwen3MoeForCausalLM", qwen3.MOE_FAMILY),
        ("Qwen3NextForCausalLM", qwen3_next.FAMILY),
        ("Qwen3_5ForCausalLM", qwen3_5.FAMILY),
        ("Qwen3_5ForConditionalGeneration", qwen3_5.FAMILY),
        ("Qwen3_5MoeForCausalLM", qwen3_5.MOE_FAMILY),
        ("Qwen3_5MoeForConditionalGeneration", qwen3_5.MOE_FAMILY),
    ],
)
def test_families(architecture, family):
    assert family_of(ConfigFile({"architectures": [architecture]}, "config.json")) is family


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "llamaforcausallm", ""])
def test_other_architectures(architecture):
    with pytest.raises(ConfigError) as caught:
        family_of(ConfigFile({"architectures": [architecture]}, "config.json"))
    assert str(caught.value) == (
        f"config.json: architecture {architecture!r} is not supported; the engine runs "
        "LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, Qwen3NextForCausalLM, "
        "Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration, Qwen3_5MoeForCausalLM, "
        "Qwen3_5MoeForConditionalGeneration"
    )
