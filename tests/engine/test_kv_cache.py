"""Pages handed out and taken back, and the shape of what they hold."""

from __future__ import annotations

import pytest
import torch

from engine.config import AttentionConfig
from engine.kv_cache import PagePool, make_kv_layer


@pytest.mark.parametrize(
    ("num_tokens", "pages"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_pages_for_tokens(num_tokens, pages):
    assert PagePool(8, 16).pages_for(num_tokens) == pages


def test_the_lowest_free_pages_come_first():
    pool = PagePool(5, 16)
    first, second = pool.take(17), pool.take(16)
    assert (first, second) == ([0, 1], [2])
    pool.give_back(second)
    pool.give_back(first)
    assert pool.take(80) == [0, 1, 2, 3, 4]


def test_more_pages_than_there_are():
    pool = PagePool(2, 16)
    pool.take(16)
    with pytest.raises(AssertionError, match=r"^2 pages asked of 1$"):
        pool.take(17)
    assert pool.take(16) == [1]


def test_a_layer():
    layer = make_kv_layer(AttentionConfig(8, 2, 24), 3, 16, torch.float16, "cpu")
    for cache in (layer.k, layer.v):
        assert (cache.shape, cache.dtype) == ((3, 16, 2, 24), torch.float16)
    assert layer.k.data_ptr() != layer.v.data_ptr()
