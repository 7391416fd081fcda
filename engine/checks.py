"""What counts as a number where a caller gives one."""

from __future__ import annotations

import numbers


def is_whole(value: object) -> bool:
    """Whether `value` is an integer, NumPy's included, and no bool."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
