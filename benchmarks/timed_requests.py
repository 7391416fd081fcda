"""The engine with a stopwatch: one greedy request at a time, to its first token and to its last."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # not installed: the checkout's

from engine import LLM, SamplingParams


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds from handing a request over until its first token is known, and until its last."""

    first_token_s: float
    request_s: float


class FirstTokenClock:
    """An observer of the engine's that notes when a first token was known, and nothing else."""

    def __init__(self) -> None:
        self.known_at = 0.0

    def step(
        self, phase: str, requests: Sequence[str], tokens: int
    ) -> AbstractContextManager[object]:
        """Nothing around the forward."""
        return nullcontext()

    def first_token(self, request: str) -> None:
        """The token was read back: the GPU is done with the prefill."""
        self.known_at = time.perf_counter()


class TimedEngine:
    """`LLM(model, **options)` whose requests are timed; ready when it is built."""

    def __init__(self, model: str, **options: Any) -> None:
        self.clock = FirstTokenClock()
        self.llm = LLM(model, observer=self.clock, **options)

    def serve(self, token_ids: list[int], output_tokens: int) -> Times:
        """Generate exactly that many tokens; each is read back, so nothing is left running."""
        params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
        start = time.perf_counter()
        self.llm.generate([token_ids], params)
        end = time.perf_counter()
        return Times(self.clock.known_at - start, end - start)


@dataclass(frozen=True, slots=True)
class Decode:
    """One request, the same in every round, of which the prefill isn't counted.

    `load` loads a module before it: decode loads none, and an armed hook that sees no load proves
    nothing.
    """

    engine: TimedEngine
    load: Callable[[], object]
    prompt_tokens: int
    decoded_tokens: int

    def micros(self) -> float:
        """Per decoded token: the first token is the prefill's."""
        self.load()
        prompt = list(range(5, 5 + self.prompt_tokens))
        times = self.engine.serve(prompt, 1 + self.decoded_tokens)
        return (times.request_s - times.first_token_s) / self.decoded_tokens * 1e6
