"""The draw of each sequence's next token from its logits.

Owns `sample`: one launch and one variant for every mix of parameters, which are read from device
memory and only decide how often a row is gone over.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import philox
from engine.kernels.statements import one_variant

BLOCK = philox.LANES
# Passes without pivots or noise have the registers for more: their time is that of a load's way.
SCAN = 4 * BLOCK
# Thresholds tried in one pass over a row: nine parts, so that 32 bits take ten passes.
PIVOTS = 8
NUM_WARPS = 32

STATEMENTS = {"sample_kernel": one_variant}
# The parameters that a warmup must draw with to have met every variant: all are read from memory.
SAMPLING_VARIANTS: tuple[dict[str, float], ...] = ({"temperature": 0.0},)


@triton.jit
def to_key(b_value):
    """float32 as int32 in the same order."""
    b_bits = b_value.to(tl.int32, bitcast=True)
    return b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)


@triton.jit
def load_scaled(p_row, o_token, temperature, VOCAB: tl.constexpr):
    """Logits over the temperature, -inf beyond the vocabulary."""
    b_logits = tl.load(p_row + o_token, mask=o_token < VOCAB, other=float("-inf"))
    return b_logits.to(tl.float32) / temperature


@triton.jit
def find_threshold(
    p_row,
    temperature,
    largest,
    floor,
    target,
    VOCAB: tl.constexpr,
    BY_MASS: tl.constexpr,
    BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    """The highest key at or above which there are `target` tokens, or is `target` of mass.

    Only tokens whose key is `floor` or more count; a token's mass is relative to the largest's.
    """
    o_token = tl.arange(0, BLOCK)
    o_pivot = tl.arange(0, PIVOTS)
    # Enough lies at or above `reached`, and too little at or above `missed`.
    reached = floor.to(tl.int64)
    missed = to_key(largest).to(tl.int64) + 1
    while missed - reached > 1:
        b_pivot = reached + (missed - reached) * (o_pivot + 1) // (PIVOTS + 1)
        b_sums = tl.zeros((BLOCK, PIVOTS), tl.float32)
        for start in range(0, VOCAB, BLOCK):
            b_scaled = load_scaled(p_row, start + o_token, temperature, VOCAB)
            b_key = to_key(b_scaled)
            b_counts = (start + o_token < VOCAB) & (b_key >= floor)
            b_share = tl.exp(b_scaled - largest) if BY_MASS else tl.full((BLOCK,), 1.0, tl.float32)
            b_share = tl.where(b_counts, b_share, 0.0)
            b_above = b_key[:, None] >= b_pivot.to(tl.int32)[None, :]
            b_sums += tl.where(b_above, b_share[:, None], 0.0)
        b_reached = tl.sum(b_sums, 0) >= target
        # Sums fall along the pivots: those that reach the target come first.
        next_reached = tl.max(tl.where(b_reached, b_pivot, reached))
        missed = tl.min(tl.where(b_reached, missed, b_pivot))
        reached = next_reached
    return reached.to(tl.int32)


@triton.jit
def uniform(b_word):
    """Random 32-bit words as `engine.kernels.philox.to_uniform` makes them."""
    b_folded = b_word.to(tl.int32, bitcast=True)
    b_folded = tl.where(b_folded < 0, -b_folded - 1, b_folded)
    return tl.maximum(b_folded.to(tl.float32) * 4.6566127342e-10, 2.3283064365386963e-10)


@triton.jit
def better(best, p_row, o_token, b_word, temperature, floor, VOCAB: tl.constexpr):
    """Each lane's best value and its token, after the tokens `o_token` with their noise."""
    b_best, b_token = best
    b_scaled = load_scaled(p_row, o_token, temperature, VOCAB)
    b_noisy = b_scaled - tl.log(-tl.log(uniform(b_word)))
    b_kept = (o_token < VOCAB) & (to_key(b_scaled) >= floor)
    b_noisy = tl.where(b_kept, b_noisy, float("-inf"))
    b_wins = b_noisy > b_best
    return tl.where(b_wins, b_noisy, b_best), tl.where(b_wins, o_token, b_token)


@triton.jit
def first_of_best(b_best, b_token, VOCAB: tl.constexpr):
    """The lowest token among the lanes that hold the best value."""
    return tl.min(tl.where(b_best == tl.max(b_best), b_token, VOCAB - 1))


