"""The report as pandas frames: the only module that imports pandas."""

from __future__ import annotations

import pandas as pd

from jitwatch.render.json import to_object
from jitwatch.report import Report


def requests_frame(report: Report) -> pd.DataFrame:
    """A row for each swept request, indexed by its id."""
    rows = to_object(report)["requests"]
    columns = list(rows[0]) if rows else ["id", "prompt_tokens"]
    return pd.DataFrame(rows, columns=columns).set_index("id")


def stalls_frame(report: Report) -> pd.DataFrame:
    """A row for each stall and request that waited for it, with its cause and first diff row."""
    rows = [
        {
            "request": request,
            "kernel": stall.event.kernel,
            "origin": stall.event.origin,
            "kind": stall.event.kind,
            "stall_ms": stall.stall_ms,
            "code": stall.cause.code,
            "argument": stall.diff[0].argument if stall.diff else None,
            "now": stall.diff[0].now if stall.diff else None,
            "before": stall.diff[0].before if stall.diff else None,
        }
        for stall in report.stalls
        for request in stall.requests or (None,)
    ]
    columns = ["request", "kernel", "origin", "kind", "stall_ms", "code"]
    return pd.DataFrame(rows, columns=[*columns, "argument", "now", "before"])


def events_frame(report: Report) -> pd.DataFrame:
    """A row for each event of the run, warmup's included; times in ns."""
    rows = [
        {
            "seq": event.seq,
            "pid": event.pid,
            "kind": event.kind,
            "source": event.source,
            "kernel": event.kernel,
            "origin": event.origin,
            "start_ns": event.start_ns,
            "end_ns": event.end_ns,
            "nbytes": event.nbytes,
            "step": event.step,
        }
        for event in report.events
    ]
    columns = ["seq", "pid", "kind", "source", "kernel", "origin", "start_ns", "end_ns", "nbytes"]
    return pd.DataFrame(rows, columns=[*columns, "step"])
