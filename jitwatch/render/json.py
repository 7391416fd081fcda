"""The report as JSON: the schema other tools read.

`requests` are the swept ones, `events` all of a run. Additions keep the schema
number; a reader refuses a newer one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jitwatch.events import SCHEMA, Stall
from jitwatch.report import Report, RequestRow


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
        "counts": dict(report.counts),
        "requests": [_request(row) for row in report.requests],
        "stalls": [_stall(stall) for stall in report.stalls],
        "warm_variants": [asdict(variant) for variant in report.warm_variants],
        "events": [asdict(event) for event in report.events],
        "steps": [asdict(step) for step in report.steps],
        "ready_ns": report.ready_ns,
    }


def render_json(reports: Sequence[Report]) -> str:
    """One object for one device, a list of objects for several."""
    objects = [to_object(report) for report in reports]
    return json.dumps(objects[0] if len(objects) == 1 else objects, indent=1)


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
        "error": row.request.error,
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
