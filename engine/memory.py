"""What torch says where memory runs out, in the engine's words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.errors import EngineError

# How torch's CPU allocator and its size arithmetic say it: with a plain RuntimeError.
PHRASES = ("can't allocate memory", "Storage size calculation overflowed")


@contextmanager
def enough_memory(otherwise: EngineError) -> Iterator[None]:
    """Raise `otherwise` where torch finds no room for a tensor; leave every other error alone."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        found = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not found and not any(phrase in str(error) for phrase in PHRASES):
            raise
        raise otherwise from None
