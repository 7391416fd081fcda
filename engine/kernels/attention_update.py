"""Decode attention: one token for each sequence, its keys split over programs and combined.

Two kernels, each one variant for a model and dtype. How many splits there are follows from the
batch's shape alone, as a number that no variant depends on: a CUDA graph of a batch serves every
context length.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.paged import LOG2_E, attend_block
from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

MAX_SPLITS = 64
# A long sequence among many short ones is still shared by a few programs.
MIN_SPLITS = 8
# About two for each multiprocessor of an H200: beyond that, splits without work only cost.
PROGRAMS = 256
BLOCK_N = 32
NUM_WARPS = 4
# A page's number must arrive before its keys can be asked for: with five stages, two blocks of
# them are under way while one is multiplied, and three programs still fit a multiprocessor.
NUM_STAGES = 5
COMBINE_BLOCK_D = 64


def split_count(num_seqs: int, num_kv_heads: int) -> int:
    """Over how many programs the keys of each sequence and key head are split, at most."""
    return min(MAX_SPLITS, max(MIN_SPLITS, PROGRAMS // (num_seqs * num_kv_heads)))


STATEMENTS = {"attention_update_kernel": one_variant, "attention_combine_kernel": one_variant}


@triton.jit
def keys_per_split(num_keys, num_splits, BLOCK_N: tl.constexpr):
    """How many of `num_keys` a split takes, whole blocks: the last splits may be left none."""
    return tl.cdiv(tl.cdiv(num_keys, num_splits), BLOCK_N) * BLOCK_N


@triton.jit(do_not_specialize=["table_stride", "num_splits"])
def attention_update_kernel(
    p_q,
    p_k,
    p_v,
    p_block_table,
    p_context_lens,
    p_partial,
    p_lse,
    scale,
    table_stride,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_split, i_kv, i_seq = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_keys = tl.load(p_context_lens + i_seq) + 1
    share = keys_per_split(num_keys, num_splits, BLOCK_N)
    begin = i_split * share
    if begin >= num_keys:
        return
    end = tl.minimum(begin + share, num_keys)

    # All query heads of this key head, padded to what a dot takes.
    o_m = tl.arange(0, BLOCK_M)
    o_d = tl.arange(0, BLOCK_D)
    m_q = (o_m < GROUP)[:, None] & (o_d < HEAD_DIM)[None, :]
    o_head = (i_seq * NUM_KV_HEADS + i_kv) * GROUP + o_m
    b_q = tl.load(p_q + o_head[:, None] * HEAD_DIM + o_d[None, :], mask=m_q, other=0.0)

    b_out = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    b_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    b_sum = tl.zeros((BLOCK_M,), tl.float32)
    o_last = tl.zeros((BLOCK_M,), tl.int32) + (end - 1)
    p_pages = p_block_table + i_seq * table_stride
    p_k += i_kv * HEAD_DIM
    p_v += i_kv * HEAD_DIM
    for i_n in range(begin, end, BLOCK_N):
        o_n = i_n + tl.arange(0, BLOCK_N)
        b_out, b_max, b_sum = attend_block(
            b_q, b_out, b_max, b_sum, p_k, p_v, p_pages, o_n, o_last, end, scale,
            PAGE_SIZE, NUM_KV_HEADS * HEAD_DIM, HEAD_DIM, BLOCK_D, True,
        )  # fmt: skip

    o_part = o_head.to(tl.int64) * num_splits + i_split
    o_out = o_part[:, None] * HEAD_DIM + o_d[None, :]
    tl.store(p_partial + o_out, b_out / b_sum[:, None], mask=m_q)
    tl.store(p_lse + o_part, b_max + tl.log2(b_sum), mask=o_m < GROUP)


# A gate's token stride is another one for a single token in some views, so that even its
# divisibility may change with the batch.
@triton.jit(do_not_specialize=["num_splits", "gate_token_stride", "gate_head_stride"])
def attention_combine_kernel(
    p_partial,
    p_lse,
    p_context_lens,
    p_gate,
    p_out,
    num_splits,
    gate_token_stride,
    gate_head_stride,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    i_head, i_seq, i_d = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_keys = tl.load(p_context_lens + i_seq) + 1
    o_s = tl.arange(0, BLOCK_S)
    o_d = i_d * BLOCK_D + tl.arange(0, BLOCK_D)
    m_d = o_d < HEAD_DIM
    # A split without work wrote nothing.
    m_s = o_s * keys_per_split(num_keys, num_splits, BLOCK_N) < num_keys
    i_row = i_seq * NUM_HEADS + i_head
    o_part = i_row.to(tl.int64) * num_splits + o_s

    b_lse = tl.load(p_lse + o_part, mask=m_s, other=float("-inf"))
    b_weights = tl.exp2(b_lse - tl.max(b_lse, 0))
    o_partial = o_part[:, None] * HEAD_DIM + o_d[None, :]
    b_partial = tl.load(p_partial + o_partial, mask=m_s[:, None] & m_d[None, :], other=0.0)
    b_out = tl.sum(b_weights[:, None] * b_partial, 0) / tl.sum(b_weights, 0)
    if p_gate is not None:
        o_gate = i_seq.to(tl.int64) * gate_token_stride + i_head * gate_head_stride + o_d
        b_gate = tl.load(p_gate + o_gate, mask=m_d, other=0.0)
        b_out = b_out * tl.sigmoid(b_gate.to(tl.float32))
    tl.store(p_out + i_row * HEAD_DIM + o_d, b_out.to(p_out.dtype.element_ty), mask=m_d)


def attention_update(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    scale: float,
    gate: Tensor | None = None,
) -> Tensor:
    """`reference.attention_update` with each sequence's keys split over programs.

    `q` and the caches are contiguous; `gate`'s tokens and heads may be strided; `scale > 0`.
    The number of splits, and so the order of summation, changes with the batch size.
    """
    num_seqs, num_heads, head_dim = q.shape
    page_size, num_kv_heads = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    num_splits = split_count(num_seqs, num_kv_heads)
    block_d = max(16, next_power_of_2(head_dim))
    shape = (num_seqs, num_heads, num_splits)
    partial = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
    lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    attention_update_kernel[(num_splits, num_kv_heads, num_seqs)](
        q,
        k_cache,
        v_cache,
        block_table,
        context_lens,
        partial,
        lse,
        scale * LOG2_E,
        block_table.stride(0),
        num_splits,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        PAGE_SIZE=page_size,
        BLOCK_M=max(16, next_power_of_2(group)),
        BLOCK_N=BLOCK_N,
        BLOCK_D=block_d,
        num_warps=NUM_WARPS,
        num_stages=1 if q.dtype == torch.float32 else NUM_STAGES,
    )
    out = torch.empty_like(q)
    combine_d = min(COMBINE_BLOCK_D, block_d)
    attention_combine_kernel[(num_heads, num_seqs, cdiv(head_dim, combine_d))](
        partial,
        lse,
        context_lens,
        gate,
        out,
        num_splits,
        gate.stride(0) if gate is not None else 0,
        gate.stride(1) if gate is not None else 0,
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_S=MAX_SPLITS,
        BLOCK_N=BLOCK_N,
        BLOCK_D=combine_d,
        num_warps=NUM_WARPS,
        num_stages=1,
    )
    return out
