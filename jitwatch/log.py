"""Reads a run directory back: what the recorders of its processes wrote.

Owns the layout of a run directory (`meta.json`, `events-<pid>.jsonl`,
`driver-<pid>.bin`, `driver-<pid>.stacks`, with `-<ns>` behind the pid where a
process has several) and tolerates what a killed process
leaves: torn last lines, events without an end. Hands what it read to `report.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jitwatch.errors import RunFileError
from jitwatch.events import SCHEMA, Coverage, Event, Request, Run, SourceState, Step
from jitwatch.recorder import FORMAT
from jitwatch.records import FACTS, FIELDS, META, META_FIELDS, META_OPTIONAL, OPTIONAL, check
from jitwatch.report import Report, build_report
from jitwatch.sources.driver_log import (
    SELF_TEST_KERNEL,
    DriverRecord,
    read_records,
    read_stacks,
)
from jitwatch.variants import read_variant


@dataclass(slots=True)
class _Process:
    """What one `events-<pid>.jsonl` held."""

    pid: int
    events: dict[int, Event] = field(default_factory=dict)
    steps: dict[int, Step] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    ready_ns: int | None = None
    sources: dict[str, SourceState] = field(default_factory=dict)
    facts: dict[str, list[Any]] = field(default_factory=dict)
    dropped: int = 0
    torn: int = 0
    closed: bool = False

    def armed(self, source: str) -> bool:
        """Whether the source was armed here."""
        return source in self.sources and self.sources[source].armed

    def add(self, other: _Process) -> None:
        """Take in what the same process recorded as another program."""
        self.events.update(other.events)
        self.steps.update(other.steps)
        self.requests.update(other.requests)
        self.sources.update(other.sources)
        for name, values in other.facts.items():
            self.facts.setdefault(name, []).extend(values)
        self.dropped += other.dropped
        self.closed = self.closed and other.closed
        if self.ready_ns is None:
            self.ready_ns = other.ready_ns


def run_dirs(path: Path) -> list[Path]:
    """The run directories under `path`: itself, or one for each device.

    Raises:
        RunFileError: there is none.
    """
    if (path / META).is_file():
        return [path]
    found = sorted((child.parent for child in path.glob(f"*/{META}")), key=_position)
    if not found:
        raise RunFileError(
            f"{path} is no run directory",
            f"neither it nor a folder in it holds {META}",
            "give the folder that `jitwatch sweep --run-dir DIR` wrote",
        )
    return found


def _position(run_dir: Path) -> tuple[int, str]:
    """Where a device's folder stands among those of its sweep: in the order they were asked for."""
    meta = _read_meta(run_dir)
    devices = list(meta.get("devices", ()))
    device = meta.get("device")
    return (devices.index(device) if device in devices else len(devices), run_dir.name)


def read_run(run_dir: Path) -> Run:
    """Read and merge one run directory.

    Raises:
        RunFileError: no or unreadable `meta.json`, or written by a newer jitwatch.
    """
    meta = _read_meta(run_dir)
    processes = _read_processes(run_dir)
    driver_dropped, missing_stacks = 0, Counter[str]()
    for process in processes:
        for path in _driver_files(run_dir, process.pid):
            log = read_records(path)
            stacks = read_stacks(path.with_suffix(".stacks"))
            _add_driver_events(process, log.records, stacks)
            driver_dropped += log.dropped
            missing_stacks.update(log.missing_stacks)
            version = log.backend.replace("cupti", "CUPTI")
            process.sources.setdefault("driver", SourceState("driver", True, version))
    events = sorted(
        (event for process in processes for event in process.events.values()),
        key=lambda event: (event.start_ns, event.seq),
    )
    steps = sorted((s for p in processes for s in p.steps.values()), key=lambda s: s.start_ns)
    requests = [request for process in processes for request in process.requests.values()]
    ready = [process.ready_ns for process in processes if process.ready_ns is not None]
    facts = {name: values[-1] for process in processes for name, values in process.facts.items()}
    facts["unclosed"] = any(p.requests and not p.closed for p in processes)
    coverage = _coverage(processes, driver_dropped, dict(missing_stacks))
    silent = sorted(int(path.name.split("-")[1]) for path in run_dir.glob("silent-*"))
    coverage = replace(coverage, silent_pids=tuple(silent))
    return Run(
        meta=meta,
        events=tuple(events),
        steps=tuple(steps),
        requests=tuple(requests),
        ready_ns=min(ready) if ready else None,
        coverage=coverage,
        facts=facts,
    )


