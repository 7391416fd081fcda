"""The sort of (token, place) pairs by expert, for matmuls whose tiles belong to one expert each.

Owns `align`, one variant for every `block_m`. Does not know what is multiplied.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK_PAIRS = 4096
BLOCK_TILES = 64
NUM_WARPS = 8


@triton.jit(do_not_specialize=["num_pairs"])
def align_kernel(
    p_expert_ids,
    p_pairs,
    p_tiles,
    num_pairs,
    BLOCK_M: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
):
    i_expert = tl.program_id(0)
    o_pair = tl.arange(0, BLOCK_PAIRS)
    b_before = tl.zeros((BLOCK_PAIRS,), tl.int32)
    b_own = tl.zeros((BLOCK_PAIRS,), tl.int32)
    for start in range(0, num_pairs, BLOCK_PAIRS):
        m_pair = start + o_pair < num_pairs
        b_ids = tl.load(p_expert_ids + start + o_pair, mask=m_pair, other=0x7FFFFFFF)
        b_before += (b_ids < i_expert).to(tl.int32)
        b_own += (b_ids == i_expert).to(tl.int32)
    begin = tl.sum(b_before)
    end = begin + tl.sum(b_own)

    # Both terms leave every expert at least as many tiles as its rows need, hence so does the
    # smaller; neither needs to know how many rows each earlier expert has.
    first_tile = tl.minimum(begin, begin // BLOCK_M + i_expert)
    next_tile = tl.minimum(end, end // BLOCK_M + i_expert + 1)
    for start in range(first_tile, next_tile, BLOCK_TILES):
        o_tile = start + tl.arange(0, BLOCK_TILES)
        m_tile = o_tile < next_tile
        tl.store(p_tiles + 3 * o_tile, i_expert, mask=m_tile)
        tl.store(p_tiles + 3 * o_tile + 1, begin + (o_tile - first_tile) * BLOCK_M, mask=m_tile)
        tl.store(p_tiles + 3 * o_tile + 2, end, mask=m_tile)

    if begin < end:
        offset = begin
        for start in range(0, num_pairs, BLOCK_PAIRS):
            m_pair = start + o_pair < num_pairs
            b_ids = tl.load(p_expert_ids + start + o_pair, mask=m_pair, other=0x7FFFFFFF)
            b_is_own = (b_ids == i_expert).to(tl.int32)
            b_rank = tl.cumsum(b_is_own) - b_is_own
            tl.store(p_pairs + offset + b_rank, start + o_pair, mask=b_is_own > 0)
            offset += tl.sum(b_is_own)


def num_tiles(num_pairs: int, num_experts: int, block_m: int) -> int:
    """Tiles that suffice for `num_pairs` however they are spread over the experts."""
    return min(num_pairs, num_pairs // block_m + num_experts)


def align(expert_ids: Tensor, num_experts: int, block_m: int) -> tuple[Tensor, Tensor]:
    """Sort the pairs of `expert_ids: [num_tokens, top_k]` by expert, and cut them into tiles.

    One launch, deterministic: each expert's program counts the pairs before its own. Returns
    `pairs: [num_tokens * top_k]` int32, the pairs' indices in order of (expert, index), and
    `tiles: [num_tiles, 3]` int32 of (expert, begin, end): the rows of a tile are `pairs[begin:
    min(begin + block_m, end)]`. Tiles with `begin >= end` have none; they may lie anywhere.
    """
    num_pairs = expert_ids.numel()
    tiles_shape = (num_tiles(num_pairs, num_experts, block_m), 3)
    pairs = torch.empty((num_pairs,), dtype=torch.int32, device=expert_ids.device)
    tiles = torch.empty(tiles_shape, dtype=torch.int32, device=expert_ids.device)
    align_kernel[(num_experts,)](
        expert_ids,
        pairs,
        tiles,
        num_pairs,
        BLOCK_M=block_m,
        BLOCK_PAIRS=BLOCK_PAIRS,
        BLOCK_TILES=BLOCK_TILES,
        num_warps=NUM_WARPS,
    )
    return pairs, tiles
