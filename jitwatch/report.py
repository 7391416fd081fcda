"""From a run to its report: counts, requests, stalls with causes, verdict.

Pure functions over what `log.read_run` returns. Renderers take the `Report`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jitwatch import attribution, diagnosis, evidence
from jitwatch.attribution import IN_REPO
from jitwatch.events import (
    Coverage,
    Event,
    Proof,
    Request,
    Run,
    Rung,
    Stall,
    Step,
    Variant,
    VariantUse,
    Verdict,
)
from jitwatch.uses import ladder_of, read_proof, uses_of
from jitwatch.verdict import judge

#: Kinds that are counted where they are late and in the repository under test.
COUNTED_KINDS = {
    "late_in_repo_loads": "load",
    "late_compiles": "compile",
    "late_autotunes": "autotune",
    "late_launcher_builds": "launcher_build",
}


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One swept request and what it paid.

    `launches` is None where nothing counted them, `stall_ms` on a simulated device: what
    this machine took to compile says nothing of what a GPU would.
    """

    request: Request
    phases: Mapping[str, int]
    in_repo_loads: int
    other_loads: int | None
    compiles: int
    stall_ms: float | None

    @property
    def serve_ms(self) -> float | None:
        """From arrival until the target had served it."""
        if self.request.end_ns is None:
            return None
        return (self.request.end_ns - self.request.arrival_ns) / 1e6

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token, where the target says when that was and a device ran."""
        if self.request.first_token_ns is None:
            return None
        return (self.request.first_token_ns - self.request.arrival_ns) / 1e6


@dataclass(frozen=True, slots=True)
class Report:
    """All that a renderer needs of one run on one device.

    `doubts` are the reasons not to trust any of it: a pass has none. That some requests were not
    answered is only in the verdict, as it says nothing of the others. `ladder` is what warmup
    ran, where the target says so; `uses` which lengths launch which variant, known where the
    device is simulated; `proof` what `sweep --prove` found.
    """

    device: str
    environment: Mapping[str, Any]
    coverage: Coverage
    verdict: Verdict
    doubts: tuple[str, ...]
    counts: Mapping[str, int | None]
    requests: tuple[RequestRow, ...]
    stalls: tuple[Stall, ...]
    events: tuple[Event, ...]
    steps: tuple[Step, ...]
    warm_variants: tuple[Variant, ...]
    ready_ns: int | None
    ladder: tuple[Rung, ...] = ()
    uses: tuple[VariantUse, ...] = ()
    proof: Proof | None = None


def build_report(run: Run) -> Report:
    """Attribute, diagnose, count and judge one run.

    Raises:
        TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError: `meta` or
            `facts` hold what no run writes.
    """
    meta, coverage, requests = run.meta, run.coverage, run.requests
    simulated = str(meta["device"]).startswith("sim:")
    packages = run.facts.get("packages", {})
    roots = Roots(meta.get("repo"), packages)
    placed = attribution.place(attribution.explain(run.events), roots.repo, packages)
    stalls = _stalls(replace(run, events=tuple(placed)), simulated=simulated)
    warm = _warm_variants(placed, run.ready_ns, coverage)
    # Only the driver sees what third parties load and launch; the simulated one sees Triton's.
    seen = not simulated and coverage.load_source == "driver"
    counts = _counts(stalls, requests, warm, coverage, simulated=simulated, sees_others=seen)
    proof = read_proof(run.facts["proof"]) if "proof" in run.facts else None
    ended = evidence.ended_badly(run)
    lengths = meta.get("lengths") or run.facts.get("lengths", ())
    not_served = evidence.unanswered(requests, lengths)
    doubts = evidence.doubts(run, placed, counts, proof, simulated=simulated)
    fail_on = str(meta.get("fail_on", "in-repo"))
    if not ended and not doubts and not (seen and fail_on == "any"):
        doubts = evidence.nothing_under_test(placed, coverage)
    return Report(
        device=str(meta["device"]),
        environment=_environment(meta, run.facts, simulated=simulated),
        coverage=_relative_coverage(coverage, roots),
        verdict=judge(counts, [*ended, *not_served, *doubts], fail_on=fail_on),
        doubts=(*ended, *doubts),
        counts=counts,
        requests=_rows(requests, run.steps, stalls, simulated=simulated, sees_others=seen),
        stalls=tuple(replace(stall, event=roots.relative(stall.event)) for stall in stalls),
        events=tuple(roots.relative(event) for event in placed),
        steps=run.steps,
        warm_variants=warm,
        ready_ns=run.ready_ns,
        ladder=ladder_of(meta, run.facts),
        uses=uses_of(placed, requests),
        proof=proof,
    )


class Roots:
    """Shortens paths: below the repository, below a package's parent, below site-packages."""

    def __init__(self, repo: str | None, packages: Mapping[str, Sequence[str]]) -> None:
        self.repo = repo
        parents = [folder.rsplit("/", 1)[0] for folders in packages.values() for folder in folders]
        self._prefixes = sorted(
            {folder.rstrip("/") + "/" for folder in (*parents, *([repo] if repo else []))},
            key=len,
            reverse=True,
        )

    def short(self, text: str) -> str:
        """`text` with its leading path made relative; elsewhere only the last two parts stay."""
        match = re.match(r".*/(?:site|dist)-packages/(.*)$", text)
        if match:
            return match.group(1)
        for prefix in self._prefixes:
            if text.startswith(prefix):
                return text[len(prefix) :]
        return "/".join(text.split("/")[-2:]) if text.startswith("/") else text

    def relative(self, event: Event) -> Event:
        """The event with all its paths shortened."""
        return replace(
            event,
            file=self.short(event.file) if event.file else None,
            stack=tuple(self.short(frame) for frame in event.stack),
        )


