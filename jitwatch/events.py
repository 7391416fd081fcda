"""The words of jitwatch as data types.

Owns what an event, a variant, a step, a request, a stall, the coverage and the
verdict are. Knows nothing of how they are recorded, judged or printed, and
imports nothing but the standard library.

All times are CLOCK_MONOTONIC nanoseconds, sizes are bytes, ids are process-wide
unless a field says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal[
    "compile",
    "disk_hit",
    "load",
    "link",
    "launcher_build",
    "autotune",
    "recompile",
    "subprocess",
    "hang",
]
Phase = Literal["prefill", "decode", "mixed"]
Outcome = Literal["pass", "fail", "inconclusive"]

#: Version of a run directory's `meta.json` and of the report; a reader refuses a newer one.
SCHEMA = 1

#: A name and its value, in declaration order: hashable, unlike a dict.
Pairs = tuple[tuple[str, str], ...]

#: What stands in a variant where an autotuner chose: identical for every choice.
TUNED = "tuned"


@dataclass(frozen=True, slots=True)
class Variant:
    """One specialization of one kernel. Equal variants share a binary key.

    `arguments` holds runtime arguments and their classes, as Triton's key has
    them: `i32 == 1`, `i32 % 16 == 0`, `i32`, `i64`, `*bf16 % 16 == 0`, `*bf16`,
    `fp32`, `None`. `constants` holds constexprs by value, `options` only what the
    call passed. A field an autotuner chose has the value `TUNED` there, and its
    winner in `tuned`, which is not compared.

    For an autotune event `compiler` is `triton.autotune`, and `constants` holds
    the tuning key.
    """

    compiler: str
    kernel: str
    arguments: Pairs
    constants: Pairs
    options: Pairs
    arch: str
    tuned: Pairs = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing a request may have had to wait for.

    `end_ns` is None while it is open: a hang, or a process that was killed.
    `parent` is the `seq` of the event it happened in (same process), `step` the
    id of the step open on its thread. `file` and `line` say where the kernel is
    defined; `detail` explains in a few words (a driver call, a tuning error).
    `stack_ns` is what our own stack dump cost: never part of a stall.
    """

    seq: int
    pid: int
    tid: int
    start_ns: int
    end_ns: int | None
    kind: Kind
    source: str
    kernel: str
    variant: Variant | None
    origin: str
    nbytes: int
    parent: int | None
    stack: tuple[str, ...]
    step: int | None
    file: str | None = None
    line: int | None = None
    detail: str = ""
    stack_ns: int = 0

    @property
    def duration_ns(self) -> int:
        """What it took, without our own stack dump; 0 while it is open."""
        if self.end_ns is None:
            return 0
        return max(0, self.end_ns - self.start_ns - self.stack_ns)


@dataclass(frozen=True, slots=True)
class Step:
    """One forward of the engine, for a set of requests, in one phase."""

    id: int
    phase: Phase
    requests: tuple[str, ...]
    tokens: int
    start_ns: int
    end_ns: int | None
    pid: int
    tid: int
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One request of the sweep. `error` is the exception's type, message and place.

    `launches` counts kernel launches where something counted them (the simulated
    device, a probe), else None. `used` are the `seq` of the load events, of the
    process `pid`, whose functions were launched, where something tells (the
    simulated device), else None.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    arrival_ns: int
    first_token_ns: int | None
    end_ns: int | None
    error: str | None = None
    launches: int | None = None
    pid: int = 0
    used: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Rung:
    """One length of a warmup ladder, in prompt tokens, and why it is one."""

    prompt_tokens: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VariantUse:
    """At which swept lengths a variant was launched, where something counts launches.

    `spans` are the first and last length, both included and ascending, of runs of swept
    lengths without one in between that did without the variant.
    """

    variant: Variant
    origin: str
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """The first length, in prompt tokens, at which other variants of `kernels` are launched.

    `residues` are the lengths' remainders mod 16 for which that is so; empty for all sixteen.
    """

    prompt_tokens: int
    residues: tuple[int, ...]
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Proof:
    """Which lengths from 1 to `max_tokens` were served for all of them, and on what grounds.

    `chunk_tokens` is the longest chunk that a prompt was seen to be run in, None where nobody
    says.
    """

    max_tokens: int
    chunk_tokens: int | None
    served: int
    boundaries: tuple[Boundary, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One argument or option that differs from the closest warm variant."""

    argument: str
    now: str
    before: str


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a variant was not warm. The code never depends on the disk cache."""

    code: str
    name: str
    why: str
    help: str


@dataclass(frozen=True, slots=True)
class Stall:
    """A late event and the requests that waited for it.

    `stall_ms` is None where nobody saw it begin: a lazy load inside a launch.
    """

    event: Event
    requests: tuple[str, ...]
    stall_ms: float | None
    cause: Cause
    diff: tuple[DiffRow, ...]
    inferred: bool = False


@dataclass(frozen=True, slots=True)
class SourceState:
    """One source of events: armed or not, its version, and why not."""

    name: str
    armed: bool
    version: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What could be seen in a run, and what could not.

    `load_source` is the source whose loads are counted: the driver's where it is
    armed, else the compiler hook's; in the processes `hook_pids` the driver's is not,
    and the compiler hook's count (`unarmed_reasons` say why). `self_test` is `passed`,
    `skipped` or what went wrong. `assumed` lists lines that read back what only a kernel
    could know.
    """

    sources: tuple[SourceState, ...]
    load_source: str | None
    self_test: str
    dropped: int = 0
    silent_pids: tuple[int, ...] = ()
    blind_spots: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    missing_stacks: Mapping[str, int] = field(default_factory=dict)
    probes: int = 0
    probe_launches: int | None = None
    hook_pids: tuple[int, ...] = ()
    unarmed_reasons: tuple[str, ...] = ()

    def counts(self, event: Event) -> bool:
        """Whether a load is counted: each one is seen by several sources."""
        source = "triton" if event.pid in self.hook_pids else self.load_source
        return event.kind == "load" and event.source == source


@dataclass(frozen=True, slots=True)
class Run:
    """What a run directory holds, merged over its processes, in start order.

    `meta` is what was asked for, `facts` what only the processes themselves knew.
    """

    meta: Mapping[str, Any]
    events: tuple[Event, ...]
    steps: tuple[Step, ...]
    requests: tuple[Request, ...]
    ready_ns: int | None
    coverage: Coverage
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome and, for anything but a pass, its reasons and their mends."""

    outcome: Outcome
    reasons: tuple[str, ...] = ()
