"""Triton's counter-based random numbers in plain torch, so that both devices draw alike.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10), with the
key, the order of the counter's words and the mapping to floats of `triton.language.random`.
Does not know triton: `engine.kernels.sampling` draws the same numbers there.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
LOW = 0xFFFFFFFF

# A counter's four words are for indices this far apart, so that a kernel uses all four without
# moving values between threads.
LANES = 4096
# The largest float32 whose product with 2**31 - 1, rounded, is below 1.
SCALE = 4.6566127342e-10
# Stands for the 0 of one draw in 2**31: half of the next larger number. A logarithm needs it.
SMALLEST = 2.0**-32

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of the product of two 32-bit numbers, inside int64's range."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF


def philox(key: tuple[int, int], counter: Words) -> Words:
    """Philox4x32-10 of int64 tensors that hold 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = multiply(c0, MULTIPLIERS[0])
        high2, low2 = multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high2 ^ c1 ^ k0, low2, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + KEY_STEPS[0] & LOW, k1 + KEY_STEPS[1] & LOW
    return c0, c1, c2, c3


def to_uniform(words: Tensor) -> Tensor:
    """32-bit words as float32 in (0, 1)."""
    folded = torch.where(words > LOW // 2, LOW - words, words)
    scale = torch.tensor(SCALE, dtype=torch.float32, device=words.device)
    return (folded.to(torch.float32) * scale).clamp_min(SMALLEST)


def uniform(seed: int, position: int, count: int, device: torch.device | str) -> Tensor:
    """The numbers in (0, 1) for tokens `0 … count - 1` of this `seed` and `position`.

    Token `i` has word `i // LANES % 4` of counter `(i // (4 * LANES) * LANES + i % LANES,
    position, 0, 0)`; the key is the 64 bits of `seed`. Returns `[count]` float32.
    """
    groups = -(-count // (4 * LANES))
    counters = torch.arange(groups * LANES, dtype=torch.int64, device=device)
    zeros = torch.zeros_like(counters)
    key = (seed & LOW, seed >> 32 & LOW)
    words = philox(key, (counters, zeros + (position & LOW), zeros, zeros))
    lanes = torch.stack([word.view(groups, LANES) for word in words], dim=1)
    return to_uniform(lanes.flatten()[:count])
