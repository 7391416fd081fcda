"""The SwiGLU activation of a dense or shared network.

Owns `silu_and_mul`, one variant for every token count. The row stride is a projection's width,
which a model fixes, and so may be specialised.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

MAX_BLOCK = 1024

STATEMENTS = {"silu_and_mul_kernel": one_variant}


@triton.jit
def silu_and_mul_kernel(p_x, p_out, x_stride, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i_row = tl.program_id(0).to(tl.int64)
    o_width = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_width = o_width < WIDTH
    p_gate = p_x + i_row * x_stride + o_width
    b_gate = tl.load(p_gate, mask=m_width, other=0.0).to(tl.float32)
    b_up = tl.load(p_gate + WIDTH, mask=m_width, other=0.0).to(tl.float32)
    b_out = b_gate * tl.sigmoid(b_gate) * b_up
    tl.store(p_out + i_row * WIDTH + o_width, b_out.to(p_out.dtype.element_ty), mask=m_width)


def silu_and_mul(x: Tensor) -> Tensor:
    """`reference.silu_and_mul` with a block of one token's columns for each program."""
    num_tokens, width = x.shape[0], x.shape[1] // 2
    out = torch.empty((num_tokens, width), dtype=x.dtype, device=x.device)
    block = min(MAX_BLOCK, next_power_of_2(width))
    silu_and_mul_kernel[(num_tokens, cdiv(width, block))](
        x,
        out,
        x.stride(0),
        WIDTH=width,
        BLOCK=block,
        # 8 values, a 16-byte load of bf16, per thread.
        num_warps=max(block // 256, 1),
    )
    return out
