"""Decode attention against the reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import attention_update as attention_update_module
from engine.kernels import reference
from engine.kernels.attention_update import (
    MAX_SPLITS,
    MIN_SPLITS,
    attention_update,
    split_count,
)
from tests.engine.kernels.checks import assert_close, for_reference, interpreting
from tests.engine.kernels.pages import Batch, Heads

# Beside page edges, and where one more split gets work (key blocks are of 32).
CONTEXTS = (0, 1, 15, 16, 17, 31, 32, 62, 63, 64, 65, 127, 128)
LONG_CONTEXTS = (255, 1025, 2046, 2047, 2048, 4095, 4096, 4097, 9000)


@pytest.fixture(autouse=True)
def few_splits(monkeypatch):
    if interpreting():
        # An interpreted program costs milliseconds even without work: eight splits for a sequence.
        monkeypatch.setattr(attention_update_module, "PROGRAMS", 16)


def check(batch: Batch, dtype: torch.dtype, device: str) -> None:
    arguments = batch.decode(dtype, device)
    expected = reference.attention_update(**{k: for_reference(v) for k, v in arguments.items()})
    actual = attention_update(**arguments)
    assert actual.is_contiguous()
    assert actual.dtype == dtype
    assert_close(actual, expected, dtype)


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize("context", CONTEXTS + LONG_CONTEXTS)
def test_context(device, dtype, context, page_size):
    if device == "cpu" and context in LONG_CONTEXTS:
        pytest.skip("needs a GPU")
    check(Batch(((context, 1),), page_size=page_size), dtype, device)


def test_more_blocks_than_splits(device, dtype, monkeypatch):
    # Eight splits, and more than a block of keys for each; a short sequence leaves most unused.
    monkeypatch.setattr(attention_update_module, "PROGRAMS", 16)
    heads = Heads(num_kv_heads=1, group=1, head_dim=16)
    assert split_count(2, 1) == 8
    check(Batch(((8 * 32 * 2 + 7, 1), (3, 1)), heads), dtype, device)
    check(Batch(((8 * 32 * 2 - 1, 1), (8 * 32 * 2, 1)), heads), dtype, device)


@pytest.mark.parametrize("page_size", [16, 64])
def test_sequences_of_different_lengths(device, dtype, page_size):
    check(Batch(((0, 1), (70, 1), (200, 1), (63, 1)), page_size=page_size), dtype, device)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("group", [1, 2, 3, 8, 24])
def test_group(device, dtype, group, gated):
    check(Batch(((23, 1), (80, 1)), heads=Heads(group=group), gated=gated), dtype, device)


@pytest.mark.parametrize("head_dim", [16, 20, 36, 64, 256])
def test_head_dim(device, dtype, head_dim):
    check(Batch(((70, 1),), heads=Heads(num_kv_heads=1, head_dim=head_dim)), dtype, device)


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 63])
def test_batch(device, num_tokens):
    if device == "cpu" and num_tokens > 17:
        pytest.skip("needs a GPU")
    batch = Batch(tuple((7 * index, 1) for index in range(num_tokens)), Heads(1, 2, 16))
    check(batch, torch.bfloat16, device)


@pytest.mark.parametrize("page_size", [16, 64])
@pytest.mark.parametrize(
    "heads", [Heads(2, 8, 256), Heads(8, 4, 128), Heads(4, 8, 128)], ids=["qwen3.6", "llama", "moe"]
)
def test_model(device, dtype, heads, page_size):
    if device == "cpu":
        pytest.skip("needs a GPU")
    check(Batch(((0, 1), (1025, 1), (20000, 1), (511, 1)), heads, page_size), dtype, device)
    check(Batch(((20000, 1),), heads, page_size), dtype, device)


def test_split_count(monkeypatch):
    monkeypatch.undo()  # PROGRAMS as it is served with
    assert split_count(1, 2) == MAX_SPLITS
    assert split_count(4, 8) == 8
    assert split_count(8, 2) == 16
    assert split_count(256, 2) == MIN_SPLITS


def test_a_graph_serves_every_context(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    arguments = Batch(((5000, 1), (900, 1))).decode(torch.bfloat16, device)
    attention_update(**arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention_update(**arguments)
    for contexts in ([0, 899], [4999, 0], [63, 64]):
        arguments["context_lens"].copy_(torch.tensor(contexts))
        graph.replay()
        expected = reference.attention_update(**{k: for_reference(v) for k, v in arguments.items()})
        assert_close(out, expected, torch.bfloat16)
