"""What a GPU and the simulated device must agree on, taken from a report."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jitwatch.attribution import IN_REPO, loaded_variants
from jitwatch.report import Report

COUNTED = (
    "requests",
    "late_in_repo_loads",
    "late_compiles",
    "late_autotunes",
    "late_launcher_builds",
    "warmup_variants",
)


def summarize(report: Report) -> dict[str, Any]:
    """Outcome, counts, requests, in-repo variants and stalls; no times, no launches, no paths."""
    lengths = {row.request.id: row.request.prompt_tokens for row in report.requests}
    return {
        "outcome": report.verdict.outcome,
        "counts": {name: report.counts[name] for name in COUNTED},
        "requests": [
            [row.request.prompt_tokens, row.in_repo_loads, row.compiles] for row in report.requests
        ],
        "variants": variants(report),
        "stalls": [
            {
                "prompt_tokens": [lengths[request] for request in stall.requests],
                "kernel": stall.event.kernel,
                "kind": stall.event.kind,
                "code": stall.cause.code,
                "diff": [asdict(row) for row in stall.diff],
            }
            for stall in report.stalls
            if stall.event.origin == IN_REPO
        ],
    }


def variants(report: Report) -> list[dict[str, Any]]:
    """Every in-repo variant loaded in the run, once, in the order they came."""
    found = loaded_variants(report.events, report.coverage)
    return [
        {name: value for name, value in as_lists(asdict(variant)).items() if name != "tuned"}
        for variant in found
    ]


def as_lists(value: Any) -> Any:
    """Tuples as lists, as they come back from JSON."""
    if isinstance(value, dict):
        return {name: as_lists(item) for name, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
