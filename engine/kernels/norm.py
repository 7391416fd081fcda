"""RMS norms over a hidden state and, gated, over the heads of linear attention.

Owns `rms_norm`, `add_rms_norm` and `gated_rms_norm`, one variant of each for every token count.
Last dimensions and weights are contiguous; row strides are a projection's width, which a model
fixes, and so may be specialised.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

GATED_BLOCK_ROWS = 8
GATED_NUM_WARPS = 4

STATEMENTS = {
    "rms_norm_kernel": one_variant,
    "add_rms_norm_kernel": one_variant,
    "gated_rms_norm_kernel": one_variant,
}


@triton.jit
def rms_norm_kernel(
    p_x,
    p_weight,
    p_out,
    x_stride,
    eps,
    WIDTH: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    o_width = tl.arange(0, BLOCK)
    m_width = o_width < WIDTH
    b_x = tl.load(p_x + i_row * x_stride + o_width, mask=m_width, other=0.0).to(tl.float32)
    b_weight = tl.load(p_weight + o_width, mask=m_width, other=0.0).to(tl.float32)
    if PLUS_ONE:
        b_weight += 1.0
    b_out = b_x * tl.rsqrt(tl.sum(b_x * b_x) / WIDTH + eps) * b_weight
    tl.store(p_out + i_row * WIDTH + o_width, b_out.to(p_out.dtype.element_ty), mask=m_width)


@triton.jit
def add_rms_norm_kernel(
    p_x,
    p_residual,
    p_weight,
    p_out,
    x_stride,
    residual_stride,
    eps,
    WIDTH: tl.constexpr,
    PLUS_ONE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_row = tl.program_id(0).to(tl.int64)
    o_width = tl.arange(0, BLOCK)
    m_width = o_width < WIDTH
    p_row = p_residual + i_row * residual_stride + o_width
    b_x = tl.load(p_x + i_row * x_stride + o_width, mask=m_width, other=0.0).to(tl.float32)
    b_sum = b_x + tl.load(p_row, mask=m_width, other=0.0).to(tl.float32)
    b_rounded = b_sum.to(p_residual.dtype.element_ty)
    tl.store(p_row, b_rounded, mask=m_width)
    b_sum = b_rounded.to(tl.float32)
    b_weight = tl.load(p_weight + o_width, mask=m_width, other=0.0).to(tl.float32)
    if PLUS_ONE:
        b_weight += 1.0
    b_out = b_sum * tl.rsqrt(tl.sum(b_sum * b_sum) / WIDTH + eps) * b_weight
    tl.store(p_out + i_row * WIDTH + o_width, b_out.to(p_out.dtype.element_ty), mask=m_width)


@triton.jit(do_not_specialize=["num_tokens"])
def gated_rms_norm_kernel(
    p_x,
    p_gate,
    p_weight,
    p_out,
    num_tokens,
    x_token_stride,
    x_head_stride,
    gate_token_stride,
    gate_head_stride,
    eps,
    NUM_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    # A row is one head of one token, so that a block is full whatever the model's head count.
    o_row = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    o_token, o_head = o_row // NUM_HEADS, o_row % NUM_HEADS
    o_dim = tl.arange(0, BLOCK_DIM)
    m_dim = o_dim < DIM
    m_x = (o_token < num_tokens)[:, None] & m_dim[None, :]
    o_x = o_token * x_token_stride + o_head * x_head_stride
    o_gate = o_token * gate_token_stride + o_head * gate_head_stride
    b_x = tl.load(p_x + o_x[:, None] + o_dim[None, :], mask=m_x, other=0.0).to(tl.float32)
    b_gate = tl.load(p_gate + o_gate[:, None] + o_dim[None, :], mask=m_x, other=0.0)
    b_gate = b_gate.to(tl.float32)
    b_weight = tl.load(p_weight + o_dim, mask=m_dim, other=0.0).to(tl.float32)
    b_scale = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / DIM + eps)
    # Rounded before the gate, as the reference rounds what its rms_norm returns.
    b_normed = (b_x * b_scale[:, None] * b_weight[None, :]).to(p_out.dtype.element_ty)
    b_out = b_normed.to(tl.float32) * b_gate * tl.sigmoid(b_gate)
    o_out = o_row[:, None] * DIM + o_dim[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_x)


def warps_for_row(block: int) -> int:
    """Warps for a program that holds one row: 8 values, a 16-byte load of bf16, per thread."""
    return min(max(block // 256, 1), 16)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
    """`reference.rms_norm` with one program for each token."""
    num_tokens, width = x.shape
    out = torch.empty((num_tokens, width), dtype=x.dtype, device=x.device)
    block = next_power_of_2(width)
    rms_norm_kernel[(num_tokens,)](
        x,
        weight,
        out,
        x.stride(0),
        eps,
        WIDTH=width,
        PLUS_ONE=plus_one,
        BLOCK=block,
        num_warps=warps_for_row(block),
    )
    return out


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False
) -> Tensor:
    """`reference.add_rms_norm` with the sum written and normalised in one pass."""
    num_tokens, width = x.shape
    out = torch.empty((num_tokens, width), dtype=residual.dtype, device=x.device)
    block = next_power_of_2(width)
    add_rms_norm_kernel[(num_tokens,)](
        x,
        residual,
        weight,
        out,
        x.stride(0),
        residual.stride(0),
        eps,
        WIDTH=width,
        PLUS_ONE=plus_one,
        BLOCK=block,
        num_warps=warps_for_row(block),
    )
    return out


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`reference.gated_rms_norm` with a block of heads and tokens for each program."""
    num_tokens, num_heads, dim = x.shape
    out = torch.empty((num_tokens, num_heads, dim), dtype=x.dtype, device=x.device)
    gated_rms_norm_kernel[(cdiv(num_tokens * num_heads, GATED_BLOCK_ROWS),)](
        x,
        gate,
        weight,
        out,
        num_tokens,
        x.stride(0),
        x.stride(1),
        gate.stride(0),
        gate.stride(1),
        eps,
        NUM_HEADS=num_heads,
        DIM=dim,
        BLOCK_ROWS=GATED_BLOCK_ROWS,
        BLOCK_DIM=next_power_of_2(dim),
        num_warps=GATED_NUM_WARPS,
    )
    return out
