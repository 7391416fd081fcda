"""Prefill attention against the reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import reference
from engine.kernels.attention import attention
from tests.engine.kernels.checks import assert_close, for_reference
from tests.engine.kernels.pages import Batch, Heads

# Beside page and key-block edges, none a multiple of both.
PREFIXES = (0, 1, 15, 16, 31, 65)


def check(batch: Batch, dtype: torch.dtype, device: str) -> None:
    arguments = batch.prefill(dtype, device)
    expected = reference.attention(**{k: for_reference(v) for k, v in arguments.items()})
    actual = attention(**arguments)
    assert actual.is_contiguous()
    assert actual.dtype == dtype
    assert_close(actual, expected, dtype)


def test_prompt(device, dtype, num_tokens):
    check(Batch(((0, num_tokens),)), dtype, device)


def test_prompt_after_a_prefix(device, dtype, num_tokens):
    check(Batch(((37, num_tokens),)), dtype, device)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("page_size", [16, 64])
def test_prefix(device, dtype, prefix, page_size):
    check(Batch(((prefix, 18),), page_size=page_size), dtype, device)


@pytest.mark.parametrize("page_size", [16, 64])
def test_sequences_of_different_lengths(device, dtype, page_size):
    check(Batch(((0, 1), (70, 33), (5, 17), (64, 1), (0, 64)), page_size=page_size), dtype, device)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("group", [1, 2, 3, 8])
def test_group(device, dtype, group, gated):
    batch = Batch(((3, 20), (0, 9)), heads=Heads(group=group), gated=gated)
    check(batch, dtype, device)


@pytest.mark.parametrize("head_dim", [16, 20, 36, 64, 256])
def test_head_dim(device, dtype, head_dim):
    heads = Heads(num_kv_heads=1, head_dim=head_dim)
    check(Batch(((30, 5),), heads=heads), dtype, device)


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize(
    "heads", [Heads(2, 8, 256), Heads(8, 4, 128), Heads(4, 8, 128)], ids=["qwen3.6", "llama", "moe"]
)
def test_model(device, dtype, heads, page_size):
    if device == "cpu":
        pytest.skip("needs a GPU")
    check(Batch(((0, 2049), (1000, 130), (777, 1)), heads, page_size), dtype, device)


def test_writes_its_tokens_only(device, monkeypatch):
    # A tile has more rows than the sequence has tokens, and those rows are another sequence's.
    arguments = Batch(((0, 3), (0, 4), (0, 3))).prefill(torch.float32, device)
    expected = attention(**arguments)
    for name in ("context_lens", "block_table"):
        arguments[name] = arguments[name][1:2]
    arguments["cu_seqlens"] = arguments["cu_seqlens"][1:3]
    monkeypatch.setattr(torch, "empty_like", lambda q: torch.full_like(q, float("nan")))
    actual = attention(**arguments)
    assert torch.equal(actual[3:7], expected[3:7])
    assert actual[:3].isnan().all()
    assert actual[7:].isnan().all()