def _stalls(run: Run, *, simulated: bool) -> list[Stall]:
    if run.ready_ns is None:
        return []
    until_ns = run.facts.get("served_until_ns")
    charges = attribution.charge(run.events, run.steps, run.ready_ns, until_ns, run.requests)
    found = diagnosis.diagnose(run.events, (charge.event for charge in charges), run.ready_ns)
    stalls = []
    for charge in charges:
        event = charge.event
        if event.kind == "load" and not run.coverage.counts(event):
            continue
        diagnosed = found[event.pid, event.seq]
        stalls.append(
            Stall(
                event=event,
                requests=charge.requests,
                stall_ms=None if simulated else _stall_ms(event),
                cause=diagnosed.cause,
                diff=diagnosed.diff,
                inferred=charge.inferred,
            )
        )
    return stalls


def _stall_ms(event: Event) -> float | None:
    """What an event took; None where its begin was not seen."""
    if event.source == "driver" and event.parent is None and event.end_ns == event.start_ns:
        return None
    return round(event.duration_ns / 1e6, 3)


def _warm_variants(
    events: Iterable[Event], ready_ns: int | None, coverage: Coverage
) -> tuple[Variant, ...]:
    """What was loaded in the repository before ready, each variant once."""
    before = (event for event in events if ready_ns is None or event.start_ns < ready_ns)
    return attribution.loaded_variants(before, coverage)


def _counts(
    stalls: Sequence[Stall],
    requests: Sequence[Request],
    warm: Sequence[Variant],
    coverage: Coverage,
    *,
    simulated: bool,
    sees_others: bool,
) -> dict[str, int | None]:
    launches = [request.launches for request in requests if request.launches is not None]
    total = sum(launches) if launches else coverage.probe_launches
    if not simulated and not sees_others:
        total = None
    counts: dict[str, int | None] = {"requests": len(requests), "launches": total}
    for name, kind in COUNTED_KINDS.items():
        counts[name] = sum(
            stall.event.kind == kind and stall.event.origin == IN_REPO for stall in stalls
        )
    others = sum(s.event.kind == "load" and s.event.origin != IN_REPO for s in stalls)
    counts["late_other_loads"] = others if sees_others else None
    counts["warmup_variants"] = len(warm)
    return counts


def _rows(
    requests: Sequence[Request],
    steps: Sequence[Step],
    stalls: Sequence[Stall],
    *,
    simulated: bool,
    sees_others: bool,
) -> tuple[RequestRow, ...]:
    paid: dict[str, list[Stall]] = {}
    for stall in stalls:
        for request in stall.requests:
            paid.setdefault(request, []).append(stall)
    phases: dict[str, dict[str, int]] = {}
    for step in steps:
        for request in step.requests:
            tally = phases.setdefault(request, {})
            tally[step.phase] = tally.get(step.phase, 0) + 1
    return tuple(
        _row(
            request,
            phases.get(request.id, {}),
            paid.get(request.id, []),
            simulated=simulated,
            sees_others=sees_others,
        )
        for request in requests
    )


def _row(
    request: Request,
    phases: Mapping[str, int],
    stalls: Sequence[Stall],
    *,
    simulated: bool,
    sees_others: bool,
) -> RequestRow:
    loads = [stall for stall in stalls if stall.event.kind == "load"]
    in_repo = sum(stall.event.origin == IN_REPO for stall in loads)
    spans = [
        (event.start_ns, event.start_ns + event.duration_ns)
        for event in (stall.event for stall in stalls)
    ]
    return RequestRow(
        request=replace(request, first_token_ns=None) if simulated else request,
        phases=phases,
        in_repo_loads=in_repo,
        other_loads=len(loads) - in_repo if sees_others else None,
        compiles=sum(s.event.kind == "compile" and s.event.origin == IN_REPO for s in stalls),
        stall_ms=None if simulated else round(attribution.union_ms(spans), 3),
    )


def _environment(
    meta: Mapping[str, Any], facts: Mapping[str, Any], *, simulated: bool
) -> dict[str, Any]:
    found = {**meta.get("environment", {}), **facts.get("environment", {})}
    if "target" in meta:
        found["target"] = meta["target"]
    # What this machine took says nothing of what a GPU would.
    if "warmup_seconds" in facts and not simulated:
        found["warmup_seconds"] = facts["warmup_seconds"]
    if "peak_memory_bytes" in facts:
        found["peak_memory_bytes"] = facts["peak_memory_bytes"]
    return found


def _relative_coverage(coverage: Coverage, roots: Roots) -> Coverage:
    return replace(coverage, assumed=tuple(roots.short(text) for text in coverage.assumed))
