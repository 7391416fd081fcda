"""Which cause a late event has: what its process knew before it, and what differs.

Pure functions. Goes through a run's events in order, so that "warm" means loaded
by the same process before this event, in warmup or by an earlier request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from jitwatch.attribution import root_of
from jitwatch.causes import CAUSES
from jitwatch.events import Cause, DiffRow, Event, Variant
from jitwatch.variants import KINDS, closest, differences, tuned_differences

#: How many variants of a kernel, the earliest, the closest is looked for among: those of warmup
#: come first, and a kernel with a variant a length would take time quadratic in the lengths.
NEAREST_OF = 100
#: Owners whose libraries choose a kernel by shape.
PER_SHAPE = ("cublas", "cudnn", "cutlass")
REDEFINED = DiffRow("definition", "a new @triton.jit object", "the one loaded before")

Key = tuple[int, str, str | None]


@dataclass(slots=True)
class _Known:
    """What one process knew of one kernel; variants in the order they came."""

    loaded: dict[Variant, Variant] = field(default_factory=dict)
    compiled_in_warmup: set[Variant] = field(default_factory=set)
    built: dict[Variant, str] = field(default_factory=dict)
    tuned: dict[Variant, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause and the rows that differ from the closest warm variant."""

    cause: Cause
    diff: tuple[DiffRow, ...]


def diagnose(
    events: Sequence[Event], late: Iterable[Event], ready_ns: int
) -> dict[tuple[int, int], Diagnosis]:
    """The diagnosis of each late event, by `(pid, seq)`. `events` are in start order."""
    wanted = {(event.pid, event.seq) for event in late}
    by_seq = {(event.pid, event.seq): event for event in events}
    known: dict[Key, _Known] = {}
    found: dict[tuple[int, int], Diagnosis] = {}
    for event in events:
        key = (event.pid, event.kernel, event.file)
        memory = known.setdefault(key, _Known())
        if (event.pid, event.seq) in wanted:
            diagnosis = _inherited(event, by_seq, found, memory) or _diagnose(event, memory)
            found[event.pid, event.seq] = diagnosis
        _learn(event, memory, ready_ns)
    return found


def _learn(event: Event, memory: _Known, ready_ns: int) -> None:
    if event.variant is None:
        return
    if event.kind in ("compile", "disk_hit"):
        memory.built[event.variant] = event.kind
        if event.start_ns < ready_ns:
            memory.compiled_in_warmup.add(event.variant)
    elif event.kind == "load":
        memory.loaded.setdefault(event.variant, event.variant)
    elif event.kind == "autotune":
        memory.tuned[event.variant] = None


def _inherited(
    event: Event,
    by_seq: Mapping[tuple[int, int], Event],
    found: Mapping[tuple[int, int], Diagnosis],
    memory: _Known,
) -> Diagnosis | None:
    """Candidates of an autotuned kernel, and a hook's load and its module, share one cause."""
    if event.kind in ("launcher_build", "subprocess", "link"):
        return None
    autotune = root_of(event, by_seq, "autotune")
    if autotune is not None and autotune.kernel == event.kernel:
        diagnosis = found.get((autotune.pid, autotune.seq))
        if diagnosis is not None and diagnosis.cause.code == "JW101" and event.variant:
            return _cold(event, memory.built.get(event.variant, event.kind))
        return diagnosis
    if event.kind == "load" and event.parent is not None:
        parent = by_seq.get((event.pid, event.parent))
        if parent is not None and parent.kind == "load":
            return found.get((parent.pid, parent.seq))
    return None


def _diagnose(event: Event, memory: _Known) -> Diagnosis:
    if event.kind == "launcher_build":
        return _named("JW206", event, ())
    if event.kind == "subprocess":
        return _named("JW207", event, ())
    if event.kind == "link":
        return _named("JW204", event, ())
    variant = event.variant
    if variant is None:
        return _without_variant(event)
    if event.kind == "autotune":
        return _autotune(event, variant, memory)
    if (
        event.kind == "load"
        and variant in memory.compiled_in_warmup
        and variant not in memory.loaded
    ):
        return _named("JW202", event, ())
    if variant in memory.loaded:
        retuned = tuned_differences(variant, memory.loaded[variant])
        if retuned:
            return _named("JW106", event, tuple(item.row for item in retuned))
        return _named("JW105", event, (REDEFINED,))
    nearest = closest(variant, list(islice(memory.loaded, NEAREST_OF)))
    if nearest is None:
        return _cold(event, memory.built.get(variant, event.kind))
    found = differences(variant, nearest)
    if not found:
        return _named("JW901", event, ())
    code = KINDS[found[0].kind]
    return _named(code, event, tuple(item.row for item in found))


def _autotune(event: Event, variant: Variant, memory: _Known) -> Diagnosis:
    nearest = closest(variant, list(islice(memory.tuned, NEAREST_OF)))
    if nearest is None:
        return _cold(event, "compile")
    found = differences(variant, nearest)
    return _named("JW106", event, tuple(item.row for item in found) or (REDEFINED,))


def _without_variant(event: Event) -> Diagnosis:
    if event.origin in PER_SHAPE:
        return _named("JW205", event, ())
    if event.origin in ("unknown", "in-repo", ""):
        return _named("JW901", event, ())
    return _named("JW203", event, ())


def _cold(event: Event, built: str) -> Diagnosis:
    return _named("JW201" if built == "disk_hit" else "JW101", event, ())


def _named(code: str, event: Event, diff: tuple[DiffRow, ...]) -> Diagnosis:
    # The rows that give the code come first, and its text speaks of them alone.
    return Diagnosis(CAUSES[code](event, _leading(code, diff)), diff)


def _leading(code: str, diff: tuple[DiffRow, ...]) -> tuple[DiffRow, ...]:
    return diff[:1] if code in ("JW102", "JW103", "JW104", "JW106", "JW107", "JW108") else diff