@triton.jit
def draw(p_row, seed, position, temperature, floor, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """A token of those at or above `floor`, by the Gumbel trick."""
    o_lane = tl.arange(0, BLOCK)
    b_best = tl.full((BLOCK,), float("-inf"), tl.float32)
    b_token = tl.full((BLOCK,), VOCAB - 1, tl.int32)
    b_zero = tl.zeros((BLOCK,), tl.int32)
    for i_group in range(0, tl.cdiv(VOCAB, 4 * BLOCK)):
        b_counter = i_group * BLOCK + o_lane
        b_w0, b_w1, b_w2, b_w3 = tl.philox(seed, b_counter, b_zero + position, b_zero, b_zero)
        o_token = i_group * 4 * BLOCK + o_lane
        best = b_best, b_token
        best = better(best, p_row, o_token, b_w0, temperature, floor, VOCAB)
        best = better(best, p_row, o_token + BLOCK, b_w1, temperature, floor, VOCAB)
        best = better(best, p_row, o_token + 2 * BLOCK, b_w2, temperature, floor, VOCAB)
        best = better(best, p_row, o_token + 3 * BLOCK, b_w3, temperature, floor, VOCAB)
        b_best, b_token = best
    return first_of_best(b_best, b_token, VOCAB)


@triton.jit
def mass_above(p_row, temperature, largest, floor, VOCAB: tl.constexpr, SCAN: tl.constexpr):
    """The sum of `exp(scaled - largest)` over tokens at or above `floor`."""
    o_lane = tl.arange(0, SCAN)
    b_sum = tl.zeros((SCAN,), tl.float32)
    for start in range(0, VOCAB, SCAN):
        b_scaled = load_scaled(p_row, start + o_lane, temperature, VOCAB)
        b_sum += tl.where(to_key(b_scaled) >= floor, tl.exp(b_scaled - largest), 0.0)
    return tl.sum(b_sum)


@triton.jit(do_not_specialize=["logits_stride"])
def sample_kernel(
    p_logits,
    p_temperature,
    p_top_k,
    p_top_p,
    p_min_p,
    p_seeds,
    p_positions,
    p_tokens,
    p_logprobs,
    logits_stride,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    SCAN: tl.constexpr,
    PIVOTS: tl.constexpr,
):
    i_row = tl.program_id(0)
    p_row = p_logits + i_row.to(tl.int64) * logits_stride
    o_lane = tl.arange(0, SCAN)
    b_best = tl.full((SCAN,), float("-inf"), tl.float32)
    b_token = tl.full((SCAN,), VOCAB - 1, tl.int32)
    for start in range(0, VOCAB, SCAN):
        b_logits = load_scaled(p_row, start + o_lane, 1.0, VOCAB)
        b_wins = b_logits > b_best
        b_best = tl.where(b_wins, b_logits, b_best)
        b_token = tl.where(b_wins, start + o_lane, b_token)
    largest = tl.max(b_best)
    token = first_of_best(b_best, b_token, VOCAB)
    everything = to_key(tl.full((), float("-inf"), tl.float32))
    total = mass_above(p_row, 1.0, largest, everything, VOCAB, SCAN)

    temperature = tl.load(p_temperature + i_row)
    if temperature > 0:
        highest = largest / temperature
        floor = everything
        top_k = tl.load(p_top_k + i_row)
        if (top_k > 0) & (top_k < VOCAB):
            floor = find_threshold(
                p_row, temperature, highest, floor, top_k, VOCAB, False, BLOCK, PIVOTS)  # fmt: skip
        top_p = tl.load(p_top_p + i_row)
        if top_p < 1:
            mass = top_p * mass_above(p_row, temperature, highest, floor, VOCAB, SCAN)
            floor = find_threshold(
                p_row, temperature, highest, floor, mass, VOCAB, True, BLOCK, PIVOTS)  # fmt: skip
        min_p = tl.load(p_min_p + i_row)
        if min_p > 0:
            floor = tl.maximum(floor, to_key(highest + tl.log(min_p)))
        seed, position = tl.load(p_seeds + i_row), tl.load(p_positions + i_row)
        token = draw(p_row, seed, position, temperature, floor, VOCAB, BLOCK)

    chosen = tl.load(p_row + token).to(tl.float32)
    tl.store(p_tokens + i_row, token.to(tl.int64))
    tl.store(p_logprobs + i_row, chosen - largest - tl.log(total))


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor]:
    """`reference.sample` with each threshold found by narrowing it down in passes over the row.

    Masses are float32 sums: a token whose probability decides whether `top_p` is reached by less
    than 1e-6 may fall on the other side.
    """
    num_seqs, vocab_size = logits.shape
    tokens = torch.empty((num_seqs,), dtype=torch.int64, device=logits.device)
    logprobs = torch.empty((num_seqs,), dtype=torch.float32, device=logits.device)
    sample_kernel[(num_seqs,)](
        logits,
        temperature,
        top_k,
        top_p,
        min_p,
        seeds,
        positions,
        tokens,
        logprobs,
        logits.stride(0),
        VOCAB=vocab_size,
        BLOCK=BLOCK,
        SCAN=SCAN,
        PIVOTS=PIVOTS,
        num_warps=NUM_WARPS,
    )
    return tokens, logprobs
