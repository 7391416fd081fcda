"""A Hugging Face `config.json`, checked: every field that some family of `engine.models` reads.

Knows the file's spellings, old and new, and nothing of what a family makes of them.
"""

from __future__ import annotations

import json
import os
import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from engine.errors import ConfigError

PRESETS = Path(__file__).parent / "presets"
REMEDY = "take the config.json that came with the checkpoint"

# JSON's types as they are: a number in quotes is a fault of the file.
STRICT = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)
Size = Annotated[int, Field(gt=0, lt=2**31)]
# A list of layers is made of it before anything else could object.
LayerCount = Annotated[int, Field(gt=0, le=10_000)]


class HfConfig(BaseModel):
    """The text model's part of a `config.json`; a family asks for what it needs with `need`."""

    model_config = STRICT

    architecture: str
    origin: str
    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: LayerCount
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    intermediate_size: Size | None = None
    hidden_act: str = "silu"
    max_position_embeddings: Size
    rms_norm_eps: float = Field(default=1e-6, ge=0)
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = Field(default="bfloat16", validation_alias=AliasChoices("dtype", "torch_dtype"))
    eos_token_id: int | list[int] | None = None
    use_sliding_window: bool = False

    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float | None = Field(default=None, gt=0)
    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)

    layer_types: list[str] | None = None
    full_attention_interval: Size = 4
    linear_conv_kernel_dim: Size | None = Field(default=None, gt=1)
    linear_key_head_dim: Size | None = None
    linear_value_head_dim: Size | None = None
    linear_num_key_heads: Size | None = None
    linear_num_value_heads: Size | None = None

    # Dense models of some families say 0.
    num_experts: int | None = Field(
        default=None,
        ge=0,
        lt=2**31,
        validation_alias=AliasChoices("num_experts", "num_local_experts"),
    )
    num_experts_per_tok: Size | None = None
    moe_intermediate_size: Size | None = None
    shared_expert_intermediate_size: Size | None = None
    norm_topk_prob: bool | None = None
    decoder_sparse_step: Size = 1
    mlp_only_layers: list[int] | None = None

    def need(self, field: str) -> Any:
        """The value of a field that this architecture can't do without.

        Raises:
            ConfigError: if the file doesn't give it.
        """
        value = getattr(self, field)
        if value is None:
            raise ConfigError(missing(field, self.architecture, self.origin))
        return value

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Token ids that end a text, none to several."""
        if self.eos_token_id is None:
            return ()
        return (
            (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)
        )


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A `config.json` as it was read, its fields not yet checked; `origin` names it in errors."""

    raw: dict[str, Any]
    origin: str

    @property
    def architecture(self) -> str:
        """The model class that the file names.

        Raises:
            ConfigError: if it isn't one name.
        """
        names = self.raw.get("architectures")
        match names:
            case [str(architecture)]:
                return architecture
        raise ConfigError(
            f"{self.origin}: architectures is {reprlib.repr(names)}; it must name one model class; "
            f"{REMEDY}"
        )


def read_config_file(model: str | Path) -> ConfigFile:
    """Read a preset by name, or a checkpoint directory's `config.json`.

    Raises:
        ConfigError: if there is neither, or the file can't be read.
    """
    if not isinstance(model, str | os.PathLike):
        raise ConfigError(
            f"model is a {type(model).__name__}; give a preset's name or a checkpoint directory"
        )
    path = PRESETS / f"{model}.json" if is_preset(model) else Path(model) / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{str(model)!r} is neither a preset ({', '.join(preset_names())}) "
            "nor a directory with a config.json"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {error}; {REMEDY}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds a {type(raw).__name__} where an object belongs; {REMEDY}")
    return ConfigFile(raw, str(path))


def parse(file: ConfigFile) -> HfConfig:
    """The checked fields of a `config.json`; one that is null counts as not given.

    Raises:
        ConfigError: naming the field.
    """
    # A multimodal model keeps its text model's fields in an object of their own, but whether the
    # head is the embeddings is the whole model's to say.
    raw, text = given(file.raw), file.raw.get("text_config") or {}
    if not isinstance(text, dict):
        raise ConfigError(
            f"{file.origin}: text_config holds a {type(text).__name__} where an object belongs; "
            f"{REMEDY}"
        )
    refuse_quantization(file.origin, raw, text)
    fields = {**raw, **given(text)}
    if "tie_word_embeddings" in raw:
        fields["tie_word_embeddings"] = raw["tie_word_embeddings"]
    fields |= {"architecture": file.architecture, "origin": file.origin}
    try:
        return HfConfig(**fields)
    except ValidationError as error:
        raise ConfigError(first_fault(error, file.architecture, file.origin)) from None


def given(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that aren't null."""
    return {name: value for name, value in fields.items() if value is not None}


def missing(field: str, architecture: str, origin: str) -> str:
    """What to say of a field that isn't there."""
    return f"{origin}: {field} is missing, and {architecture} needs it; {REMEDY}"


def first_fault(error: ValidationError, architecture: str, origin: str) -> str:
    """What to say of the first field that can't be."""
    first = error.errors()[0]
    field = str(first["loc"][0])
    if first["type"] == "missing":
        return missing(field, architecture, origin)
    return f"{origin}: {field}: {first['msg']} (it is {reprlib.repr(first['input'])}); {REMEDY}"


def refuse_quantization(origin: str, *holders: dict[str, Any]) -> None:
    """Raise a `ConfigError` that names the quantization, where the checkpoint has one."""
    for holder in holders:
        quantization = holder.get("quantization_config")
        if quantization:
            names = quantization if isinstance(quantization, dict) else {}
            method = names.get("quant_method") or names.get("quant_algo") or "unnamed"
            raise ConfigError(
                f"{origin}: quantization {method!r} is not supported; "
                "take the checkpoint in bfloat16, float16 or float32"
            )


def preset_names() -> list[str]:
    """The presets that come with the engine, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.json"))


def is_preset(model: str | Path) -> bool:
    """Whether `model` names a preset rather than a directory."""
    return str(model) in preset_names()
