"""What happens to the query, key and value heads between their projection and attention.

Owns `rope_and_store`: head norms, rotary embedding and the paged store in one launch, one variant
for every token count. Last dimensions, weights and `cos_sin` are contiguous; both caches have the
same strides. Strides are set by projections and caches, which a model fixes, and so may be
specialised.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

BLOCK_TOKENS = 8
NUM_WARPS = 4

STATEMENTS = {"rope_and_store_kernel": one_variant}


@triton.jit
def rotate_heads(
    p_x,
    p_weight,
    p_angle,
    p_out,
    m_token,
    eps,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    """Norm and rotate one head of each token; `p_x, p_angle, p_out: [BLOCK_TOKENS]` begin rows."""
    HALF: tl.constexpr = ROTARY_DIM // 2
    o_half = tl.arange(0, BLOCK_HALF)[None, :]
    o_rest = ROTARY_DIM + tl.arange(0, BLOCK_REST)[None, :]
    m_half, m_rest = o_half < HALF, o_rest < HEAD_DIM
    m_x, m_x_rest = m_token[:, None] & m_half, m_token[:, None] & m_rest
    p_x, p_out, p_angle = p_x[:, None], p_out[:, None], p_angle[:, None] + o_half
    b_first = tl.load(p_x + o_half, mask=m_x, other=0.0).to(tl.float32)
    b_second = tl.load(p_x + HALF + o_half, mask=m_x, other=0.0).to(tl.float32)
    # A fully rotated head has no rest: its block is one masked column.
    b_rest = tl.load(p_x + o_rest, mask=m_x_rest, other=0.0).to(tl.float32)
    b_cos = tl.load(p_angle, mask=m_x, other=0.0)
    b_sin = tl.load(p_angle + HALF, mask=m_x, other=0.0)
    if p_weight is not None:
        b_squares = tl.sum(b_first * b_first + b_second * b_second, axis=1)
        b_squares += tl.sum(b_rest * b_rest, axis=1)
        b_scale = tl.rsqrt(b_squares / HEAD_DIM + eps)[:, None]
        b_weight_first = tl.load(p_weight + o_half, mask=m_half, other=0.0).to(tl.float32)
        b_weight_second = tl.load(p_weight + HALF + o_half, mask=m_half, other=0.0).to(tl.float32)
        b_weight_rest = tl.load(p_weight + o_rest, mask=m_rest, other=0.0).to(tl.float32)
        if PLUS_ONE:
            b_weight_first += 1.0
            b_weight_second += 1.0
            b_weight_rest += 1.0
        b_first *= b_scale * b_weight_first
        b_second *= b_scale * b_weight_second
        b_rest *= b_scale * b_weight_rest
    dtype = p_out.dtype.element_ty
    tl.store(p_out + o_half, (b_first * b_cos - b_second * b_sin).to(dtype), mask=m_x)
    tl.store(p_out + HALF + o_half, (b_second * b_cos + b_first * b_sin).to(dtype), mask=m_x)
    tl.store(p_out + o_rest, b_rest.to(dtype), mask=m_x_rest)


@triton.jit(do_not_specialize=["num_tokens"])
def rope_and_store_kernel(
    p_q,
    p_k,
    p_v,
    p_q_weight,
    p_k_weight,
    p_cos_sin,
    p_positions,
    p_slots,
    p_out,
    p_k_cache,
    p_v_cache,
    num_tokens,
    q_token_stride,
    q_head_stride,
    k_token_stride,
    k_head_stride,
    v_token_stride,
    v_head_stride,
    page_stride,
    offset_stride,
    cache_head_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr,
):
    # The heads of q, k and v in this order are the grid's second axis.
    i_head = tl.program_id(1)
    o_token = tl.program_id(0).to(tl.int64) * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    m_token = o_token < num_tokens
    b_position = tl.load(p_positions + o_token, mask=m_token, other=0).to(tl.int64)
    p_angle = p_cos_sin + b_position * ROTARY_DIM
    if i_head < NUM_HEADS:
        rotate_heads(
            p_q + o_token * q_token_stride + i_head * q_head_stride,
            p_q_weight,
            p_angle,
            p_out + (o_token * NUM_HEADS + i_head) * HEAD_DIM,
            m_token,
            eps,
            HEAD_DIM,
            ROTARY_DIM,
            PLUS_ONE,
            BLOCK_HALF,
            BLOCK_REST,
        )
    else:
        b_slot = tl.load(p_slots + o_token, mask=m_token, other=-1).to(tl.int64)
        m_stored = b_slot >= 0
        o_slot = b_slot // PAGE_SIZE * page_stride + b_slot % PAGE_SIZE * offset_stride
        i_kv_head = (i_head - NUM_HEADS) % NUM_KV_HEADS
        o_slot += i_kv_head * cache_head_stride
        if i_head < NUM_HEADS + NUM_KV_HEADS:
            rotate_heads(
                p_k + o_token * k_token_stride + i_kv_head * k_head_stride,
                p_k_weight,
                p_angle,
                p_k_cache + o_slot,
                m_stored,
                eps,
                HEAD_DIM,
                ROTARY_DIM,
                PLUS_ONE,
                BLOCK_HALF,
                BLOCK_REST,
            )
        else:
            o_dim = tl.arange(0, BLOCK_DIM)[None, :]
            m_v = m_stored[:, None] & (o_dim < HEAD_DIM)
            o_v = o_token * v_token_stride + i_kv_head * v_head_stride
            b_v = tl.load(p_v + o_v[:, None] + o_dim, mask=m_v, other=0.0)
            b_v = b_v.to(p_v_cache.dtype.element_ty)
            tl.store(p_v_cache + o_slot[:, None] + o_dim, b_v, mask=m_v)


def rope_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float,
    cos_sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    *,
    plus_one: bool = False,
) -> Tensor:
    """`reference.rope_and_store` with one head of a block of tokens for each program."""
    assert k_cache.stride() == v_cache.stride(), "the caches are laid out alike"
    assert (q_weight is None) == (k_weight is None), "both heads are normalised or neither"
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, rotary_dim = k.shape[1], cos_sin.shape[1]
    out = torch.empty((num_tokens, num_heads, head_dim), dtype=q.dtype, device=q.device)
    grid = (cdiv(num_tokens, BLOCK_TOKENS), num_heads + 2 * num_kv_heads)
    rope_and_store_kernel[grid](
        q,
        k,
        v,
        q_weight,
        k_weight,
        cos_sin,
        positions,
        slot_mapping,
        out,
        k_cache,
        v_cache,
        num_tokens,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        *k_cache.stride()[:3],
        eps,
        NUM_HEADS=num_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotary_dim,
        PAGE_SIZE=k_cache.shape[1],
        PLUS_ONE=plus_one,
        BLOCK_TOKENS=BLOCK_TOKENS,
        BLOCK_DIM=next_power_of_2(head_dim),
        BLOCK_HALF=next_power_of_2(rotary_dim // 2),
        BLOCK_REST=next_power_of_2(max(head_dim - rotary_dim, 1)),
        num_warps=NUM_WARPS,
    )
    return out
