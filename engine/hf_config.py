"""A Hugging Face `config.json`, checked: every field that some family of `engine.models` reads.

Knows the file's spellings, old and new, and nothing of what a family makes of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from engine.config import Llama3Scaling, RopeConfig
from engine.errors import ConfigError

Value = TypeVar("Value")
PRESETS = Path(__file__).parent / "presets"


class HfConfig(BaseModel):
    """The text model's part of a `config.json`; a family asks for what it needs with `need`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    architecture: str
    origin: str
    vocab_size: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    num_hidden_layers: int = Field(gt=0)
    num_attention_heads: int = Field(gt=0)
    num_key_value_heads: int | None = Field(default=None, gt=0)
    head_dim: int | None = Field(default=None, gt=0)
    intermediate_size: int | None = Field(default=None, gt=0)
    hidden_act: str = "silu"
    max_position_embeddings: int = Field(gt=0)
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: str = Field(default="bfloat16", validation_alias=AliasChoices("dtype", "torch_dtype"))
    eos_token_id: int | list[int] | None = None
    use_sliding_window: bool = False

    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None

    layer_types: list[str] | None = None
    full_attention_interval: int = Field(default=4, gt=0)
    linear_conv_kernel_dim: int | None = Field(default=None, gt=1)
    linear_key_head_dim: int | None = Field(default=None, gt=0)
    linear_value_head_dim: int | None = Field(default=None, gt=0)
    linear_num_key_heads: int | None = Field(default=None, gt=0)
    linear_num_value_heads: int | None = Field(default=None, gt=0)

    num_experts: int | None = Field(
        default=None, validation_alias=AliasChoices("num_experts", "num_local_experts")
    )
    num_experts_per_tok: int | None = Field(default=None, gt=0)
    moe_intermediate_size: int | None = Field(default=None, gt=0)
    shared_expert_intermediate_size: int | None = Field(default=None, gt=0)
    norm_topk_prob: bool | None = None
    decoder_sparse_step: int = Field(default=1, gt=0)
    mlp_only_layers: list[int] | None = None

    def need(self, field: str) -> Any:
        """The value of a field that this architecture can't do without.

        Raises:
            ConfigError: if the file doesn't give it.
        """
        value = getattr(self, field)
        if value is None:
            raise ConfigError(
                f"{self.origin}: {field} is missing, and {self.architecture} needs it; "
                "take the config.json that came with the checkpoint"
            )
        return value

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Token ids that end a text, none to several."""
        if self.eos_token_id is None:
            return ()
        return (
            (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)
        )

    def rope(self, head_dim: int, default_partial: float = 1.0) -> RopeConfig:
        """The rotary embedding, from `rope_parameters` or the older separate fields.

        Raises:
            ConfigError: for a rope type that the engine doesn't run.
        """
        given = {**(self.rope_scaling or {}), **(self.rope_parameters or {})}
        try:
            return self._rope(given, head_dim, default_partial)
        except KeyError as missing:
            raise ConfigError(f"{self.origin}: rope parameters lack {missing}") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.origin}: rope parameters {given}: {error}") from None

    def _rope(self, given: dict[str, Any], head_dim: int, default_partial: float) -> RopeConfig:
        kind = given.get("rope_type", given.get("type", "default"))
        theta = float(given.get("rope_theta", self.rope_theta or 10_000.0))
        partial = given.get("partial_rotary_factor", self.partial_rotary_factor)
        rotary_dim = int(head_dim * (default_partial if partial is None else float(partial)))
        if rotary_dim < 2 or rotary_dim % 2 or rotary_dim > head_dim:
            raise ValueError(f"{rotary_dim} of {head_dim} dimensions can't be rotated in pairs")
        if kind in ("default", "mrope"):
            return RopeConfig(theta, rotary_dim)
        if kind == "linear":
            return RopeConfig(theta, rotary_dim, linear_factor=float(given["factor"]))
        if kind == "llama3":
            scaling = Llama3Scaling(
                float(given["factor"]),
                float(given["low_freq_factor"]),
                float(given["high_freq_factor"]),
                int(given["original_max_position_embeddings"]),
            )
            return RopeConfig(theta, rotary_dim, llama3=scaling)
        raise ConfigError(
            f"{self.origin}: rope type {kind!r} is not supported; "
            "the engine runs 'default', 'linear' and 'llama3'"
        )


def read_hf_config(model: str | Path) -> HfConfig:
    """Read a preset by name, or a checkpoint directory's `config.json`.

    Raises:
        ConfigError: if there is neither, or the file can't be read or lacks a field.
    """
    is_preset = str(model) in preset_names()
    path = PRESETS / f"{model}.json" if is_preset else Path(model) / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{str(model)!r} is neither a preset ({', '.join(preset_names())}) "
            "nor a directory with a config.json"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: holds a {type(raw).__name__} where an object belongs")
    return parse(raw, str(path))


def parse(raw: dict[str, Any], origin: str) -> HfConfig:
    """The checked fields of a `config.json`'s content; `origin` names it in errors.

    Raises:
        ConfigError: naming the field.
    """
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        raise ConfigError(
            f"{origin}: architectures is {architectures!r}; it must name one model class"
        )
    refuse_quantization(raw, origin)
    # A multimodal model keeps its text model's fields in an object of their own, but whether the
    # head is the embeddings is the whole model's to say.
    text = raw.get("text_config") or {}
    fields = {**raw, **text} if isinstance(text, dict) else dict(raw)
    if "tie_word_embeddings" in raw:
        fields["tie_word_embeddings"] = raw["tie_word_embeddings"]
    try:
        return HfConfig(**{**fields, "architecture": architectures[0], "origin": origin})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        value = "" if first["type"] == "missing" else f" (it is {first['input']!r})"
        raise ConfigError(f"{origin}: {where}: {first['msg']}{value}") from None


def refuse_quantization(raw: dict[str, Any], origin: str) -> None:
    """Raise a `ConfigError` that names the quantization, where the checkpoint has one."""
    text = raw.get("text_config")
    for holder in (raw, text if isinstance(text, dict) else {}):
        quantization = holder.get("quantization_config")
        if quantization:
            method = "unnamed"
            if isinstance(quantization, dict):
                method = quantization.get("quant_method") or quantization.get("quant_algo", method)
            raise ConfigError(
                f"{origin}: quantization {method!r} is not supported; "
                "take the checkpoint in bfloat16, float16 or float32"
            )


def preset_names() -> list[str]:
    """The presets that come with the engine, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.json"))
