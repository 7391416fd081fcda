"""The arithmetic of grids and blocks on the host.

As `triton.cdiv` and `triton.next_power_of_2`, which unwrap constexprs around each call and so take
some twenty times as long; a prefill calls them a hundred times.
"""

from __future__ import annotations


def cdiv(dividend: int, divisor: int) -> int:
    """The quotient, rounded up."""
    return (dividend + divisor - 1) // divisor


def next_power_of_2(number: int) -> int:
    """The smallest power of 2 that is at least `number`; 0 for 0."""
    return 1 << (number - 1).bit_length() if number else 0
