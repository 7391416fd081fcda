"""What a caller asks for, what is kept while it is served, and what comes back."""

from __future__ import annotations

import numbers
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal

from engine.checks import is_whole
from engine.errors import RequestError

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1 and `min_p` 0 keep every token. Without a
    `seed` each request draws its own. With `ignore_eos` only `max_tokens` and the context end a
    text.

    Raises:
        RequestError: for a value out of range, naming it.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 16
    ignore_eos: bool = False
    stop_token_ids: Collection[int] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, (whole, low, high, range_) in RANGES.items():
            value = getattr(self, name)
            if name == "seed" and value is None:
                continue
            is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
            right_kind = is_whole(value) if whole else is_real
            # A NaN is between no two numbers.
            if not right_kind or not low <= value <= high:
                raise RequestError(f"{name}={value!r}: must be {range_}")
        if self.top_p == 0:
            raise RequestError(f"top_p={self.top_p!r}: must be {RANGES['top_p'][-1]}")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(f"ignore_eos={self.ignore_eos!r}: must be True or False")
        if not are_token_ids(self.stop_token_ids):
            raise RequestError(
                f"stop_token_ids={self.stop_token_ids!r}: must be a list of token ids"
            )


def are_token_ids(ids: object) -> bool:
    """Whether `ids` can be asked for integers, and holds nothing else."""
    if isinstance(ids, bytes) or not isinstance(ids, Collection):
        return False
    try:
        return all(is_whole(i) for i in ids)
    except TypeError:  # an array of no dimension is a Collection by its methods
        return False


# Whether a parameter is a whole number, its smallest and largest value, and how to say so.
RANGES: dict[str, tuple[bool, float, float, str]] = {
    "temperature": (False, 0.0, 1e30, "a number from 0 (greedy) to 1e30"),
    "top_k": (True, 0, 2**31 - 1, "a whole number, 0 (all tokens) or more"),
    "top_p": (False, 0.0, 1.0, "a number above 0, up to 1 (all tokens)"),
    "min_p": (False, 0.0, 1.0, "a number from 0 (all tokens) to 1"),
    "max_tokens": (True, 1, sys.maxsize, "a whole number, 1 or more"),
    "seed": (True, 0, 2**63 - 1, "a whole number from 0 to 2**63 - 1, or None"),
}


@dataclass(slots=True)
class Sequence:
    """A request being served: its tokens, and the pages and the state slot that it holds.

    `id` is what observers know it by.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    params: SamplingParams
    seed: int
    pages: list[int] = field(default_factory=list)
    state_index: int = 0
    num_cached: int = 0
    logprobs: list[float] = field(default_factory=list)
    id: str = ""

    @property
    def output_ids(self) -> list[int]:
        """The tokens generated so far."""
        return self.token_ids[self.num_prompt_tokens :]

    def append(self, token_id: int, logprob: float) -> None:
        """Take a sampled token."""
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A served request: `logprobs` has one entry for each of `token_ids`.

    `text` is None where the model came without a tokenizer. `finish_reason` is `stop` after an
    end token, which is the last of `token_ids`, or `length`.
    """

    prompt_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[float]
    text: str | None
    finish_reason: FinishReason
