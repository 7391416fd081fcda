"""One token of the gated delta rule for each sequence.

Owns `gated_delta_rule_update`: one launch that reads and writes the state once, one variant for a
model and dtype.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.delta_rule_chunks import load_gates
from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

BLOCK_V = 32
NUM_WARPS = 4

STATEMENTS = {"delta_rule_update_kernel": one_variant}


@triton.jit(do_not_specialize=["q_stride", "k_stride", "v_stride", "a_stride", "b_stride"])
def delta_rule_update_kernel(
    p_q,
    p_k,
    p_v,
    p_a,
    p_b,
    p_a_log,
    p_dt_bias,
    p_state,
    p_state_indices,
    p_out,
    q_stride,
    k_stride,
    v_stride,
    a_stride,
    b_stride,
    scale,
    eps,
    NUM_V_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    i_seq = (tl.program_id(1) // NUM_V_HEADS).to(tl.int64)
    i_v_head = tl.program_id(1) % NUM_V_HEADS
    i_k_head = i_v_head // GROUP
    o_k = tl.arange(0, BLOCK_K)
    o_v = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_k, m_v = o_k < K_DIM, o_v < V_DIM
    slot = tl.load(p_state_indices + i_seq).to(tl.int64)
    p_state += (slot * NUM_V_HEADS + i_v_head) * K_DIM * V_DIM
    p_state += o_k[:, None] * V_DIM + o_v[None, :]
    b_state = tl.load(p_state, mask=m_k[:, None] & m_v[None, :], other=0.0)
    p_q += i_seq * q_stride + i_k_head * K_DIM
    p_k += i_seq * k_stride + i_k_head * K_DIM
    p_v += i_seq * v_stride + i_v_head * V_DIM
    b_q = tl.load(p_q + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_k = tl.load(p_k + o_k, mask=m_k, other=0.0).to(tl.float32)
    b_v = tl.load(p_v + o_v, mask=m_v, other=0.0).to(tl.float32)
    p_a += i_seq * a_stride + i_v_head
    p_b += i_seq * b_stride + i_v_head
    log_decay, beta = load_gates(p_a, p_b, p_a_log + i_v_head, p_dt_bias + i_v_head, True)
    decay = tl.exp(log_decay)
    b_q *= tl.rsqrt(tl.sum(b_q * b_q, 0) + eps) * scale
    b_k *= tl.rsqrt(tl.sum(b_k * b_k, 0) + eps)

    # Both reads are of the old state, so that neither waits for the other: the query's share of
    # what the key writes is added to it.
    b_known = tl.sum(b_state * b_k[:, None], 0) * decay
    b_read = tl.sum(b_state * b_q[:, None], 0) * decay
    b_new = (b_v - b_known) * beta
    b_out = b_read + tl.sum(b_q * b_k, 0) * b_new
    p_out += tl.program_id(1).to(tl.int64) * V_DIM + o_v
    tl.store(p_out, b_out.to(p_out.dtype.element_ty), mask=m_v)
    b_state = b_state * decay + b_k[:, None] * b_new[None, :]
    tl.store(p_state, b_state, mask=m_k[:, None] & m_v[None, :])


def gated_delta_rule_update(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    state: Tensor,
    state_indices: Tensor,
    eps: float = 1e-6,
) -> Tensor:
    """`reference.gated_delta_rule_update` with a block of one head's values for each program.

    `state` is contiguous, and no two sequences share a slot.
    """
    num_seqs, num_v_heads, v_dim = v.shape
    num_k_heads, k_dim = k.shape[1:]
    block_v = min(BLOCK_V, next_power_of_2(v_dim))
    out = torch.empty((num_seqs, num_v_heads, v_dim), dtype=v.dtype, device=v.device)
    delta_rule_update_kernel[(cdiv(v_dim, block_v), num_seqs * num_v_heads)](
        q,
        k,
        v,
        a,
        b,
        a_log,
        dt_bias,
        state,
        state_indices,
        out,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        a.stride(0),
        b.stride(0),
        k_dim**-0.5,
        eps,
        NUM_V_HEADS=num_v_heads,
        GROUP=num_v_heads // num_k_heads,
        K_DIM=k_dim,
        V_DIM=v_dim,
        BLOCK_K=next_power_of_2(k_dim),
        BLOCK_V=block_v,
        num_warps=NUM_WARPS,
    )
    return out
