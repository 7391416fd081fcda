"""The seam through which someone can watch the engine at work; nobody does unless asked to.

Owns what an observer is told. Nothing it does changes what the engine computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Literal, Protocol

Phase = Literal["prefill", "decode"]


class Observer(Protocol):
    """Is told of every forward on the request path, never of warmup's."""

    def step(
        self, phase: Phase, requests: Sequence[str], tokens: int
    ) -> AbstractContextManager[object]:
        """Entered around one forward of `tokens` new tokens for these requests, from making its
        batch until its result is read, on the thread that runs it."""

    def first_token(self, request: str) -> None:
        """The request's first token is known."""


class Unobserved:
    """Stands where nobody watches."""

    def step(
        self, phase: Phase, requests: Sequence[str], tokens: int
    ) -> AbstractContextManager[object]:
        """Nothing around the forward."""
        return nullcontext()

    def first_token(self, request: str) -> None:
        """Nobody is told."""
