"""The decoder that every family is: embeddings, layers, final norm, head.

The residual is kept apart from what a layer adds to it, so that an addition and the norm after it
are one launch.
"""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

from torch import Tensor
from torch.nn import functional

from engine.attention.full import Attention
from engine.attention.linear import GatedDeltaNet, LoadProjection
from engine.batch import Batch
from engine.config import LayerConfig, ModelConfig
from engine.kv_cache import KvLayer
from engine.layers.linear import Linear
from engine.layers.mlp import Mlp
from engine.layers.norm import RmsNorm
from engine.loader import Weights
from engine.moe.block import MoeBlock
from engine.state_cache import StateLayer


class Mixer(Protocol):
    """A layer's token mixer."""

    def __call__(self, x: Tensor, batch: Batch, cache: KvLayer | StateLayer) -> Tensor:
        """`x: [num_tokens, hidden_size]`; the result is shaped like it."""

    def linears(self) -> list[Linear]:
        """The projections of each token."""


class Layer:
    """A mixer and a feed-forward network, each after a norm and added to the residual."""

    def __init__(
        self, mixer: Mixer, mlp: Mlp | MoeBlock, mixer_norm: RmsNorm, mlp_norm: RmsNorm
    ) -> None:
        self.mixer = mixer
        self.mlp = mlp
        self.mixer_norm = mixer_norm
        self.mlp_norm = mlp_norm


class Decoder:
    """A model built from its configuration and weights."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        operations: ModuleType,
        cos_sin: Tensor,
        load_projection: LoadProjection | None,
    ) -> None:
        self.config = config
        table = (config.vocab_size, config.hidden_size)
        self.embeddings = weights.take("model.embed_tokens.weight", table)
        self.layers = [
            build_layer(
                config,
                layer,
                weights,
                f"model.layers.{index}",
                operations,
                cos_sin,
                load_projection,
            )
            for index, layer in enumerate(config.layers)
        ]
        self.norm = RmsNorm(config, weights, "model.norm", operations)
        if config.tie_embeddings:
            weights.skip("lm_head.weight")
            self.head = self.embeddings
        else:
            self.head = weights.take("lm_head.weight", table)
        weights.finish()

    def linears(self) -> list[Linear]:
        """The layers' projections, one for each shape that there is."""
        every = [
            linear
            for layer in self.layers
            for linear in (*layer.mixer.linears(), *layer.mlp.linears())
        ]
        shapes = {(linear.weight.shape, linear.bias is None): linear for linear in every}
        return list(shapes.values())

    def hidden(self, batch: Batch, caches: list[KvLayer | StateLayer]) -> Tensor:
        """Run all layers; returns the normalised `[num_tokens, hidden_size]`."""
        residual = functional.embedding(batch.token_ids, self.embeddings)
        x: Tensor | None = None
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer.mixer_norm(residual) if x is None else layer.mixer_norm.add(x, residual)
            x = layer.mixer(x, batch, cache)
            x = layer.mlp(layer.mlp_norm.add(x, residual))
        assert x is not None
        return self.norm.add(x, residual)

    def logits(self, hidden: Tensor, batch: Batch) -> Tensor:
        """`[num_seqs, vocab_size]`, for each sequence's last token."""
        if not batch.is_decode:
            hidden = hidden.index_select(0, batch.last_tokens)
        return functional.linear(hidden, self.head)


def build_layer(
    config: ModelConfig,
    layer: LayerConfig,
    weights: Weights,
    name: str,
    operations: ModuleType,
    cos_sin: Tensor,
    load_projection: LoadProjection | None,
) -> Layer:
    """One layer, of the kinds that the configuration says."""
    mixer: Mixer
    if layer.mixer == "full_attention":
        mixer = Attention(config, weights, f"{name}.self_attn", operations, cos_sin)
    else:
        assert load_projection is not None
        mixer = GatedDeltaNet(config, weights, f"{name}.linear_attn", operations, load_projection)
    mlp: Mlp | MoeBlock
    if layer.mlp == "moe":
        mlp = MoeBlock(config, weights, f"{name}.mlp", operations)
    else:
        assert config.dense_width is not None
        mlp = Mlp(
            config.hidden_size,
            config.dense_width,
            weights,
            f"{name}.mlp",
            operations,
            bias=config.mlp_bias,
        )
    mixer_norm = RmsNorm(config, weights, f"{name}.input_layernorm", operations)
    mlp_norm = RmsNorm(config, weights, f"{name}.post_attention_layernorm", operations)
    return Layer(mixer, mlp, mixer_norm, mlp_norm)
