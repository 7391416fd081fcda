"""What each kernel says of its own variants; warmup derives its ladder from these statements.

A kernel's module says for each of its kernels at which token counts of a forward a new variant
begins. A kernel without a statement fails a test; a statement that isn't true fails the sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Shapes:
    """What of a model decides how many variants a kernel has. No experts: `num_experts` is 0."""

    dtype: torch.dtype
    num_experts: int
    top_k: int


@dataclass(frozen=True, slots=True)
class Start:
    """The smallest number of tokens that a variant serves, and what is new in it."""

    num_tokens: int
    why: str


# The starts of a kernel's variants, ascending; the first is 1, or there are none: not launched.
Statement = Callable[[Shapes], tuple[Start, ...]]


def one_variant(shapes: Shapes) -> tuple[Start, ...]:
    """Neither the prompt's length nor the batch is in the kernel's key."""
    return (Start(1, "its only variant"),)


def one_variant_with_experts(shapes: Shapes) -> tuple[Start, ...]:
    """As `one_variant`, for a kernel that only models with routed experts launch."""
    return one_variant(shapes) if shapes.num_experts else ()
