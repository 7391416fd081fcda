"""The short causal convolution in front of linear attention, and its state of last inputs.

Owns `causal_conv1d` and `causal_conv1d_update`, one variant of each for every token count and
batch. Weights and states are contiguous; the row stride is a projection's width, which a model
fixes, and so may be specialised.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.sizes import cdiv, next_power_of_2
from engine.kernels.statements import one_variant

BLOCK_TOKENS = 32
BLOCK_CHANNELS = 128
UPDATE_BLOCK_CHANNELS = 128
NUM_WARPS = 4

STATEMENTS = {"causal_conv1d_kernel": one_variant, "causal_conv1d_update_kernel": one_variant}


@triton.jit
def causal_conv1d_kernel(
    p_x,
    p_weight,
    p_state,
    p_state_indices,
    p_cu_seqlens,
    p_context_lens,
    p_out,
    x_stride,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_TAPS: tl.constexpr,
):
    i_block, i_seq = tl.program_id(0), tl.program_id(1)
    PAST: tl.constexpr = TAPS - 1
    begin = tl.load(p_cu_seqlens + i_seq).to(tl.int64)
    length = (tl.load(p_cu_seqlens + i_seq + 1) - begin).to(tl.int32)
    if i_block * BLOCK_TOKENS >= length:
        return
    # What a new sequence's slot holds is not its past.
    past = tl.where(tl.load(p_context_lens + i_seq) > 0, PAST, 0)
    slot = tl.load(p_state_indices + i_seq).to(tl.int64)
    p_x += begin * x_stride
    p_state += slot * CHANNELS * PAST
    o_channel = tl.program_id(2) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    m_channel = o_channel < CHANNELS
    o_token = i_block * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    b_out = tl.zeros([BLOCK_TOKENS, BLOCK_CHANNELS], dtype=tl.float32)
    for i_tap in tl.static_range(TAPS):
        # Inputs before the sequence's first new token are the state's, oldest at column 0.
        o_input = o_token + (i_tap - PAST)
        m_x = ((o_input >= 0) & (o_input < length))[:, None] & m_channel[None, :]
        o_x = o_input.to(tl.int64)[:, None] * x_stride + o_channel[None, :]
        b_input = tl.load(p_x + o_x, mask=m_x, other=0.0).to(tl.float32)
        b_weight = tl.load(p_weight + o_channel * TAPS + i_tap, mask=m_channel, other=0.0)
        b_out += b_input * b_weight.to(tl.float32)[None, :]
    o_past = tl.arange(0, BLOCK_TAPS)
    if i_block == 0:
        # Only a sequence's first block reads or writes its state, so no other program races it.
        if past > 0:
            for i_tap in tl.static_range(PAST):
                o_state = o_token + i_tap
                m_state = (o_state < PAST)[:, None] & m_channel[None, :]
                p_input = p_state + o_channel[None, :] * PAST + o_state[:, None]
                b_input = tl.load(p_input, mask=m_state, other=0.0).to(tl.float32)
                b_weight = tl.load(p_weight + o_channel * TAPS + i_tap, mask=m_channel, other=0.0)
                b_out += b_input * b_weight.to(tl.float32)[None, :]
        o_last = length - PAST + o_past
        m_past = m_channel[:, None] & (o_past < PAST)[None, :]
        m_new = m_past & (o_last >= 0)[None, :]
        m_old = m_past & (o_past + length < past)[None, :]
        o_new = o_last.to(tl.int64)[None, :] * x_stride + o_channel[:, None]
        p_past = p_state + o_channel[:, None] * PAST + o_past[None, :]
        b_new = tl.load(p_x + o_new, mask=m_new, other=0.0).to(p_state.dtype.element_ty)
        b_old = tl.load(p_past + length, mask=m_old, other=0.0)
        # Other threads of this program may still be reading what is overwritten here.
        tl.debug_barrier()
        tl.store(p_past, tl.where(m_new, b_new, b_old), mask=m_past)
    m_out = (o_token < length)[:, None] & m_channel[None, :]
    o_out = (begin + o_token)[:, None] * CHANNELS + o_channel[None, :]
    b_out *= tl.sigmoid(b_out)
    tl.store(p_out + o_out, b_out.to(p_out.dtype.element_ty), mask=m_out)


@triton.jit
def causal_conv1d_update_kernel(
    p_x,
    p_weight,
    p_state,
    p_state_indices,
    p_out,
    x_stride,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
    BLOCK_TAPS: tl.constexpr,
):
    i_seq = tl.program_id(0).to(tl.int64)
    PAST: tl.constexpr = TAPS - 1
    slot = tl.load(p_state_indices + i_seq).to(tl.int64)
    o_channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    o_tap = tl.arange(0, BLOCK_TAPS)[None, :]
    m_channel = o_channel < CHANNELS
    m_taps = m_channel[:, None] & (o_tap < TAPS)
    m_past = m_channel[:, None] & (o_tap < PAST)
    p_past = p_state + slot * CHANNELS * PAST + o_channel[:, None] * PAST + o_tap
    b_past = tl.load(p_past, mask=m_past, other=0.0)
    b_x = tl.load(p_x + i_seq * x_stride + o_channel, mask=m_channel, other=0.0)
    p_tap = p_weight + o_channel[:, None] * TAPS + o_tap
    b_weight = tl.load(p_tap, mask=m_taps, other=0.0).to(tl.float32)
    b_inputs = tl.where(o_tap < PAST, b_past.to(tl.float32), b_x.to(tl.float32)[:, None])
    b_out = tl.sum(b_inputs * b_weight, axis=1)
    b_out *= tl.sigmoid(b_out)
    tl.store(p_out + i_seq * CHANNELS + o_channel, b_out.to(p_out.dtype.element_ty), mask=m_channel)
    # Every input moves one column to the left, where another thread may still be reading.
    tl.debug_barrier()
    tl.store(p_past - 1, b_inputs.to(p_state.dtype.element_ty), mask=m_taps & (o_tap > 0))


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    state: Tensor,
    state_indices: Tensor,
    cu_seqlens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
) -> Tensor:
    """`reference.causal_conv1d` with a block of one sequence's tokens for each program."""
    channels, taps = weight.shape
    num_seqs = state_indices.shape[0]
    assert taps <= BLOCK_TOKENS, "only a sequence's first block reads the state"
    out = torch.empty((x.shape[0], channels), dtype=x.dtype, device=x.device)
    grid = (
        cdiv(max_query_len, BLOCK_TOKENS),
        num_seqs,
        cdiv(channels, BLOCK_CHANNELS),
    )
    causal_conv1d_kernel[grid](
        x,
        weight,
        state,
        state_indices,
        cu_seqlens,
        context_lens,
        out,
        x.stride(0),
        CHANNELS=channels,
        TAPS=taps,
        BLOCK_TOKENS=BLOCK_TOKENS,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        BLOCK_TAPS=next_power_of_2(taps),
        num_warps=NUM_WARPS,
    )
    return out


def causal_conv1d_update(x: Tensor, weight: Tensor, state: Tensor, state_indices: Tensor) -> Tensor:
    """`reference.causal_conv1d_update` with a block of channels for each program."""
    num_seqs, (channels, taps) = x.shape[0], weight.shape
    out = torch.empty((num_seqs, channels), dtype=x.dtype, device=x.device)
    grid = (num_seqs, cdiv(channels, UPDATE_BLOCK_CHANNELS))
    causal_conv1d_update_kernel[grid](
        x,
        weight,
        state,
        state_indices,
        out,
        x.stride(0),
        CHANNELS=channels,
        TAPS=taps,
        BLOCK_CHANNELS=UPDATE_BLOCK_CHANNELS,
        BLOCK_TAPS=next_power_of_2(taps),
        num_warps=NUM_WARPS,
    )
    return out
