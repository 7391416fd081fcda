"""The two matmuls of routed experts, each tile of rows with its own expert's weights.

Owns `gate_up_matmul`, `down_matmul` and the choice of their tiles, one variant of each for every
`Tile`. Weights are contiguous; row strides are a model's widths and may be specialised, which the
16-byte loads need.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sizes import cdiv
from engine.kernels.statements import Shapes, Start
from engine.kernels.tables import Table


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows, columns and depth of a program's tile. Gate and up have `block_n` columns each, so
    that `down_matmul` has twice as many."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int


# Over the mean number of rows of an expert. Few rows: programs enough to read each used expert's
# weights from every multiprocessor, and loads enough under way. Many: tensor cores' shapes.
TILES = Table(
    rows=((8, Tile(16, 32, 128, 4, 4)), (64, Tile(64, 64, 64, 4, 4))),
    beyond=Tile(128, 64, 64, 8, 3),
)
# Exact float32 products have no tensor cores: these are for tests, where compile time counts.
FLOAT32_TILE = Tile(16, 32, 32, 4, 3)


def tile_for(num_pairs: int, num_experts: int, dtype: torch.dtype) -> Tile:
    """The tile for `num_pairs` rows over all experts."""
    if dtype == torch.float32:
        return FLOAT32_TILE
    return TILES.at(cdiv(num_pairs, num_experts))


def tile_starts(shapes: Shapes) -> tuple[Start, ...]:
    """The token counts at which the experts' kernels take another tile."""
    if not shapes.num_experts:
        return ()
    starts: dict[Tile, Start] = {}
    for rows in TILES.starts():
        # The fewest tokens with num_tokens * top_k > (rows - 1) * num_experts.
        num_tokens = (rows - 1) * shapes.num_experts // shapes.top_k + 1
        tile = tile_for(num_tokens * shapes.top_k, shapes.num_experts, shapes.dtype)
        starts.setdefault(tile, Start(num_tokens, f"tiles of {tile.block_m} rows"))
    return tuple(starts.values())


STATEMENTS = {"gate_up_kernel": tile_starts, "down_kernel": tile_starts}


@triton.jit
def gate_up_kernel(
    p_x,
    p_pairs,
    p_tiles,
    p_weight,
    p_out,
    x_stride,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    TOP_K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    p_tile = p_tiles + 3 * tl.program_id(1)
    begin, end = tl.load(p_tile + 1), tl.load(p_tile + 2)
    if begin >= end:
        return
    i_expert = tl.load(p_tile).to(tl.int64)
    o_row = begin + tl.arange(0, BLOCK_M)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    m_row, m_n = o_row < end, o_n < WIDTH
    o_token = (tl.load(p_pairs + o_row, mask=m_row, other=0) // TOP_K).to(tl.int64)
    p_a = p_x + o_token[:, None] * x_stride + o_k[None, :]
    p_gate = p_weight + i_expert * (2 * WIDTH * HIDDEN) + o_n[None, :] * HIDDEN + o_k[:, None]
    p_up = p_gate + WIDTH * HIDDEN
    b_gate = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    b_up = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, HIDDEN, BLOCK_K):
        m_k = start + o_k < HIDDEN
        m_weight = m_k[:, None] & m_n[None, :]
        b_a = tl.load(p_a + start, mask=m_row[:, None] & m_k[None, :], other=0.0)
        b_gate_weight = tl.load(p_gate + start, mask=m_weight, other=0.0)
        b_up_weight = tl.load(p_up + start, mask=m_weight, other=0.0)
        b_gate = tl.dot(b_a, b_gate_weight, b_gate, input_precision="ieee")
        b_up = tl.dot(b_a, b_up_weight, b_up, input_precision="ieee")
    b_out = b_gate * tl.sigmoid(b_gate) * b_up
    p_row = p_out + o_row.to(tl.int64)[:, None] * WIDTH + o_n[None, :]
    tl.store(p_row, b_out.to(p_out.dtype.element_ty), mask=m_row[:, None] & m_n[None, :])


@triton.jit
def down_kernel(
    p_x,
    p_pairs,
    p_tiles,
    p_weight,
    p_out,
    HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    p_tile = p_tiles + 3 * tl.program_id(1)
    begin, end = tl.load(p_tile + 1), tl.load(p_tile + 2)
    if begin >= end:
        return
    i_expert = tl.load(p_tile).to(tl.int64)
    o_row = begin + tl.arange(0, BLOCK_M)
    o_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    o_k = tl.arange(0, BLOCK_K)
    m_row, m_n = o_row < end, o_n < HIDDEN
    p_a = p_x + o_row.to(tl.int64)[:, None] * WIDTH + o_k[None, :]
    p_b = p_weight + i_expert * (HIDDEN * WIDTH) + o_n[None, :] * WIDTH + o_k[:, None]
    b_out = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, WIDTH, BLOCK_K):
        m_k = start + o_k < WIDTH
        b_a = tl.load(p_a + start, mask=m_row[:, None] & m_k[None, :], other=0.0)
        b_b = tl.load(p_b + start, mask=m_k[:, None] & m_n[None, :], other=0.0)
        b_out = tl.dot(b_a, b_b, b_out, input_precision="ieee")
    o_pair = tl.load(p_pairs + o_row, mask=m_row, other=0).to(tl.int64)
    p_row = p_out + o_pair[:, None] * HIDDEN + o_n[None, :]
    tl.store(p_row, b_out.to(p_out.dtype.element_ty), mask=m_row[:, None] & m_n[None, :])


def gate_up_matmul(
    x: Tensor, pairs: Tensor, tiles: Tensor, gate_up: Tensor, top_k: int, tile: Tile
) -> Tensor:
    """`silu(x @ gate.T) * (x @ up.T)` of each pair's token and expert, in the order of `pairs`.

    `x: [num_tokens, hidden]`, rows may be strided; `gate_up: [num_experts, 2 * width, hidden]`;
    `pairs` and `tiles` as `alignment.align` gives them. Returns `[num_pairs, width]`.
    """
    width, hidden = gate_up.shape[1] // 2, gate_up.shape[2]
    out = torch.empty((pairs.shape[0], width), dtype=x.dtype, device=x.device)
    # Columns first: the tiles of one expert, which share its weights, are close in time.
    gate_up_kernel[(cdiv(width, tile.block_n), tiles.shape[0])](
        x,
        pairs,
        tiles,
        gate_up,
        out,
        x.stride(0),
        HIDDEN=hidden,
        WIDTH=width,
        TOP_K=top_k,
        BLOCK_M=tile.block_m,
        BLOCK_N=tile.block_n,
        BLOCK_K=tile.block_k,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def down_matmul(x: Tensor, pairs: Tensor, tiles: Tensor, down: Tensor, tile: Tile) -> Tensor:
    """`x @ down.T` of each pair's expert, back in the pairs' own order.

    `x: [num_pairs, width]`, contiguous, in the order of `pairs`; `down: [num_experts, hidden,
    width]`. Returns `[num_pairs, hidden]`.
    """
    hidden, width = down.shape[1], down.shape[2]
    out = torch.empty((pairs.shape[0], hidden), dtype=x.dtype, device=x.device)
    down_kernel[(cdiv(hidden, 2 * tile.block_n), tiles.shape[0])](
        x,
        pairs,
        tiles,
        down,
        out,
        HIDDEN=hidden,
        WIDTH=width,
        BLOCK_M=tile.block_m,
        BLOCK_N=2 * tile.block_n,
        BLOCK_K=tile.block_k,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out
