"""The arithmetic of sizes against Triton's own."""

from __future__ import annotations

import triton

from engine.kernels.sizes import cdiv, next_power_of_2


def test_sizes_are_those_that_triton_gives():
    for number in (*range(5000), *(2**k + d for k in range(13, 62) for d in (-1, 0, 1))):
        assert next_power_of_2(number) == triton.next_power_of_2(number)
        for divisor in (1, 2, 3, 16, 63, 64, 4096):
            assert cdiv(number, divisor) == triton.cdiv(number, divisor)