def read_report(run_dir: Path, fail_on: str | None = None) -> Report:
    """The report of one run directory, judged by its own budget where no other is given.

    Raises:
        RunFileError: it can't be read.
    """
    run = read_run(run_dir)
    if "device" not in run.meta:
        raise RunFileError(
            f"{run_dir / META} names no device",
            "it is damaged, or nothing of jitwatch's",
            "give the folder that `jitwatch sweep --run-dir DIR` wrote",
        )
    counted = run.facts.get("launches_by_request", {})
    requests = [
        replace(request, launches=counted.get(request.id, request.launches))
        for request in run.requests
    ]
    try:
        budget = {} if fail_on is None else {"fail_on": fail_on}
        return build_report(replace(run, meta={**run.meta, **budget}, requests=tuple(requests)))
    except (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError) as error:
        raise RunFileError(
            f"{run_dir} is damaged",
            f"{type(error).__name__}: {error}",
            "sweep again; what can be read by hand is in its events-*.jsonl",
        ) from error


def _read_meta(run_dir: Path) -> dict[str, Any]:
    path = run_dir / META
    try:
        meta = json.loads(path.read_text())
        schema = int(meta["schema"])
        if schema <= SCHEMA:
            check(meta, META_FIELDS, META_OPTIONAL)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise RunFileError(
            f"{path} can't be read",
            f"{type(error).__name__}: {error}",
            "give the folder that `jitwatch sweep --run-dir DIR` wrote",
        ) from error
    if schema > SCHEMA:
        raise RunFileError(
            f"{path} has schema {schema}",
            f"this jitwatch reads up to {SCHEMA}",
            "read it with the jitwatch that wrote it, or a newer one",
        )
    return dict(meta)


def _read_processes(run_dir: Path) -> list[_Process]:
    """Each process once, whatever programs it was, those too that only have driver records."""
    found: dict[int, _Process] = {}
    for path in sorted(run_dir.glob("events-*.jsonl")):
        process = _read_process(path)
        if process.pid in found:
            found[process.pid].add(process)
        else:
            found[process.pid] = process
    for path in sorted(run_dir.glob("driver-*.bin")):
        pid = _pid_of(path)
        found.setdefault(pid, _Process(pid, closed=True))
    for path in sorted(run_dir.glob("driver-*.failed")):
        pid = _pid_of(path)
        process = found.setdefault(pid, _Process(pid, closed=True))
        try:
            reason = path.read_text(errors="replace")
        except OSError as error:
            reason = str(error)
        process.sources.setdefault("driver", SourceState("driver", False, reason=reason))
    return list(found.values())


def _pid_of(path: Path) -> int:
    number = path.stem.split("-")[1]
    return int(number) if number.isdecimal() else 0


def _driver_files(run_dir: Path, pid: int) -> list[Path]:
    """A process's record files: it has a second one after an exec, or after arming again."""
    first = run_dir / f"driver-{pid}.bin"
    return [first] * first.exists() + sorted(run_dir.glob(f"driver-{pid}-*.bin"))


