"""The choice of experts for each token.

Owns `route`, one variant for every token count.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sizes import next_power_of_2
from engine.kernels.statements import one_variant_with_experts

# A row of experts is 8 values per thread of a warp at most for the models known; more warps would
# only meet in shared memory at each of the top_k maxima.
NUM_WARPS = 1

STATEMENTS = {"route_kernel": one_variant_with_experts}


@triton.jit(do_not_specialize=["logits_stride"])
def route_kernel(
    p_logits,
    p_weights,
    p_expert_ids,
    logits_stride,
    NUM_EXPERTS: tl.constexpr,
    TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    BLOCK_EXPERTS: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    i_token = tl.program_id(0).to(tl.int64)
    o_expert = tl.arange(0, BLOCK_EXPERTS)
    o_k = tl.arange(0, BLOCK_K)
    m_expert = o_expert < NUM_EXPERTS
    p_row = p_logits + i_token * logits_stride + o_expert
    b_logits = tl.load(p_row, mask=m_expert, other=float("-inf")).to(tl.float32)
    b_exp = tl.exp(b_logits - tl.max(b_logits))
    # Below every probability, so that padding is never chosen, nor an expert twice.
    b_left = tl.where(m_expert, b_exp / tl.sum(b_exp), -1.0)
    b_weights = tl.zeros((BLOCK_K,), tl.float32)
    b_ids = tl.zeros((BLOCK_K,), tl.int32)
    for i_k in tl.static_range(TOP_K):
        best = tl.max(b_left)
        expert = tl.min(tl.where(b_left == best, o_expert, BLOCK_EXPERTS))
        b_left = tl.where(o_expert == expert, -1.0, b_left)
        b_weights = tl.where(o_k == i_k, best, b_weights)
        # NaN equals nothing: a token of a padded batch must still name an expert there is.
        b_ids = tl.where(o_k == i_k, tl.minimum(expert, NUM_EXPERTS - 1), b_ids)
    if RENORMALIZE:
        b_weights /= tl.sum(b_weights)
    o_out = i_token * TOP_K + o_k
    tl.store(p_weights + o_out, b_weights, mask=o_k < TOP_K)
    tl.store(p_expert_ids + o_out, b_ids, mask=o_k < TOP_K)


def route(logits: Tensor, top_k: int, *, renormalize: bool) -> tuple[Tensor, Tensor]:
    """`reference.route` with one warp for each token."""
    num_tokens, num_experts = logits.shape
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    expert_ids = torch.empty((num_tokens, top_k), dtype=torch.int32, device=logits.device)
    route_kernel[(num_tokens,)](
        logits,
        weights,
        expert_ids,
        logits.stride(0),
        NUM_EXPERTS=num_experts,
        TOP_K=top_k,
        RENORMALIZE=renormalize,
        BLOCK_EXPERTS=next_power_of_2(num_experts),
        BLOCK_K=next_power_of_2(top_k),
        num_warps=NUM_WARPS,
    )
    return weights, expert_ids
