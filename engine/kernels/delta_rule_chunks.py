"""The part of the gated delta rule that chunks of a sequence do each for themselves, in parallel.

Owns the gates, one chunk's triangular inverse, and the launch that gives `delta_rule` what is left
to do once a chunk's initial state is known. With `S` that state, `g` the running sum of the decays'
logarithms in the chunk, and `L[i, j] = beta[i] (k[i] · k[j]) exp(g[i] - g[j])` for `i > j`, the
chunk writes `u - w S` to the state, where `u = A beta v`, `w = A beta exp(g) k` and
`A = (I + L)^-1`. Source: Gated Delta Networks, arXiv 2412.06464.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

CHUNK = 64


def warps_for(dtype: torch.dtype) -> int:
    """The warps of both kernels.

    Two are no warpgroup: with four, Triton 3.6 multiplies 16-bit tiles by wgmma and gets rows from
    the 16th on wrong, or reads outside shared memory (triton-lang/triton#11366; seen on an H200).
    """
    return 4 if dtype == torch.float32 else 2


@dataclass(frozen=True, slots=True)
class Chunks:
    """What the launch leaves for every token and value head.

    `u: [num_tokens, num_v_heads, v_dim]` and `w: [num_tokens, num_v_heads, k_dim]`;
    `scores: [num_tokens, num_v_heads, CHUNK]`, how much a token reads of what the chunk's tokens
    write; `log_decay: [num_tokens, num_v_heads]` float32, summed from the chunk's first token on.
    """

    u: Tensor
    w: Tensor
    scores: Tensor
    log_decay: Tensor


STATEMENTS = {"delta_rule_chunk_kernel": one_variant}


@triton.jit
def load_gates(p_a, p_b, p_a_log, p_dt_bias, mask):
    """The decay's logarithm and beta in float32, finite where masked, of one head's `a` and `b`."""
    b_x = tl.load(p_a, mask=mask, other=0.0).to(tl.float32) + tl.load(p_dt_bias)
    # softplus(x) = max(x, 0) + log1p(exp(-|x|)). A slow decay is only as exact as log1p is for
    # small arguments, where 1 + y loses most of y: scaling by y / ((1 + y) - 1) restores it.
    b_y = tl.exp(-tl.abs(b_x))
    b_sum = 1.0 + b_y
    b_log1p = tl.where(b_sum == 1.0, b_y, tl.log(b_sum) * (b_y / tl.maximum(b_sum - 1.0, 1e-30)))
    b_log_decay = -tl.exp(tl.load(p_a_log)) * (tl.maximum(b_x, 0.0) + b_log1p)
    b_beta = tl.sigmoid(tl.load(p_b, mask=mask, other=0.0).to(tl.float32))
    return b_log_decay, b_beta


@triton.jit
def invert_unit_lower(b_lower, LEVELS: tl.constexpr, TYPE: tl.constexpr):
    """`(I + b_lower)^-1` for a strictly lower triangular `[2**LEVELS, 2**LEVELS]`.

    Inverses of the diagonal blocks of size 1, 2, 4, …: two neighbours A, B with C below A and left
    of B have the inverse [[A^-1, 0], [-B^-1 C A^-1, B^-1]]. Here the blocks are products of
    contractions (I - beta k k^T), so no intermediate value is much larger than 1: that is why it is
    exact where powers of `b_lower` explode, and why float16 will do for 16-bit inputs.
    """
    o_i = tl.arange(0, 2**LEVELS)
    # The highest bit in which row and column differ is the size of the blocks they meet in.
    b_bits = o_i[:, None] ^ o_i[None, :]
    b_inverse = tl.where(b_bits == 0, 1.0, tl.where(b_bits == 1, -b_lower, 0.0))
    for i_level in range(1, LEVELS):
        b_corner = tl.where((b_bits >> i_level) == 1, b_lower, 0.0).to(TYPE)
        b_blocks = b_inverse.to(TYPE)
        b_product = tl.dot(b_blocks, b_corner, input_precision="ieee").to(TYPE)
        b_inverse -= tl.dot(b_product, b_blocks, input_precision="ieee")
    return b_inverse


@triton.jit(do_not_specialize=["a_stride", "b_stride"])
def delta_rule_chunk_kernel(
    p_q,
    p_k,
    p_v,
    p_a,
    p_b,
    p_a_log,
    p_dt_bias,
    p_cu_seqlens,
    p_u,
    p_w,
    p_scores,
    p_log_decay,
    q_stride,
    k_stride,
    v_stride,
    a_stride,
    b_stride,
    scale,
    NUM_V_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    LEVELS: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    CHUNK: tl.constexpr = 2**LEVELS
    TYPE: tl.constexpr = p_v.dtype.element_ty
    MERGE_TYPE: tl.constexpr = tl.float32 if p_v.dtype.element_ty == tl.float32 else tl.float16
    i_seq, i_v_head = tl.program_id(1) // NUM_V_HEADS, tl.program_id(1) % NUM_V_HEADS
    i_k_head = i_v_head // GROUP
    end = tl.load(p_cu_seqlens + i_seq + 1)
    first = tl.load(p_cu_seqlens + i_seq) + tl.program_id(0) * CHUNK
    if first >= end:
        return
    o_i = tl.arange(0, CHUNK)
    o_k, o_v = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_V)
    m_i = first + o_i < end
    m_k = m_i[:, None] & (o_k < K_DIM)[None, :]
    m_v = m_i[:, None] & (o_v < V_DIM)[None, :]
    o_token = first.to(tl.int64) + o_i
    o_row = o_token * NUM_V_HEADS + i_v_head

    p_a += o_token * a_stride + i_v_head
    p_b += o_token * b_stride + i_v_head
    b_g, b_beta = load_gates(p_a, p_b, p_a_log + i_v_head, p_dt_bias + i_v_head, m_i)
    b_g = tl.cumsum(b_g, 0)
    tl.store(p_log_decay + o_row, b_g, mask=m_i)
    # Where i < j the difference is positive and its exponential may overflow.
    m_past = o_i[:, None] >= o_i[None, :]
    b_decay = tl.exp(tl.where(m_past, b_g[:, None] - b_g[None, :], float("-inf")))

    p_k += i_k_head * K_DIM + o_token[:, None] * k_stride + o_k[None, :]
    b_k = tl.load(p_k, mask=m_k, other=0.0)
    b_lower = tl.dot(b_k, tl.trans(b_k), input_precision="ieee") * b_decay * b_beta[:, None]
    b_lower = tl.where(o_i[:, None] > o_i[None, :], b_lower, 0.0)
    p_q += i_k_head * K_DIM + o_token[:, None] * q_stride + o_k[None, :]
    b_q = tl.load(p_q, mask=m_k, other=0.0)
    b_scores = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * b_decay * scale
    p_scores += o_row[:, None] * CHUNK + o_i[None, :]
    tl.store(p_scores, b_scores.to(TYPE), mask=m_i[:, None])

    b_inverse = invert_unit_lower(b_lower, LEVELS, MERGE_TYPE) * b_beta[None, :]
    p_v += i_v_head * V_DIM + o_token[:, None] * v_stride + o_v[None, :]
    b_v = tl.load(p_v, mask=m_v, other=0.0)
    b_u = tl.dot(b_inverse.to(TYPE), b_v, input_precision="ieee")
    tl.store(p_u + o_row[:, None] * V_DIM + o_v[None, :], b_u.to(TYPE), mask=m_v)
    b_w = tl.dot((b_inverse * tl.exp(b_g)[None, :]).to(TYPE), b_k, input_precision="ieee")
    tl.store(p_w + o_row[:, None] * K_DIM + o_k[None, :], b_w.to(TYPE), mask=m_k)


def prepare_chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    cu_seqlens: Tensor,
    max_query_len: int,
) -> Chunks:
    """Compute `Chunks` with a program for each chunk and value head; arguments as in reference."""
    num_tokens, num_k_heads, k_dim = k.shape
    num_v_heads, v_dim = v.shape[1:]

    def empty(width: int) -> Tensor:
        return torch.empty((num_tokens, num_v_heads, width), dtype=v.dtype, device=v.device)

    log_decay = torch.empty((num_tokens, num_v_heads), dtype=torch.float32, device=v.device)
    chunks = Chunks(empty(v_dim), empty(k_dim), empty(CHUNK), log_decay)
    grid = (cdiv(max_query_len, CHUNK), (cu_seqlens.shape[0] - 1) * num_v_heads)
    delta_rule_chunk_kernel[grid](
        q,
        k,
        v,
        a,
        b,
        a_log,
        dt_bias,
        cu_seqlens,
        chunks.u,
        chunks.w,
        chunks.scores,
        chunks.log_decay,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        a.stride(0),
        b.stride(0),
        k_dim**-0.5,
        NUM_V_HEADS=num_v_heads,
        GROUP=num_v_heads // num_k_heads,
        K_DIM=k_dim,
        V_DIM=v_dim,
        LEVELS=CHUNK.bit_length() - 1,
        BLOCK_K=max(16, next_power_of_2(k_dim)),
        BLOCK_V=max(16, next_power_of_2(v_dim)),
        num_warps=warps_for(v.dtype),
        num_stages=1,
    )
    return chunks
