"""What a family says of itself, and what families share in reading a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.attention.linear import LoadProjection
from engine.config import (
    AttentionConfig,
    LayerConfig,
    LinearAttentionConfig,
    MixerKind,
    ModelConfig,
    MoeConfig,
)
from engine.errors import ConfigError
from engine.hf_config import HfConfig
from engine.hf_rope import read_rope

MIXERS: tuple[MixerKind, ...] = ("full_attention", "linear_attention")


@dataclass(frozen=True, slots=True)
class Family:
    """How to read a `config.json`, and how checkpoints lay out linear attention, where there is."""

    read_config: Callable[[HfConfig], ModelConfig]
    load_projection: LoadProjection | None = None


def attention(hf: HfConfig, *, head_norm: bool, output_gate: bool) -> AttentionConfig:
    """Softmax attention with the checkpoint's head counts.

    Raises:
        ConfigError: if the heads can't be shared out evenly, or a sliding window is asked for.
    """
    num_kv_heads = hf.num_key_value_heads or hf.num_attention_heads
    if hf.num_attention_heads % num_kv_heads:
        raise ConfigError(
            f"{hf.origin}: num_attention_heads {hf.num_attention_heads} is not a multiple of "
            f"num_key_value_heads {num_kv_heads}"
        )
    if hf.use_sliding_window:
        raise ConfigError(
            f"{hf.origin}: use_sliding_window is true; the engine has no sliding window"
        )
    return AttentionConfig(
        num_heads=hf.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hf.head_dim or hf.hidden_size // hf.num_attention_heads,
        qkv_bias=hf.attention_bias,
        output_bias=hf.attention_bias,
        head_norm=head_norm,
        output_gate=output_gate,
    )


def linear_attention(hf: HfConfig) -> LinearAttentionConfig:
    """The gated delta net's sizes.

    Raises:
        ConfigError: if one is missing, or value heads can't be shared out over key heads.
    """
    linear = LinearAttentionConfig(
        num_k_heads=hf.need("linear_num_key_heads"),
        num_v_heads=hf.need("linear_num_value_heads"),
        k_dim=hf.need("linear_key_head_dim"),
        v_dim=hf.need("linear_value_head_dim"),
        conv_kernel=hf.need("linear_conv_kernel_dim"),
    )
    if linear.num_v_heads % linear.num_k_heads:
        raise ConfigError(
            f"{hf.origin}: linear_num_value_heads {linear.num_v_heads} is not a multiple of "
            f"linear_num_key_heads {linear.num_k_heads}"
        )
    return linear


def moe(hf: HfConfig, *, renormalize: bool, shared: bool) -> MoeConfig:
    """The experts' sizes.

    Raises:
        ConfigError: if one is missing, or a token takes more experts than there are.
    """
    config = MoeConfig(
        num_experts=hf.need("num_experts"),
        top_k=hf.need("num_experts_per_tok"),
        width=hf.need("moe_intermediate_size"),
        renormalize=renormalize,
        shared_width=hf.need("shared_expert_intermediate_size") if shared else None,
    )
    if config.top_k > config.num_experts:
        raise ConfigError(
            f"{hf.origin}: num_experts_per_tok {config.top_k} is more than num_experts "
            f"{config.num_experts}"
        )
    return config


def hybrid_mixers(hf: HfConfig) -> tuple[MixerKind, ...]:
    """Each layer's mixer: as listed, or every `full_attention_interval`-th a full one.

    Raises:
        ConfigError: for an unknown kind, or a list of another length than the layers.
    """
    interval = hf.full_attention_interval
    listed = hf.layer_types
    if listed is None:
        listed = [
            "linear_attention" if (index + 1) % interval else "full_attention"
            for index in range(hf.num_hidden_layers)
        ]
    if len(listed) != hf.num_hidden_layers:
        raise ConfigError(
            f"{hf.origin}: layer_types names {len(listed)} layers, num_hidden_layers is "
            f"{hf.num_hidden_layers}"
        )
    mixers = []
    for kind in listed:
        known = [mixer for mixer in MIXERS if mixer == kind]
        if not known:
            raise ConfigError(f"{hf.origin}: layer_types has {kind!r}; known: {', '.join(MIXERS)}")
        mixers += known
    return tuple(mixers)


def is_sparse(hf: HfConfig, index: int) -> bool:
    """Whether layer `index` of a MoE model has experts rather than a dense network."""
    listed_dense = index in (hf.mlp_only_layers or [])
    return not listed_dense and (index + 1) % hf.decoder_sparse_step == 0


def model_config(
    hf: HfConfig,
    attention: AttentionConfig,
    layers: tuple[LayerConfig, ...],
    *,
    linear_attention: LinearAttentionConfig | None = None,
    moe: MoeConfig | None = None,
    norm_plus_one: bool = False,
    mlp_bias: bool = False,
    partial_rotary: float = 1.0,
) -> ModelConfig:
    """What is read alike in every family.

    Raises:
        ConfigError: if the activation isn't SiLU, or a dense layer has no width.
    """
    if hf.hidden_act != "silu":
        raise ConfigError(f"{hf.origin}: hidden_act {hf.hidden_act!r}; the engine runs 'silu'")
    has_dense = any(layer.mlp == "dense" for layer in layers)
    return ModelConfig(
        architecture=hf.architecture,
        vocab_size=hf.vocab_size,
        hidden_size=hf.hidden_size,
        layers=layers,
        attention=attention,
        rope=read_rope(hf, attention.head_dim, partial_rotary),
        eps=hf.rms_norm_eps,
        max_positions=hf.max_position_embeddings,
        tie_embeddings=hf.tie_word_embeddings,
        dtype=hf.dtype,
        linear_attention=linear_attention,
        dense_width=hf.need("intermediate_size") if has_dense else None,
        moe=moe,
        mlp_bias=mlp_bias,
        norm_plus_one=norm_plus_one,
        eos_token_ids=hf.eos_token_ids,
    )
