"""The routed experts' networks from the sort of tokens to the weighted sum.

Owns `experts`: four launches, three of them with the tile that the token count asks for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.alignment import align
from engine.kernels.grouped_matmul import down_matmul, gate_up_matmul, tile_for, tile_starts
from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant_with_experts

MAX_BLOCK = 1024

# The sort is cut into the matmuls' tiles.
STATEMENTS = {"align_kernel": tile_starts, "weighted_sum_kernel": one_variant_with_experts}


@triton.jit(do_not_specialize=["shared_gate_stride"])
def weighted_sum_kernel(
    p_rows,
    p_weights,
    p_shared,
    p_shared_gate,
    p_out,
    shared_stride,
    shared_gate_stride,
    HIDDEN: tl.constexpr,
    TOP_K: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i_token = tl.program_id(0).to(tl.int64)
    o_hidden = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m_hidden = o_hidden < HIDDEN
    b_out = tl.zeros((BLOCK,), tl.float32)
    for i_k in tl.static_range(TOP_K):
        i_pair = i_token * TOP_K + i_k
        b_row = tl.load(p_rows + i_pair * HIDDEN + o_hidden, mask=m_hidden, other=0.0)
        b_out += tl.load(p_weights + i_pair) * b_row.to(tl.float32)
    if HAS_SHARED:
        gate = tl.load(p_shared_gate + i_token * shared_gate_stride).to(tl.float32)
        p_shared_row = p_shared + i_token * shared_stride + o_hidden
        b_shared = tl.load(p_shared_row, mask=m_hidden, other=0.0).to(tl.float32)
        b_out += tl.sigmoid(gate) * b_shared
    p_out_row = p_out + i_token * HIDDEN + o_hidden
    tl.store(p_out_row, b_out.to(p_out.dtype.element_ty), mask=m_hidden)


def weighted_sum(
    rows: Tensor, weights: Tensor, shared: Tensor | None, shared_gate: Tensor | None
) -> Tensor:
    """`Σ weights * rows` of each token, plus `sigmoid(shared_gate) * shared` where given.

    `rows: [num_tokens * top_k, hidden]`; the others as in `reference.experts`.
    """
    (num_tokens, top_k), hidden = weights.shape, rows.shape[1]
    has_shared = shared is not None and shared_gate is not None
    out = torch.empty((num_tokens, hidden), dtype=rows.dtype, device=rows.device)
    block = min(MAX_BLOCK, next_power_of_2(hidden))
    weighted_sum_kernel[(num_tokens, cdiv(hidden, block))](
        rows,
        weights,
        shared if has_shared else None,
        shared_gate if has_shared else None,
        out,
        shared.stride(0) if shared is not None else 0,
        shared_gate.stride(0) if shared_gate is not None else 0,
        HIDDEN=hidden,
        TOP_K=top_k,
        HAS_SHARED=has_shared,
        BLOCK=block,
        # 8 values, a 16-byte load of bf16, per thread.
        num_warps=max(block // 256, 1),
    )
    return out


def experts(
    x: Tensor,
    weights: Tensor,
    expert_ids: Tensor,
    gate_up: Tensor,
    down: Tensor,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """`reference.experts` with the rows sorted by expert, gate and up never in memory."""
    num_experts, top_k = gate_up.shape[0], weights.shape[1]
    tile = tile_for(expert_ids.numel(), num_experts, x.dtype)
    pairs, tiles = align(expert_ids, num_experts, tile.block_m)
    hidden = gate_up_matmul(x, pairs, tiles, gate_up, top_k, tile)
    rows = down_matmul(hidden, pairs, tiles, down, tile)
    return weighted_sum(rows, weights, shared, shared_gate)
