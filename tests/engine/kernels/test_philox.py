"""Random numbers: the published ones, and the kernel's bit for bit."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from engine.kernels import philox, sampling

ONES = 0xFFFFFFFF
# (counter, key, words): the known-answer vectors of Random123's Philox4x32-10.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    given = tuple(torch.tensor([word]) for word in counter)
    assert tuple(word.item() for word in philox.philox(key, given)) == words


@triton.jit
def uniform_kernel(p_out, p_seed, position, BLOCK: tl.constexpr):
    i_group = tl.program_id(0)
    o_lane = tl.arange(0, BLOCK)
    b_zero = tl.zeros((BLOCK,), tl.int32)
    words = tl.philox(tl.load(p_seed), i_group * BLOCK + o_lane, b_zero + position, b_zero, b_zero)
    o_out = i_group * 4 * BLOCK + o_lane
    tl.store(p_out + o_out, sampling.uniform(words[0]))
    tl.store(p_out + o_out + BLOCK, sampling.uniform(words[1]))
    tl.store(p_out + o_out + 2 * BLOCK, sampling.uniform(words[2]))
    tl.store(p_out + o_out + 3 * BLOCK, sampling.uniform(words[3]))


@pytest.mark.parametrize("seed", [0, 2**32 + 5, 2**63 - 1])
@pytest.mark.parametrize("position", [0, 262_143])
def test_a_kernel_draws_the_same(device, seed, position):
    groups = 2
    out = torch.empty(groups * 4 * philox.LANES, device=device)
    seeds = torch.tensor([seed], device=device)
    uniform_kernel[(groups,)](out, seeds, position, BLOCK=philox.LANES)
    assert torch.equal(out.cpu(), philox.uniform(seed, position, out.numel(), "cpu"))


@triton.jit
def to_uniform_kernel(p_words, p_out, BLOCK: tl.constexpr):
    o_out = tl.arange(0, BLOCK)
    tl.store(p_out + o_out, sampling.uniform(tl.load(p_words + o_out)))


def test_the_ends_of_the_range_in_a_kernel(device):
    words = torch.tensor([0, 1, 2**30, 2**31 - 1, 2**31, 2**31 + 1, ONES - 1, ONES])
    out = torch.empty(8, device=device)
    signed = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
    to_uniform_kernel[(1,)](signed.to(device), out, BLOCK=8)
    assert torch.equal(out.cpu(), philox.to_uniform(words))


def test_numbers_are_uniform_and_inside():
    numbers = philox.uniform(3, 9, 100_000, "cpu")
    assert numbers.min() > 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, bins=20, min=0, max=1)
    chi_square = ((counts - 5000) ** 2 / 5000).sum().item()
    # Nineteen degrees of freedom: one draw in 10,000 is above 50.
    assert chi_square < 50


def test_the_ends_of_the_range():
    words = torch.tensor([0, 1, 2**31 - 1, 2**31, ONES])
    numbers = philox.to_uniform(words)
    assert numbers.tolist()[0] == philox.SMALLEST == numbers.tolist()[-1]
    assert torch.isfinite(-torch.log(-torch.log(numbers))).all()
