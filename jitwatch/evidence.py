"""Whether a run can be trusted: what a pass needs and this run lacks, what contradicts itself.

Pure functions; each returns doubts, as sentences with their mend where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitwatch.attribution import IN_REPO, counted_loads, loaded_variants
from jitwatch.events import Coverage, Event, Request, Step
from jitwatch.variants import describe, read_variant
from jitwatch.verdict import plural


def missing_evidence(
    counts: Mapping[str, int | None],
    coverage: Coverage,
    requests: Sequence[Request],
    *,
    simulated: bool,
) -> list[str]:
    """What a pass would need and this run does not have."""
    reasons = []
    if coverage.load_source is None:
        why = "; ".join(f"{state.name}: {state.reason}" for state in coverage.sources)
        reasons.append(f"no source of loads was armed ({why or 'none was tried'})")
    if coverage.self_test not in ("passed",) and not coverage.self_test.startswith("skipped"):
        reasons.append(f"the driver hook's self-test failed: {coverage.self_test}")
    if coverage.dropped:
        reasons.append(f"{plural(coverage.dropped, 'record')} lost: a late load may be among them")
    if coverage.silent_pids:
        pids = ", ".join(map(str, coverage.silent_pids))
        reasons.append(f"forked processes compiled or loaded kernels, unseen: {pids}")
    if not requests:
        reasons.append("no request was served")
    elif not simulated and coverage.load_source == "triton":
        reasons.append("the driver hook is not armed: whether anything was launched is unknown")
    elif not simulated and coverage.load_source == "driver" and not coverage.probes:
        reasons.append("no probe request was answered: whether anything was launched is unknown")
    elif counts["launches"] == 0:
        reasons.append(
            "no kernel launch was seen: the target launches nothing that can be watched here; "
            "check that it runs its kernels on the device, not on the CPU"
        )
    return reasons


def contradictions(
    events: Sequence[Event],
    ready_ns: int | None,
    coverage: Coverage,
    facts: Mapping[str, Any],
) -> list[str]:
    """Reasons not to trust this run that its own records show."""
    doubts = []
    if ready_ns is None:
        doubts.append("the target was never ready: nothing can be late")
    if facts.get("hooks_displaced"):
        doubts.append(
            "the target replaced Triton's load hooks: whose loads came after that is unknown "
            "(add to kernel_load_start_hook, don't assign it)"
        )
    if coverage.load_source == "driver":
        doubts += _hook_without_module(events)
        doubts += _launched_without_load(events, facts.get("probe_kernels", ()))
    return doubts


def without_steps(requests: Sequence[Request], steps: Sequence[Step]) -> list[str]:
    """Where a target says its own steps, each request that it answered must have one."""
    seen = {request for step in steps for request in step.requests}
    missing = [request for request in requests if request.error is None and request.id not in seen]
    if not missing:
        return []
    return [
        f"{plural(len(missing), 'request')} without a step, first {missing[0].id}: what loaded in "
        "them can't be charged; call the observer around every forward"
    ]


def nothing_under_test(events: Sequence[Event], coverage: Coverage) -> list[str]:
    """Kernels ran, and none of them is of the repository or a package under test."""
    if loaded_variants(events, coverage):
        return []
    owners: dict[str, str] = {}
    for event in counted_loads(events, coverage):
        if event.variant is not None and event.file is not None:
            owners.setdefault(event.origin, event.file)
    if not owners:
        return ["no kernel under test was seen: nothing that was launched is a Triton kernel"]
    mends = [
        f"--repo with the folder above {file}" if owner == "other" else f"--package {owner}"
        for owner, file in owners.items()
    ]
    return [
        f"no kernel under test was seen: what ran is from {', '.join(owners)} "
        f"(to judge it: {'; '.join(mends)})"
    ]


def unlike_simulated(
    events: Sequence[Event],
    coverage: Coverage,
    simulated: Sequence[Mapping[str, Any]] | None,
    until_ns: int | None,
) -> list[str]:
    """Where the simulated run of the same requests named other variants, one has a bug."""
    if simulated is None:
        return []
    expected = {read_variant(dict(item)) for item in simulated}
    served = (e for e in events if until_ns is None or e.start_ns < until_ns)
    seen = set(loaded_variants(served, coverage))
    doubts = []
    for where, names in (("here", seen - expected), ("simulated", expected - seen)):
        if names:
            first = min(describe(variant) for variant in names)
            doubts.append(
                f"{plural(len(names), 'variant')} only {where}, first {first}: the simulated "
                f"device and this one disagree, so one of them has a bug"
            )
    return doubts


def _hook_without_module(events: Sequence[Event]) -> list[str]:
    """Each load a compiler's hook reports must have its module at the driver."""
    confirmed = {
        (event.pid, event.parent)
        for event in events
        if event.kind == "load" and event.source == "driver" and event.parent is not None
    }
    missing = [
        event
        for event in events
        if event.kind == "load"
        and event.source != "driver"
        and event.end_ns is not None
        and event.detail != "raised"
        and (event.pid, event.seq) not in confirmed
    ]
    if not missing:
        return []
    return [
        f"the driver hook missed {len(missing)} load(s) that a compiler's hook reported, "
        f"first {missing[0].kernel}"
    ]


def _launched_without_load(events: Sequence[Event], launched: Sequence[str]) -> list[str]:
    """Each kernel of ours that a probe launched must be one whose load was recorded."""
    loaded = {event.kernel for event in events if event.kind == "load"}
    ours = {event.kernel for event in events if event.origin == IN_REPO}
    missing = sorted(name for name in launched if name in ours and name not in loaded)
    return [f"a probe launched {name}, whose load was not recorded" for name in missing]
