"""Architectures that the engine runs, by the class name in a `config.json`."""

from __future__ import annotations

from engine.errors import ConfigError
from engine.hf_config import HfConfig
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


def family_of(hf: HfConfig) -> Family:
    """The family of a configuration.

    Raises:
        ConfigError: if the engine doesn't run that architecture.
    """
    family = FAMILIES.get(hf.architecture)
    if family is None:
        raise ConfigError(
            f"{hf.origin}: architecture {hf.architecture!r} is not supported; "
            f"the engine runs {', '.join(sorted(FAMILIES))}"
        )
    return family
