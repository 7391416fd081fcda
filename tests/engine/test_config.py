"""A model's sizes and its table of rotations."""

from __future__ import annotations

import math

import pytest
import torch

from engine.config import (
    AttentionConfig,
    LayerConfig,
    LinearAttentionConfig,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    stretch,
)
from engine.errors import ConfigError

LINEAR = LayerConfig("linear_attention", "dense")
FULL = LayerConfig("full_attention", "moe")


@pytest.fixture
def config():
    return ModelConfig(
        "Model", 97, 64, (LINEAR, LINEAR, FULL), AttentionConfig(4, 2, 16), RopeConfig(1e4, 16),
        eps=1e-6, max_positions=128, tie_embeddings=False, dtype="float32",
    )  # fmt: skip


def test_a_shortened_model_keeps_its_first_layers(config):
    assert config.shortened(2).layers == (LINEAR, LINEAR)
    assert config.shortened(3) == config


@pytest.mark.parametrize("layers", [0, -1, 4, 2**70, "2", 1.5, True, [1]])
def test_other_numbers_of_layers(config, layers):
    with pytest.raises(ConfigError) as caught:
        config.shortened(layers)
    assert str(caught.value) == (
        f"layers={layers!r}: Model has 3 layers here; give a number from 1 to 3"
    )


def test_channels_of_the_convolution():
    assert LinearAttentionConfig(2, 6, k_dim=8, v_dim=5, conv_kernel=4).conv_channels == 62


def test_the_table_of_rotations():
    table = RopeConfig(theta=100.0, rotary_dim=4).table(3)
    angles = [[position * rate for rate in (1.0, 0.1)] for position in range(3)]
    expected = [[*map(math.cos, row), *map(math.sin, row)] for row in angles]
    assert (table.shape, table.dtype) == ((3, 4), torch.float32)
    torch.testing.assert_close(table, torch.tensor(expected))
    slower = RopeConfig(theta=100.0, rotary_dim=4, linear_factor=2.0).table(5)
    torch.testing.assert_close(slower[[0, 2, 4]], table)


def test_only_long_wavelengths_are_stretched():
    scaling = Llama3Scaling(8.0, 1.0, 4.0, original_max_positions=100)
    turns = torch.tensor([0.5, 1.0, 2.5, 4.0, 50.0])
    frequencies = turns * 2 * math.pi / 100
    factors = torch.tensor([1 / 8, 1 / 8, (1 + 1 / 8) / 2, 1.0, 1.0])
    torch.testing.assert_close(stretch(frequencies, scaling), frequencies * factors)
    rope = RopeConfig(1e4, 4, llama3=scaling)
    angle = torch.atan2(rope.table(2)[1, 2:], rope.table(2)[1, :2])
    torch.testing.assert_close(angle, stretch(torch.tensor([1.0, 0.01]), scaling))
