"""What a model is: sizes and layer kinds, free of any checkpoint's spelling of them.

`engine.models` derives a `ModelConfig` from a Hugging Face `config.json` (`engine.hf_config`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from engine.checks import is_whole
from engine.errors import ConfigError

MixerKind = Literal["full_attention", "linear_attention"]
MlpKind = Literal["dense", "moe"]


@dataclass(frozen=True, slots=True)
class LayerConfig:
    """Which token mixer and which feed-forward network a layer has."""

    mixer: MixerKind
    mlp: MlpKind


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """Grouped-query attention; `output_gate` doubles the query projection to [query | gate]."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: bool = False
    output_gate: bool = False


@dataclass(frozen=True, slots=True)
class LinearAttentionConfig:
    """A gated delta net: key heads are shared by `num_v_heads / num_k_heads` value heads each."""

    num_k_heads: int
    num_v_heads: int
    k_dim: int
    v_dim: int
    conv_kernel: int

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.num_k_heads * self.k_dim + self.num_v_heads * self.v_dim


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Routed experts, and a shared expert where `shared_width` is given."""

    num_experts: int
    top_k: int
    width: int
    renormalize: bool
    shared_width: int | None = None


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's stretch of long wavelengths. Source: transformers' `llama3` rope type."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding of the first `rotary_dim` dimensions of each head."""

    theta: float
    rotary_dim: int
    linear_factor: float = 1.0
    llama3: Llama3Scaling | None = None

    def table(self, num_positions: int) -> Tensor:
        """`[num_positions, rotary_dim]` float32: the cosines of each angle, then the sines."""
        exponents = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32) / self.rotary_dim
        frequencies = 1.0 / (self.theta**exponents) / self.linear_factor
        if self.llama3 is not None:
            frequencies = stretch(frequencies, self.llama3)
        angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * frequencies
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


def stretch(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, and blend those between."""
    wavelengths = 2 * math.pi / frequencies
    turns = scaling.original_max_positions / wavelengths
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: embeddings, layers of a mixer and a feed-forward network each, and a head."""

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]
    attention: AttentionConfig
    rope: RopeConfig
    eps: float
    max_positions: int
    tie_embeddings: bool
    dtype: str
    linear_attention: LinearAttentionConfig | None = None
    dense_width: int | None = None
    moe: MoeConfig | None = None
    mlp_bias: bool = False
    norm_plus_one: bool = False
    eos_token_ids: tuple[int, ...] = ()

    def shortened(self, num_layers: int) -> ModelConfig:
        """The first `num_layers` layers, so that the pattern of layer kinds is kept.

        Raises:
            ConfigError: if the model has fewer layers, or none are left.
        """
        if not is_whole(num_layers) or not 1 <= num_layers <= len(self.layers):
            raise ConfigError(
                f"layers={num_layers!r}: {self.architecture} has {len(self.layers)} layers here; "
                f"give a number from 1 to {len(self.layers)}"
            )
        return replace(self, layers=self.layers[:num_layers])
