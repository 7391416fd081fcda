"""Head norms, rotary embedding and the paged store against the reference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from engine.kernels import reference
from engine.kernels.rope import rope_and_store
from tests.engine.kernels.checks import (
    assert_close,
    draw,
    for_reference,
    generator,
    poisoned,
    strided,
)

MAX_POSITIONS = 2048


@dataclass(frozen=True)
class Model:
    """What a model fixes."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    page_size: int = 16
    normed: bool = True
    plus_one: bool = False
    gated: bool = False


SMALL = Model(2, 1, 32, 32)
MODELS = {
    "qwen3": SMALL,
    "llama": Model(4, 2, 16, 16, normed=False),
    "next": Model(2, 1, 64, 16, plus_one=True, gated=True),
    "odd": Model(3, 2, 20, 12, page_size=5, gated=True),
    "odd-full": Model(3, 3, 12, 12, page_size=7, plus_one=True),
    "qwen3.6-35b": Model(16, 2, 256, 64, page_size=64, plus_one=True, gated=True),
    "qwen3-30b": Model(32, 4, 128, 128),
    "llama-8b": Model(32, 8, 128, 128, normed=False),
}


def slots_for(num_tokens: int, page_size: int, device: str) -> torch.Tensor:
    """A slot for each token in pages out of order, and every fifth token not stored."""
    num_pages = num_tokens // page_size + 2
    pages = torch.randperm(num_pages, generator=generator(9))
    order = torch.arange(num_tokens)
    slots = pages[order // page_size] * page_size + order % page_size
    slots[4::5] = -1
    return slots.to(torch.int32).to(device)


def inputs(model: Model, num_tokens: int, dtype: torch.dtype, device: str) -> dict[str, object]:
    """The arguments for `model`: q, k and v slices of one projection, the caches full of NaN."""
    random = generator(num_tokens)
    dim, kv_dim = model.head_dim, model.num_kv_heads * model.head_dim
    q_dim = model.num_heads * dim * (2 if model.gated else 1)
    packed = strided(draw((num_tokens, q_dim + 2 * kv_dim), dtype, device, random))
    q, k, v = packed.split([q_dim, kv_dim, kv_dim], dim=1)
    pages = (num_tokens // model.page_size + 2, model.page_size, model.num_kv_heads, dim)
    angles = torch.rand((MAX_POSITIONS, model.rotary_dim // 2), generator=random) * 6.3
    positions = torch.randint(0, MAX_POSITIONS, (num_tokens,), generator=random)
    q_weight, k_weight = (draw((dim,), dtype, device, random) for _ in range(2))
    return {
        "q": q.unflatten(1, (model.num_heads, -1))[..., :dim],
        "k": k.unflatten(1, (model.num_kv_heads, dim)),
        "v": v.unflatten(1, (model.num_kv_heads, dim)),
        "q_weight": q_weight if model.normed else None,
        "k_weight": k_weight if model.normed else None,
        "eps": 1e-6,
        "cos_sin": torch.cat([angles.cos(), angles.sin()], dim=1).to(device),
        "positions": positions.to(torch.int32).to(device),
        "k_cache": poisoned(pages, dtype, device),
        "v_cache": poisoned(pages, dtype, device),
        "slot_mapping": slots_for(num_tokens, model.page_size, device),
        "plus_one": model.plus_one,
    }


def check(arguments: dict[str, object], dtype: torch.dtype) -> None:
    own_caches = {name: arguments[name].clone() for name in ("k_cache", "v_cache")}
    expected_arguments = {**arguments, **own_caches}
    expected_arguments = {name: for_reference(value) for name, value in expected_arguments.items()}
    expected = reference.rope_and_store(**expected_arguments)
    actual = rope_and_store(**arguments)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert_close(actual, expected, dtype, "q")
    slots = arguments["slot_mapping"].cpu().long()
    stored = torch.zeros(arguments["k_cache"].shape[:2], dtype=torch.bool)
    stored.flatten()[slots[slots >= 0]] = True
    for name in ("k_cache", "v_cache"):
        cache = arguments[name].cpu()
        assert cache[~stored].isnan().all(), f"{name} written where no token is stored"
        assert_close(cache[stored], expected_arguments[name][stored], dtype, name)


@pytest.fixture(params=MODELS)
def model(request, device):
    model = MODELS[request.param]
    if device == "cpu" and model.head_dim > 64:
        pytest.skip("needs a GPU")
    return model


def test_rope_and_store(device, dtype, num_tokens, model):
    check(inputs(model, num_tokens, dtype, device), dtype)


def test_nothing_stored(device, dtype):
    arguments = inputs(SMALL, 17, dtype, device)
    arguments["slot_mapping"].fill_(-1)
    q = rope_and_store(**arguments)
    assert not q.isnan().any()
    assert arguments["k_cache"].isnan().all()
    assert arguments["v_cache"].isnan().all()


def test_caches_that_share_memory(device, dtype):
    arguments = inputs(SMALL, 17, dtype, device)
    both = poisoned((arguments["k_cache"].shape[0], 2, 16, 1, 32), dtype, device)
    interleaved = {"k_cache": both[:, 0], "v_cache": both[:, 1]}
    rope_and_store(**{**arguments, **interleaved})
    rope_and_store(**arguments)
    for name, cache in interleaved.items():
        assert torch.equal(cache.nan_to_num(7.0), arguments[name].nan_to_num(7.0))


def test_position_zero_of_plain_heads_is_the_identity(device, dtype):
    arguments = inputs(MODELS["llama"], 5, dtype, device)
    arguments["cos_sin"][0, :8], arguments["cos_sin"][0, 8:] = 1.0, 0.0
    arguments["positions"].zero_()
    q = arguments["q"].clone()
    assert torch.equal(rope_and_store(**arguments), q)


def test_caches_laid_out_differently_are_refused(device):
    arguments = inputs(SMALL, 1, torch.float32, device)
    arguments["v_cache"] = poisoned((4, 2, 16, 1, 32), torch.float32, device)[:, 0]
    with pytest.raises(AssertionError, match="laid out alike"):
        rope_and_store(**arguments)
