"""What warmup ran, which lengths launched which variant, and what was proved of all lengths.

Pure functions over recorded data: no I/O, no clock, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitwatch.events import Boundary, Event, Proof, Request, Rung, VariantUse


def ladder_of(meta: Mapping[str, Any], facts: Mapping[str, Any]) -> tuple[Rung, ...]:
    """What the target says that it ran, then the lengths that it was asked to."""
    rungs = [read_rung(item) for item in facts.get("ladder", ())]
    reasons = ("--warmup-lengths",)
    return (*rungs, *(Rung(length, reasons) for length in meta.get("warmup_lengths", ())))


def uses_of(events: Sequence[Event], requests: Sequence[Request]) -> tuple[VariantUse, ...]:
    """Which of the answered lengths launched each variant, in the order of their loads."""
    told = sorted(
        (r for r in requests if r.used is not None and r.error is None),
        key=lambda request: request.prompt_tokens,
    )
    places: dict[tuple[int, int], list[int]] = {}
    for place, request in enumerate(told):
        for load in request.used or ():
            places.setdefault((request.pid, load), []).append(place)
    lengths = [request.prompt_tokens for request in told]
    found = []
    for event in events:
        used = places.get((event.pid, event.seq))
        if used is not None and event.variant is not None:
            spans = tuple((lengths[first], lengths[last]) for first, last in _runs(used))
            found.append(VariantUse(event.variant, event.origin, spans))
    return tuple(found)


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive numbers, ascending."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def read_rung(data: Mapping[str, Any]) -> Rung:
    """The rung that `dataclasses.asdict` made `data` of.

    Raises:
        TypeError, KeyError: it made no such thing.
    """
    return Rung(read_tokens(data["prompt_tokens"]), _texts(data["reasons"]))


def read_proof(data: Mapping[str, Any]) -> Proof:
    """The proof that `dataclasses.asdict` made `data` of.

    Raises:
        TypeError, KeyError: it made no such thing.
    """
    chunk = data["chunk_tokens"]
    return Proof(
        max_tokens=read_tokens(data["max_tokens"]),
        chunk_tokens=None if chunk is None else read_tokens(chunk),
        served=read_tokens(data["served"]),
        boundaries=tuple(
            Boundary(
                read_tokens(boundary["prompt_tokens"]),
                tuple(read_tokens(residue, least=0) for residue in boundary["residues"]),
                _texts(boundary["kernels"]),
            )
            for boundary in data["boundaries"]
        ),
        assumptions=_texts(data["assumptions"]),
    )


def read_tokens(value: object, least: int = 1) -> int:
    """A number of tokens, `least` or more.

    Raises:
        TypeError: it is none.
    """
    if type(value) is not int or not least <= value < 2**31:
        raise TypeError(f"{value!r} is no number of tokens")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(text, str) for text in value):
        raise TypeError(f"{value!r} is no list of texts")
    return tuple(value)
