"""Small made-up variants, events and runs for the tests of what is computed from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jitwatch.events import Coverage, Event, Request, Run, SourceState, Step, Variant
from jitwatch.report import Report, build_report

REPO = "/repo"
FILE = "/repo/kernels.py"
READY_NS = 1_000_000_000
MS = 1_000_000
PID, TID = 7, 70

DRIVER = SourceState("driver", True, "simulated h200")
TRITON = SourceState("triton", True, "3.6.0")
ARMED = Coverage((DRIVER, TRITON), "driver", "passed", probes=10, probe_launches=12)


def variant(
    n: str = "i32 % 16 == 0",
    *,
    x: str = "*fp32 % 16 == 0",
    constants: dict[str, str] | None = None,
    options: dict[str, str] | None = None,
    tuned: dict[str, str] | None = None,
    kernel: str = "scale_kernel",
) -> Variant:
    """`scale_kernel(x, n, BLOCK)` with the given classes."""
    return Variant(
        compiler="triton",
        kernel=kernel,
        arguments=(("x", x), ("n", n)),
        constants=tuple({"BLOCK": "256", **(constants or {})}.items()),
        options=tuple((options or {}).items()),
        arch="sm_90",
        tuned=tuple((tuned or {}).items()),
    )


def tuning(key: str = "1") -> Variant:
    """The tuning key `NB` of `scale_kernel`."""
    return Variant(
        "triton.autotune", "scale_kernel", (("x", "torch.float32"),), (("NB", key),), (), ""
    )


def event(seq: int, kind: str, at_ms: float, took_ms: float | None = 1, **changes: Any) -> Event:
    """An event of `scale_kernel` that begins `at_ms` after ready; still open where it took None."""
    start = READY_NS + round(at_ms * MS)
    made = Event(
        seq=seq,
        pid=PID,
        tid=TID,
        start_ns=start,
        end_ns=None if took_ms is None else start + round(took_ms * MS),
        kind=kind,
        source="triton",
        kernel="scale_kernel",
        variant=variant(),
        origin="",
        nbytes=0,
        parent=None,
        stack=(),
        step=None,
        file=FILE,
        line=3,
    )
    return replace(made, **changes)


def driver_load(seq: int, at_ms: float, took_ms: float | None = 1, **changes: Any) -> Event:
    """A load as the driver hook sees it: a symbol, no variant, no file."""
    bare = {"source": "driver", "variant": None, "file": None, "line": None, **changes}
    return event(seq, "load", at_ms, took_ms, **bare)


def step(number: int, at_ms: float, took_ms: float | None = 10, **changes: Any) -> Step:
    """A step for the request `len<number>`, open where it took None."""
    start = READY_NS + round(at_ms * MS)
    end = None if took_ms is None else start + round(took_ms * MS)
    made = Step(number, "mixed", (f"len{number}",), number, start, end, PID, TID)
    return replace(made, **changes)


def request(number: int, at_ms: float, took_ms: float | None = 10, **changes: Any) -> Request:
    """A request of `number` prompt tokens, unanswered where it took None."""
    start = READY_NS + round(at_ms * MS)
    end = None if took_ms is None else start + round(took_ms * MS)
    made = Request(f"len{number}", number, 2, start, None, end, None, 3)
    return replace(made, **changes)


def report(
    events: list[Event] | tuple[Event, ...] = (),
    *,
    steps: list[Step] | None = None,
    requests: list[Request] | None = None,
    coverage: Coverage = ARMED,
    device: str = "cuda",
    facts: dict[str, Any] | None = None,
    ready_ns: int | None = READY_NS,
    **meta: Any,
) -> Report:
    """The report of a run that served 64 tokens 10 ms after ready and 65 tokens at 20 ms."""
    steps = [step(64, 10), step(65, 20)] if steps is None else steps
    requests = [request(64, 10), request(65, 20)] if requests is None else requests
    meta = {"device": device, "repo": REPO, "environment": {"jitwatch": "0.1.0"}, **meta}
    served = tuple(requests)
    return build_report(
        Run(meta, tuple(events), tuple(steps), served, ready_ns, coverage, facts or {})
    )
