"""Prefill attention: new tokens of several sequences over their pages, as one Triton kernel.

One variant for each model and dtype: neither the prompt's length nor the batch is in its key.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.paged import LOG2_E, attend_block
from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant


class Tile(NamedTuple):
    """What one program holds at a time: query rows by keys, and how it is compiled."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def tile_for(dtype: torch.dtype) -> Tile:
    """The tile for `dtype`: for 256 dimensions, all that registers and shared memory hold.

    float32 multiplies without tensor cores and takes twice the shared memory: small and unstaged.
    """
    if dtype == torch.float32:
        return Tile(rows=32, keys=32, num_warps=8, num_stages=1)
    return Tile(rows=128, keys=64, num_warps=8, num_stages=3)


STATEMENTS = {"attention_kernel": one_variant}


# A gate's token stride is another one for a single token in some views, so that even its
# divisibility may change with the batch.
@triton.jit(do_not_specialize=["table_stride", "gate_token_stride", "gate_head_stride"])
def attention_kernel(
    p_q,
    p_k,
    p_v,
    p_block_table,
    p_cu_seqlens,
    p_context_lens,
    p_gate,
    p_out,
    scale,
    table_stride,
    gate_token_stride,
    gate_head_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_kv, i_seq = tl.program_id(0), tl.program_id(2)
    # The last rows see most keys: they start first, so that no long program runs alone at the end.
    i_m = tl.num_programs(1) - 1 - tl.program_id(1)
    begin = tl.load(p_cu_seqlens + i_seq)
    length = tl.load(p_cu_seqlens + i_seq + 1) - begin
    past = tl.load(p_context_lens + i_seq)
    first_token = i_m * BLOCK_M // GROUP
    if first_token >= length:
        return
    last_token = tl.minimum((i_m * BLOCK_M + BLOCK_M - 1) // GROUP, length - 1)

    # A row is a query token in one of the heads that share this key head: a short prompt fills
    # its rows, and a block of keys is read once for all of them.
    o_row = i_m * BLOCK_M + tl.arange(0, BLOCK_M)
    o_token = o_row // GROUP
    o_head = i_kv * GROUP + o_row % GROUP
    o_d = tl.arange(0, BLOCK_D)
    m_q = (o_token < length)[:, None] & (o_d < HEAD_DIM)[None, :]
    o_q = (begin + o_token).to(tl.int64) * (NUM_KV_HEADS * GROUP) + o_head
    o_q = o_q[:, None] * HEAD_DIM + o_d[None, :]
    b_q = tl.load(p_q + o_q, mask=m_q, other=0.0)

    b_out = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    b_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BLOCK_M,), tl.float32)
    p_pages = p_block_table + i_seq * table_stride
    p_k += i_kv * HEAD_DIM
    p_v += i_kv * HEAD_DIM
    o_last = past + o_token
    end = past + last_token + 1
    seen_by_all = (past + first_token + 1) // BLOCK_N * BLOCK_N
    for i_n in range(0, seen_by_all, BLOCK_N):
        o_n = i_n + tl.arange(0, BLOCK_N)
        b_out, b_max, b_sum = attend_block(
            b_q, b_out, b_max, b_sum, p_k, p_v, p_pages, o_n, o_last, end, scale,
            PAGE_SIZE, NUM_KV_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_D, False,
        )  # fmt: skip
    for i_n in range(seen_by_all, end, BLOCK_N):
        o_n = i_n + tl.arange(0, BLOCK_N)
        b_out, b_max, b_sum = attend_block(
            b_q, b_out, b_max, b_sum, p_k, p_v, p_pages, o_n, o_last, end, scale,
            PAGE_SIZE, NUM_KV_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_D, True,
        )  # fmt: skip

    b_out = b_out / b_sum[:, None]
    if p_gate is not None:
        o_gate = (begin + o_token).to(tl.int64) * gate_token_stride + o_head * gate_head_stride
        b_gate = tl.load(p_gate + o_gate[:, None] + o_d[None, :], mask=m_q, other=0.0)
        b_out = b_out * tl.sigmoid(b_gate.to(tl.float32))
    tl.store(p_out + o_q, b_out.to(p_out.dtype.element_ty), mask=m_q)


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """`reference.attention` with a running softmax, the gate applied before the result is rounded.

    `q` and the caches are contiguous; `gate`'s tokens and heads may be strided; `scale > 0`.
    """
    num_heads, head_dim = q.shape[1:]
    page_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    block_d = max(16, next_power_of_2(head_dim))
    tile = tile_for(q.dtype)
    out = torch.empty_like(q)
    grid = (num_kv_heads, cdiv(max_query_len * group, tile.rows), block_table.shape[0])
    attention_kernel[grid](
        q,
        k_cache,
        v_cache,
        block_table,
        cu_seqlens,
        context_lens,
        gate,
        out,
        scale * LOG2_E,
        block_table.stride(0),
        gate.stride(0) if gate is not None else 0,
        gate.stride(1) if gate is not None else 0,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        BLOCK_M=tile.rows,
        BLOCK_N=tile.keys,
        BLOCK_D=block_d,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out
