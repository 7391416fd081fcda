"""The L2 norm of the query and key heads of linear attention.

Owns `l2_norm`. Its length is a runtime argument that is not specialised and its block is one
configuration, so that one variant serves every prompt; nothing here depends on the token count.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

BLOCK_ROWS = 16
NUM_WARPS = 4

STATEMENTS = {"l2norm_kernel": one_variant}


@triton.jit(do_not_specialize=["num_tokens"])
def l2norm_kernel(
    p_x,
    p_out,
    num_tokens,
    token_stride,
    head_stride,
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
    m_x = (o_token < num_tokens)[:, None] & (o_dim < DIM)[None, :]
    o_x = o_token * token_stride + o_head * head_stride
    b_x = tl.load(p_x + o_x[:, None] + o_dim[None, :], mask=m_x, other=0.0).to(tl.float32)
    b_out = b_x * tl.rsqrt(tl.sum(b_x * b_x, axis=1) + eps)[:, None]
    o_out = o_row[:, None] * DIM + o_dim[None, :]
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_x)


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """`reference.l2_norm` with a block of heads and tokens for each program."""
    num_tokens, num_heads, dim = x.shape
    out = torch.empty((num_tokens, num_heads, dim), dtype=x.dtype, device=x.device)
    l2norm_kernel[(cdiv(num_tokens * num_heads, BLOCK_ROWS),)](
        x,
        out,
        num_tokens,
        x.stride(0),
        x.stride(1),
        eps,
        NUM_HEADS=num_heads,
        DIM=dim,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_DIM=next_power_of_2(dim),
        num_warps=NUM_WARPS,
    )
    return out
