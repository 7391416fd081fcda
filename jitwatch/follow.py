"""A run while it goes on: each late event as a line, once it is over.

Owns what was read of each file so far, so that a look costs what is new. The report is made
later and from all that was recorded: this is only to be read as it comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitwatch.errors import RunFileError
from jitwatch.sources.driver_log import DriverRecord, num_slots, read_records

#: Steps and requests of a process that are remembered: a driver record may be read later.
KEPT = 10_000
#: Kinds of Triton's events that a request waits for.
TOLD = ("load", "compile", "autotune", "launcher_build")
NAME_WIDTH = 60


@dataclass(slots=True)
class _File:
    """What one events file said so far."""

    offset: int = 0
    tail: bytes = b""
    steps: dict[int, tuple[str, ...]] = field(default_factory=dict)
    begun: dict[int, dict[str, Any]] = field(default_factory=dict)
    requests: dict[str, tuple[int, int | None]] = field(default_factory=dict)


class Follower:
    """Reads a run directory again and again."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.ready_ns: int | None = None
        self._files: dict[Path, _File] = {}
        self._seen: dict[Path, int] = {}

    def lines(self) -> Iterator[str]:
        """What became late since the last call; nothing before the program is ready."""
        told = [
            line
            for path in sorted(self.run_dir.glob("events-*.jsonl"))
            for line in self._read_events(path)
        ]
        for path in sorted(self.run_dir.glob("driver-*.bin")):
            told += self._read_driver(path)
        yield from told

    def _read_events(self, path: Path) -> list[str]:
        known = self._files.setdefault(path, _File())
        try:
            with path.open("rb") as file:
                file.seek(known.offset)
                data = file.read()
        except OSError:
            return []
        known.offset += len(data)
        *whole, known.tail = (known.tail + data).split(b"\n")
        told = []
        for line in whole:
            try:
                told += self._apply(known, json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue  # the report counts what is damaged
        return told

    def _apply(self, known: _File, record: dict[str, Any]) -> list[str]:
        kind = record["r"]
        if kind == "ready" and self.ready_ns is None:
            self.ready_ns = record["t"]
        elif kind == "step":
            known.steps[record["id"]] = tuple(record["requests"])
            if len(known.steps) > KEPT:
                del known.steps[next(iter(known.steps))]
        elif kind == "request":
            known.requests[record["id"]] = (record["t"], None)
            if len(known.requests) > KEPT:
                del known.requests[next(iter(known.requests))]
        elif kind == "request_end":
            known.requests[record["id"]] = (known.requests[record["id"]][0], record["t"])
        elif kind == "begin":
            known.begun[record["seq"]] = record
        elif kind == "end":
            begun = known.begun.pop(record["seq"], None)
            name = record.get("kind", begun and begun["kind"])
            if begun is not None and name in TOLD and self._is_late(begun["t"]):
                waited = self._waited(known, begun["step"], begun["t"])
                return [_line(name, begun["kernel"], record["t"] - begun["t"], waited)]
        return []

    def _read_driver(self, path: Path) -> list[str]:
        """Modules that no compiler's hook explains: those it does are told by its own events."""
        seen = self._seen.get(path, 0)
        try:
            if self.ready_ns is None or num_slots(path) == seen:
                return []
            records = read_records(path).records
        except (OSError, RunFileError):
            return []
        by_slot = {record.slot: record for record in records}
        known = self._files.get(path.with_name(f"events-{path.stem[7:]}.jsonl"), _File())
        told = []
        for record in records:
            if record.slot < seen:
                continue
            call = by_slot.get(record.parent) if record.parent is not None else None
            if call is not None and call.end_ns is None:
                break  # next time: it isn't over
            self._seen[path] = record.slot + 1
            is_load = record.type == "module_loaded" and not record.explained
            if is_load and self._is_late(record.start_ns):
                waited = self._waited(known, record.step, record.start_ns)
                told.append(_line("load", ",".join(record.kernels), _took(call), waited))
        return told

    def _is_late(self, start_ns: int) -> bool:
        return self.ready_ns is not None and start_ns >= self.ready_ns

    def _waited(self, known: _File, step: int | None, at_ns: int) -> tuple[str, ...]:
        """The requests of the step; without one, those open then, its own process's first."""
        if step is not None and step in known.steps:
            return known.steps[step]
        others = (name for file in self._files.values() for name in _open_at(file, at_ns))
        return tuple(_open_at(known, at_ns)) or tuple(others)


def _open_at(file: _File, at_ns: int) -> list[str]:
    return [
        name
        for name, (arrival, end) in file.requests.items()
        if arrival <= at_ns and (end is None or at_ns <= end)
    ]


def _took(call: DriverRecord | None) -> int | None:
    return None if call is None or call.end_ns is None else call.end_ns - call.start_ns


def _line(kind: str, kernel: str, took_ns: int | None, requests: tuple[str, ...]) -> str:
    name = kernel if len(kernel) <= NAME_WIDTH else f"{kernel[: NAME_WIDTH - 1]}…"
    took = "time unseen" if took_ns is None else f"{took_ns / 1e6:.1f} ms"
    paid = ", ".join(requests[:3]) + (f" and {len(requests) - 3} more" if len(requests) > 3 else "")
    return f"jitwatch: late {kind.replace('_', ' ')}: {paid or 'no request'}, {name or '?'}, {took}"
