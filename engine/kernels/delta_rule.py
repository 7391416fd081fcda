"""The gated delta rule over whole sequences: the walk over chunks that carries the state.

Owns `gated_delta_rule`; what a chunk can do without the state is `delta_rule_chunks`. One variant
of each kernel for a model and dtype, whatever the lengths: they are read from `cu_seqlens`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.delta_rule_chunks import CHUNK, prepare_chunks, warps_for
from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

# As many programs for one sequence of 32 heads of 128 as an H200 has multiprocessors, about.
BLOCK_V = 32

STATEMENTS = {"delta_rule_state_kernel": one_variant}


@triton.jit
def delta_rule_state_kernel(
    p_q,
    p_k,
    p_u,
    p_w,
    p_scores,
    p_log_decay,
    p_state,
    p_state_indices,
    p_cu_seqlens,
    p_context_lens,
    q_stride,
    k_stride,
    scale,
    NUM_V_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    TYPE: tl.constexpr = p_u.dtype.element_ty
    i_seq, i_v_head = tl.program_id(1) // NUM_V_HEADS, tl.program_id(1) % NUM_V_HEADS
    begin = tl.load(p_cu_seqlens + i_seq)
    length = tl.load(p_cu_seqlens + i_seq + 1) - begin
    o_i, o_k = tl.arange(0, CHUNK), tl.arange(0, BLOCK_K)
    o_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k, m_v = (o_k < K_DIM)[None, :], (o_v < V_DIM)[None, :]
    i_k_head = i_v_head // GROUP
    p_q += begin.to(tl.int64) * q_stride + i_k_head * K_DIM + o_k[None, :]
    p_k += begin.to(tl.int64) * k_stride + i_k_head * K_DIM + o_k[None, :]
    i_row = begin.to(tl.int64) * NUM_V_HEADS + i_v_head
    p_w += i_row * K_DIM + o_k[None, :]
    p_u += i_row * V_DIM + o_v[None, :]
    p_scores += i_row * CHUNK + o_i[None, :]
    p_log_decay += i_row

    slot = tl.load(p_state_indices + i_seq).to(tl.int64)
    p_state += (slot * NUM_V_HEADS + i_v_head) * K_DIM * V_DIM
    p_state += o_k[:, None] * V_DIM + o_v[None, :]
    m_state = (o_k < K_DIM)[:, None] & m_v
    b_state = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
    if tl.load(p_context_lens + i_seq) > 0:
        b_state = tl.load(p_state, mask=m_state, other=0.0)
    for first in range(0, length, CHUNK):
        m_i = (first + o_i < length)[:, None]
        o_row = (first + o_i).to(tl.int64)[:, None]
        o_head = o_row * NUM_V_HEADS
        b_w = tl.load(p_w + o_head * K_DIM, mask=m_i & m_k, other=0.0)
        b_u = tl.load(p_u + o_head * V_DIM, mask=m_i & m_v, other=0.0)
        b_q = tl.load(p_q + o_row * q_stride, mask=m_i & m_k, other=0.0)
        b_k = tl.load(p_k + o_row * k_stride, mask=m_i & m_k, other=0.0)
        b_scores = tl.load(p_scores + o_head * CHUNK, mask=m_i, other=0.0)
        b_g = tl.load(p_log_decay + o_head, mask=m_i, other=0.0)
        last = tl.minimum(first + CHUNK, length).to(tl.int64) - 1
        g_last = tl.load(p_log_decay + last * NUM_V_HEADS)

        b_read = b_state.to(TYPE)
        b_new = b_u.to(tl.float32) - tl.dot(b_w, b_read, input_precision="ieee")
        b_out = tl.dot(b_q, b_read, input_precision="ieee") * (tl.exp(b_g) * scale)
        b_out = tl.dot(b_scores, b_new.to(TYPE), b_out, input_precision="ieee")
        # The output takes u's place: these elements of the chunk are this program's alone.
        tl.store(p_u + o_head * V_DIM, b_out.to(TYPE), mask=m_i & m_v)
        b_new *= tl.exp(g_last - b_g)
        b_state *= tl.exp(g_last)
        b_state = tl.dot(tl.trans(b_k), b_new.to(TYPE), b_state, input_precision="ieee")
    tl.store(p_state, b_state, mask=m_state)


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
) -> Tensor:
    """`reference.gated_delta_rule` in chunks: all chunks at once, then the state through them.

    `state` is contiguous. In 16-bit dtypes the state is rounded to that dtype where it is read,
    and stays float32 where it is added to.
    """
    chunks = prepare_chunks(q, k, v, a, b, a_log, dt_bias, cu_seqlens, max_query_len)
    num_v_heads, k_dim, v_dim = state.shape[1:]
    block_v = min(BLOCK_V, max(16, next_power_of_2(v_dim)))
    grid = (cdiv(v_dim, block_v), state_indices.shape[0] * num_v_heads)
    delta_rule_state_kernel[grid](
        q,
        k,
        chunks.u,
        chunks.w,
        chunks.scores,
        chunks.log_decay,
        state,
        state_indices,
        cu_seqlens,
        context_lens,
        q.stride(0),
        k.stride(0),
        k_dim**-0.5,
        NUM_V_HEADS=num_v_heads,
        GROUP=num_v_heads // k.shape[1],
        K_DIM=k_dim,
        V_DIM=v_dim,
        CHUNK=CHUNK,
        BLOCK_K=max(16, next_power_of_2(k_dim)),
        BLOCK_V=block_v,
        num_warps=warps_for(v.dtype),
        num_stages=1 if v.dtype == torch.float32 else 2,
    )
    return chunks.u
