"""The sort of pairs by expert: every pair once, in order, in tiles of one expert."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.alignment import align
from tests.engine.kernels.checks import generator


def pairs_of_tiles(pairs, tiles, block_m):
    """(expert, pair) as a matmul over the tiles meets them."""
    met = []
    for expert, begin, end in tiles.tolist():
        rows = pairs[begin : min(begin + block_m, end)] if begin < end else []
        met += [(expert, int(pair)) for pair in rows]
    return met


def check(ids, num_experts, block_m):
    pairs, tiles = align(ids, num_experts, block_m)
    expected = sorted((expert, pair) for pair, expert in enumerate(ids.flatten().tolist()))
    assert pairs_of_tiles(pairs.cpu(), tiles.cpu(), block_m) == expected


@pytest.mark.parametrize(("num_experts", "top_k", "block_m"), [(5, 2, 16), (9, 1, 64), (60, 8, 16)])
def test_any_spread(device, num_tokens, num_experts, top_k, block_m):
    random = generator(num_tokens)
    ids = torch.rand((num_tokens, num_experts), generator=random).argsort(-1)[:, :top_k]
    check(ids.to(torch.int32).contiguous().to(device), num_experts, block_m)


@pytest.mark.parametrize("expert", [0, 3, 6])
def test_all_pairs_on_one_expert(device, expert):
    for count in (1, 15, 16, 17, 64):
        ids = torch.full((count, 1), expert, dtype=torch.int32, device=device)
        check(ids, 7, 16)


def test_more_pairs_than_a_block(device):
    ids = torch.randint(0, 3, (5000, 2), generator=generator(1)).to(torch.int32)
    check(ids.to(device), 3, 64)


def test_more_tiles_than_a_block(device):
    ids = torch.ones((1100, 1), dtype=torch.int32, device=device)
    check(ids, 2, 16)
