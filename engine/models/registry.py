"""Architectures that the engine runs, by the class name in a `config.json`."""

from __future__ import annotations

from pathlib import Path

from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.hf_config import ConfigFile, parse, read_config_file
from engine.models import llama, qwen3, qwen3_5, qwen3_next
from engine.models.family import Family

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": llama.FAMILY,
    "Qwen3ForCausalLM": qwen3.FAMILY,
    "Qwen3MoeForCausalLM": qwen3.MOE_FAMILY,
    "Qwen3NextForCausalLM": qwen3_next.FAMILY,
    "Qwen3_5ForCausalLM": qwen3_5.FAMILY,
    "Qwen3_5ForConditionalGeneration": qwen3_5.FAMILY,
    "Qwen3_5MoeForCausalLM": qwen3_5.MOE_FAMILY,
    "Qwen3_5MoeForConditionalGeneration": qwen3_5.MOE_FAMILY,
}


def family_of(file: ConfigFile) -> Family:
    """The family of a configuration, before any of its fields is looked at.

    Raises:
        ConfigError: if the engine doesn't run that architecture.
    """
    family = FAMILIES.get(file.architecture)
    if family is None:
        raise ConfigError(
            f"{file.origin}: architecture {file.architecture!r} is not supported; "
            f"the engine runs {', '.join(sorted(FAMILIES))}"
        )
    return family


def read_model(model: str | Path) -> tuple[Family, ModelConfig]:
    """The family and the whole configuration of a preset or a checkpoint directory.

    Raises:
        ConfigError: if there is no such model, or the engine can't run it.
    """
    file = read_config_file(model)
    family = family_of(file)
    return family, family.read_config(parse(file))
