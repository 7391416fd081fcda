"""A `config.json`'s rotary embedding, from `rope_parameters` or the older separate fields."""

from __future__ import annotations

from pydantic import AliasChoices, BaseModel, Field, ValidationError

from engine.config import Llama3Scaling, RopeConfig
from engine.errors import ConfigError
from engine.hf_config import STRICT, HfConfig, Size, first_fault, given, missing


class HfRope(BaseModel):
    """The fields of all rope types."""

    model_config = STRICT

    rope_type: str = Field(default="default", validation_alias=AliasChoices("rope_type", "type"))
    rope_theta: float = Field(default=10_000.0, gt=0)
    partial_rotary_factor: float | None = Field(default=None, gt=0, le=1)
    factor: float | None = Field(default=None, gt=0)
    low_freq_factor: float | None = Field(default=None, gt=0)
    high_freq_factor: float | None = Field(default=None, gt=0)
    original_max_position_embeddings: Size | None = None


def read_rope(hf: HfConfig, head_dim: int, default_partial: float = 1.0) -> RopeConfig:
    """The rotary embedding of heads of `head_dim` values.

    Raises:
        ConfigError: for a rope type that the engine doesn't run, or a field that can't be.
    """
    top = {"rope_theta": hf.rope_theta, "partial_rotary_factor": hf.partial_rotary_factor}
    fields = given({**top, **given(hf.rope_scaling or {}), **given(hf.rope_parameters or {})})
    origin = f"{hf.origin}: rope parameters"
    try:
        rope = HfRope(**fields)
    except ValidationError as error:
        raise ConfigError(first_fault(error, hf.architecture, origin)) from None
    partial = rope.partial_rotary_factor or default_partial
    rotary_dim = int(head_dim * partial)
    if rotary_dim < 2 or rotary_dim % 2:
        raise ConfigError(
            f"{origin}: {partial} of head_dim {head_dim} are {rotary_dim} dimensions, and they "
            "are rotated in pairs; mend partial_rotary_factor or head_dim"
        )
    if rope.rope_type in ("default", "mrope"):
        return RopeConfig(rope.rope_theta, rotary_dim)
    if rope.rope_type == "linear":
        factor = need(rope, "factor", hf)
        return RopeConfig(rope.rope_theta, rotary_dim, linear_factor=factor)
    if rope.rope_type == "llama3":
        return RopeConfig(rope.rope_theta, rotary_dim, llama3=read_llama3(rope, hf))
    raise ConfigError(
        f"{hf.origin}: rope type {rope.rope_type!r} is not supported; "
        "the engine runs 'default', 'linear' and 'llama3'"
    )


def read_llama3(rope: HfRope, hf: HfConfig) -> Llama3Scaling:
    """The fields of the rope type `llama3`."""
    scaling = Llama3Scaling(
        need(rope, "factor", hf),
        need(rope, "low_freq_factor", hf),
        need(rope, "high_freq_factor", hf),
        int(need(rope, "original_max_position_embeddings", hf)),
    )
    if scaling.high_freq_factor <= scaling.low_freq_factor:
        raise ConfigError(
            f"{hf.origin}: rope parameters: high_freq_factor {scaling.high_freq_factor} must be "
            f"above low_freq_factor {scaling.low_freq_factor}"
        )
    return scaling


def need(rope: HfRope, field: str, hf: HfConfig) -> float:
    """The value of a field that the rope type can't do without."""
    value: float | None = getattr(rope, field)
    if value is None:
        raise ConfigError(
            missing(field, f"rope type {rope.rope_type!r}", f"{hf.origin}: rope parameters")
        )
    return value
