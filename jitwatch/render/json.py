"""The report as JSON, written and read: the schema other tools use.

`requests` are the swept ones, `events` all of a run. Additions keep the schema
number; a reader refuses a newer one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from jitwatch.errors import RunFileError
from jitwatch.events import (
    SCHEMA,
    Cause,
    Coverage,
    DiffRow,
    Event,
    Request,
    SourceState,
    Stall,
    Step,
    VariantUse,
    Verdict,
)
from jitwatch.report import Report, RequestRow
from jitwatch.uses import read_proof, read_rung, read_tokens
from jitwatch.variants import read_variant


def to_object(report: Report) -> dict[str, Any]:
    """One report as plain data."""
    return {
        "schema": SCHEMA,
        "tool": {"name": "jitwatch", "version": report.environment.get("jitwatch")},
        "device": report.device,
        "environment": dict(report.environment),
        "coverage": asdict(report.coverage),
        "verdict": {
            "outcome": report.verdict.outcome,
            "reasons": list(report.verdict.reasons),
        },
        "doubts": list(report.doubts),
        "counts": dict(report.counts),
        "requests": [_request(row) for row in report.requests],
        "stalls": [_stall(stall) for stall in report.stalls],
        "warm_variants": [asdict(variant) for variant in report.warm_variants],
        "events": [asdict(event) for event in report.events],
        "steps": [asdict(step) for step in report.steps],
        "ready_ns": report.ready_ns,
        "ladder": [asdict(rung) for rung in report.ladder],
        "uses": [asdict(use) for use in report.uses],
        "proof": asdict(report.proof) if report.proof is not None else None,
    }


def render_json(reports: Sequence[Report]) -> str:
    """One object for one device, a list of objects for several; a row is a line, for diffs."""
    objects = [_text(to_object(report)) for report in reports]
    return objects[0] if len(objects) == 1 else f"[{', '.join(objects)}]"


def _text(data: Mapping[str, Any]) -> str:
    """An object whose lists of rows have a line for each."""
    fields = []
    for name, value in data.items():
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"
        else:
            text = json.dumps(value, indent=1).replace("\n", "\n ")
        fields.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(fields) + "\n}"


def read_json(text: str, name: str = "the report") -> list[Report]:
    """The reports that `render_json` wrote.

    Raises:
        RunFileError: `name` is no such JSON, or of a newer schema.
    """
    try:
        data = json.loads(text)
        objects = data if isinstance(data, list) else [data]
        newest = max(int(item["schema"]) for item in objects)
        if newest <= SCHEMA:
            return [_report(item) for item in objects]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFileError(
            f"{name} is no report of jitwatch's",
            f"{type(error).__name__}: {error}",
            "give a run directory, or what `jitwatch sweep --json FILE` wrote",
        ) from error
    raise RunFileError(
        f"{name} has schema {newest}",
        f"this jitwatch reads up to {SCHEMA}",
        "read it with the jitwatch that wrote it, or a newer one",
    )


def _report(data: dict[str, Any]) -> Report:
    events = {(item["pid"], item["seq"]): _event(item) for item in data["events"]}
    return Report(
        device=data["device"],
        environment=data["environment"],
        coverage=_coverage(data["coverage"]),
        verdict=Verdict(data["verdict"]["outcome"], tuple(data["verdict"]["reasons"])),
        doubts=tuple(data["doubts"]),
        counts=data["counts"],
        requests=tuple(_read_request(item) for item in data["requests"]),
        stalls=tuple(_read_stall(item, events) for item in data["stalls"]),
        events=tuple(events.values()),
        steps=tuple(
            Step(**{**item, "requests": tuple(item["requests"])}) for item in data["steps"]
        ),
        warm_variants=tuple(read_variant(item) for item in data["warm_variants"]),
        ready_ns=data["ready_ns"],
        ladder=tuple(read_rung(item) for item in data.get("ladder", ())),
        uses=tuple(_read_use(item) for item in data.get("uses", ())),
        proof=read_proof(data["proof"]) if data.get("proof") else None,
    )


def _read_use(data: dict[str, Any]) -> VariantUse:
    spans = tuple((first, last) for first, last in data["spans"])
    return VariantUse(read_variant(data["variant"]), data["origin"], spans)


def _event(data: dict[str, Any]) -> Event:
    variant = read_variant(data["variant"]) if data["variant"] else None
    return Event(**{**data, "variant": variant, "stack": tuple(data["stack"])})


def _coverage(data: dict[str, Any]) -> Coverage:
    names = ("silent_pids", "blind_spots", "assumed", "hook_pids", "unarmed_reasons")
    sources = tuple(SourceState(**item) for item in data["sources"])
    tuples = {name: tuple(data.get(name, ())) for name in names}
    return Coverage(**{**data, "sources": sources, **tuples})


def _read_request(data: dict[str, Any]) -> RequestRow:
    # Which process, and its event numbers, are told by `uses`.
    names = (field.name for field in fields(Request) if field.name not in ("pid", "used"))
    read_tokens(data["prompt_tokens"])
    return RequestRow(
        request=Request(**{name: data["times"].get(name, data.get(name)) for name in names}),
        phases=data["phases"],
        in_repo_loads=data["in_repo_loads"],
        other_loads=data["other_loads"],
        compiles=data["compiles"],
        stall_ms=data["stall_ms"],
    )


def _read_stall(data: dict[str, Any], events: Mapping[tuple[int, int], Event]) -> Stall:
    return Stall(
        event=events[data["pid"], data["event"]],
        requests=tuple(data["requests"]),
        stall_ms=data["stall_ms"],
        cause=Cause(**data["cause"]),
        diff=tuple(DiffRow(**row) for row in data["diff"]),
        inferred=data["inferred"],
    )


def _request(row: RequestRow) -> dict[str, Any]:
    return {
        "id": row.request.id,
        "prompt_tokens": row.request.prompt_tokens,
        "phases": dict(row.phases),
        "in_repo_loads": row.in_repo_loads,
        "other_loads": row.other_loads,
        "compiles": row.compiles,
        "launches": row.request.launches,
        "stall_ms": row.stall_ms,
        "ttft_ms": row.ttft_ms,
        "serve_ms": row.serve_ms,
        "output_tokens": row.request.output_tokens,
        "error": row.request.error,
        "times": {
            "arrival_ns": row.request.arrival_ns,
            "first_token_ns": row.request.first_token_ns,
            "end_ns": row.request.end_ns,
        },
    }


def _stall(stall: Stall) -> dict[str, Any]:
    return {
        "event": stall.event.seq,
        "pid": stall.event.pid,
        "kernel": stall.event.kernel,
        "origin": stall.event.origin,
        "kind": stall.event.kind,
        "requests": list(stall.requests),
        "inferred": stall.inferred,
        "stall_ms": stall.stall_ms,
        "cause": asdict(stall.cause),
        "diff": [asdict(row) for row in stall.diff],
    }
