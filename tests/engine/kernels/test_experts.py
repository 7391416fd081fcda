"""The routed experts' networks against the reference."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.kernels import experts as experts_module
from engine.kernels import reference
from engine.kernels.experts import experts
from engine.kernels.grouped_matmul import FLOAT32_TILE, TILES
from tests.engine.kernels.checks import assert_close, draw, for_reference, generator, strided


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes small and odd enough for the interpreter."""

    num_experts: int = 5
    top_k: int = 2
    hidden: int = 36
    width: int = 27


QWEN = Shape(256, 8, 2048, 512)


def inputs(num_tokens, dtype, device, shape=Shape(), *, shared=True):
    random = generator(num_tokens)
    logits = torch.randn((num_tokens, shape.num_experts), generator=random)
    weights, ids = reference.route(logits, shape.top_k, renormalize=True)
    scale = shape.hidden**-0.5
    gate_up_shape = (shape.num_experts, 2 * shape.width, shape.hidden)
    down_shape = (shape.num_experts, shape.hidden, shape.width)
    arguments = [
        strided(draw((num_tokens, shape.hidden), dtype, device, random)),
        weights.to(device),
        ids.to(device),
        draw(gate_up_shape, dtype, device, random) * scale,
        draw(down_shape, dtype, device, random) * scale,
    ]
    if shared:
        arguments.append(draw((num_tokens, shape.hidden), dtype, device, random))
        arguments.append(strided(draw((num_tokens, 3), dtype, device, random))[:, 1])
    return arguments


def check(arguments, dtype):
    expected = reference.experts(*map(for_reference, arguments))
    actual = experts(*arguments)
    assert actual.dtype == dtype
    assert_close(actual, expected, dtype)


@pytest.mark.parametrize("shared", [True, False])
def test_matches_the_reference(device, dtype, num_tokens, shared):
    check(inputs(num_tokens, dtype, device, shared=shared), dtype)


@pytest.mark.parametrize("shape", [Shape(9, 1, 64, 40), Shape(4, 4, 20, 16), Shape(60, 8, 48, 24)])
def test_other_shapes(device, dtype, shape):
    check(inputs(17, dtype, device, shape), dtype)


@pytest.mark.parametrize("tile", [FLOAT32_TILE, *(tile for _, tile in TILES.rows), TILES.beyond])
def test_every_tile(device, dtype, tile, monkeypatch):
    if dtype == torch.float32 and tile != FLOAT32_TILE:
        pytest.skip("float32 has a tile of its own")
    monkeypatch.setattr(experts_module, "tile_for", lambda *_: tile)
    check(inputs(150, dtype, device), dtype)


def test_one_expert_has_all_tokens(device, dtype):
    arguments = inputs(70, dtype, device, Shape(top_k=1))
    arguments[2].fill_(3)
    check(arguments, dtype)


@pytest.mark.parametrize("num_tokens", [1, 16, 300, 2048])
def test_model(device, num_tokens):
    if device == "cpu":
        pytest.skip("needs a GPU")
    # float32 products of this size are exact enough to compare with on the device itself.
    arguments = inputs(num_tokens, torch.bfloat16, device, QWEN)
    wide = [a.float() if a.is_floating_point() else a for a in arguments]
    assert_close(experts(*arguments), reference.experts(*wide).cpu(), torch.bfloat16)