def _lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Each line as an object; None for a torn or damaged one."""
    with path.open("rb") as file:
        for raw in file:
            if not raw.strip():
                continue
            try:
                record = json.loads(raw)
            except ValueError:
                yield None
                continue
            yield record if isinstance(record, dict) else None


def _read_process(path: Path) -> _Process:
    named = re.fullmatch(r"events-(\d+)(-\d+)?\.jsonl", path.name)
    process = _Process(pid=int(named.group(1)) if named else 0)
    for record in _lines(path):
        if record is None:
            process.torn += 1
            continue
        try:
            _apply(process, record, path)
        except (KeyError, TypeError, ValueError, AttributeError):
            process.torn += 1
    process.dropped += process.torn
    return process


def _apply(process: _Process, record: dict[str, Any], path: Path) -> None:
    kind = record["r"]
    if kind != "process" or record["format"] <= FORMAT:
        check(record, FIELDS[kind], OPTIONAL)
    if kind == "process":
        if record["format"] > FORMAT:
            raise RunFileError(
                f"{path} has format {record['format']}",
                f"this jitwatch reads up to {FORMAT}",
                "read it with the jitwatch that wrote it, or a newer one",
            )
        process.pid = record["pid"]
    elif kind == "begin":
        event = _begin(process.pid, record)
        process.events[event.seq] = event
    elif kind == "end":
        event = process.events[record["seq"]]
        process.events[event.seq] = replace(
            event,
            end_ns=record["t"],
            kind=record.get("kind", event.kind),
            detail=record.get("detail", event.detail),
            nbytes=record.get("nbytes", event.nbytes),
        )
    elif kind == "discard":
        process.events.pop(record["seq"], None)
    elif kind == "step":
        process.steps[record["id"]] = Step(
            id=record["id"],
            phase=record["phase"],
            requests=tuple(record["requests"]),
            tokens=record["tokens"],
            start_ns=record["t"],
            end_ns=None,
            pid=process.pid,
            tid=record["tid"],
        )
    elif kind == "step_end":
        step = process.steps[record["id"]]
        process.steps[step.id] = replace(step, end_ns=record["t"])
    else:
        _apply_request(process, record)


def _apply_request(process: _Process, record: dict[str, Any]) -> None:
    kind = record["r"]
    if kind == "request":
        process.requests[record["id"]] = Request(
            id=record["id"],
            prompt_tokens=record["prompt_tokens"],
            output_tokens=record["output_tokens"],
            arrival_ns=record["t"],
            first_token_ns=None,
            end_ns=None,
            pid=process.pid,
        )
    elif kind == "first_token":
        # Probes and warmup are no requests of the sweep.
        if record["id"] in process.requests:
            request = process.requests[record["id"]]
            process.requests[request.id] = replace(request, first_token_ns=record["t"])
    elif kind == "request_end":
        request = process.requests[record["id"]]
        process.requests[request.id] = replace(
            request,
            end_ns=record["t"],
            error=record["error"],
            launches=record["launches"],
            used=tuple(record["used"]) if "used" in record else None,
        )
    elif kind == "ready":
        process.ready_ns = record["t"]
    elif kind == "source":
        state = SourceState(record["name"], record["armed"], record["version"], record["reason"])
        process.sources[state.name] = state
    elif kind == "fact":
        check({record["name"]: record["value"]}, {}, FACTS)
        process.facts.setdefault(record["name"], []).append(record["value"])
    elif kind == "lost":
        process.dropped += record["number"]
    elif kind == "close":
        process.closed = True


def _begin(pid: int, record: dict[str, Any]) -> Event:
    return Event(
        seq=record["seq"],
        pid=pid,
        tid=record["tid"],
        start_ns=record["t"],
        end_ns=None,
        kind=record["kind"],
        source=record["source"],
        kernel=record["kernel"],
        variant=read_variant(record["variant"]) if "variant" in record else None,
        origin="",
        nbytes=record.get("nbytes", 0),
        parent=record["parent"],
        stack=tuple(record.get("stack", ())),
        step=record["step"],
        file=record.get("file"),
        line=record.get("line"),
        detail=record.get("detail", ""),
    )


def _add_driver_events(
    process: _Process, records: tuple[DriverRecord, ...], stacks: dict[int, tuple[str, ...]]
) -> None:
    """Driver records as events: a load for each module, a link, an API call left open.

    A module takes the time of the API call around it; without one (a lazy load
    inside a launch) it is an instant. The self-test's own module is left out.
    """
    by_slot = {record.slot: record for record in records}
    seq = max(process.events, default=0)
    for record in records:
        call = by_slot.get(record.parent) if record.parent is not None else None
        if record.kernels == (SELF_TEST_KERNEL,):
            continue
        if record.type == "module_loaded":
            kind, span = "load", call or record
        elif record.type == "api_call" and record.api == "cuLinkComplete":
            kind, span = "link", record
        elif record.type == "api_call" and record.end_ns is None and "Load" in record.api:
            kind, span = "load", record
        else:
            continue
        seq += 1
        is_instant = span is record and record.type == "module_loaded"
        process.events[seq] = Event(
            seq=seq,
            pid=process.pid,
            tid=record.tid,
            start_ns=span.start_ns,
            end_ns=record.start_ns if is_instant else span.end_ns,
            kind="link" if kind == "link" else "load",
            source="driver",
            kernel=",".join(record.kernels),
            variant=None,
            origin="",
            nbytes=record.nbytes,
            parent=None,
            stack=stacks.get(record.slot, ()),
            step=record.step,
            detail=call.api if call else record.api,
            stack_ns=span.stack_ns,
        )


def _coverage(
    processes: list[_Process], driver_dropped: int, missing_stacks: dict[str, int]
) -> Coverage:
    sources: dict[str, SourceState] = {}
    for process in processes:
        sources.update(process.sources)
    for process in processes:  # one that armed a source says more than one that could not
        sources.update({n: state for n, state in process.sources.items() if state.armed})
    armed = [name for name in ("driver", "triton") if name in sources and sources[name].armed]
    hooks = [p.pid for p in processes if p.armed("triton") and not p.armed("driver")]
    facts: dict[str, list[Any]] = {}
    for process in processes:
        for name, values in process.facts.items():
            facts.setdefault(name, []).extend(values)
    blind = [str(text) for text in facts.get("blind_spot", ())]
    blind += [f"a hook of ours failed: {text}" for text in facts.get("hook_error", ())]
    return Coverage(
        sources=tuple(sources[name] for name in sorted(sources)),
        load_source=armed[0] if armed else None,
        hook_pids=tuple(sorted(hooks)) if armed[:1] == ["driver"] else (),
        unarmed_reasons=tuple(
            state.reason
            for process in processes
            for name, state in sorted(process.sources.items())
            if name == "driver" and not state.armed
        ),
        self_test=str(facts.get("self_test", ["skipped"])[-1]),
        dropped=driver_dropped + sum(process.dropped for process in processes),
        blind_spots=tuple(dict.fromkeys(blind)),
        assumed=tuple(dict.fromkeys(str(text) for text in facts.get("assumed", ()))),
        missing_stacks=missing_stacks,
        probes=int(facts.get("probes", [0])[-1]),
        probe_launches=facts.get("probe_launches", [None])[-1],
    )
