"""Whether a run can be trusted: what a pass needs and this run lacks, what contradicts itself.

Pure functions; each returns doubts, as sentences with their mend where there is one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jitwatch.attribution import IN_REPO, counted_loads, loaded_variants
from jitwatch.events import Coverage, Event, Proof, Request, Run, Step
from jitwatch.variants import describe, read_variant
from jitwatch.verdict import plural, spell_lengths


def ended_badly(run: Run) -> list[str]:
    """How the target's process ended, if not by itself: by its parent's word, else by its own."""
    told: Sequence[str] = run.meta.get("doubts", ())
    if told:
        return list(told)
    if "failed" in run.facts:
        failed = run.facts["failed"]
        return [f"the target failed ({failed['stage']}): {failed['error']}"]
    if run.facts.get("unclosed") and run.meta.get("mode") != "run":
        return ["the target's process was killed: what it had still to say is unknown"]
    return []


def doubts(
    run: Run,
    events: Sequence[Event],
    counts: Mapping[str, int | None],
    proof: Proof | None,
    *,
    simulated: bool,
) -> list[str]:
    """All reasons not to trust what a run shows; `events` are its own with their origins."""
    facts, coverage, asked = run.facts, run.coverage, run.meta.get("prove")
    found = [
        *contradictions(events, run.requests, run.ready_ns, coverage, facts),
        *([] if ended_badly(run) else unlike_simulated(run, events)),
        *missing_evidence(coverage),
        *(
            unwatched_driver(coverage)
            if run.meta.get("mode") == "run"
            else unseen_launches(counts, coverage, run.requests, simulated=simulated)
        ),
    ]
    if facts.get("says_steps"):
        found += without_steps(run.requests, run.steps)
    if simulated and (facts.get("says_steps") or proof is not None):
        found += without_launches(run.requests, events)
    if asked is not None:
        found += unproved(proof, asked, run.requests, facts.get("unproved"))
    return found


def missing_evidence(coverage: Coverage) -> list[str]:
    """What a pass would need of any run and this one does not have."""
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
    return reasons


def unwatched_driver(coverage: Coverage) -> list[str]:
    """In a watched program each load must be seen at the driver: there are no probes to ask."""
    if coverage.load_source == "driver" and not coverage.hook_pids:
        return []
    pids = ", ".join(map(str, coverage.hook_pids))
    reasons = "; ".join(dict.fromkeys(coverage.unarmed_reasons))
    where = f" in process {pids}" if pids else ""
    why = f" ({reasons})" if reasons else ""
    there = " there" if pids else ""
    return [
        f"the driver hook was not armed{where}{why}: other loads than Triton's are unseen{there}"
    ]


def unseen_launches(
    counts: Mapping[str, int | None],
    coverage: Coverage,
    requests: Sequence[Request],
    *,
    simulated: bool,
) -> list[str]:
    """Whether a sweep's requests launched anything."""
    reasons = []
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
    requests: Sequence[Request],
    ready_ns: int | None,
    coverage: Coverage,
    facts: Mapping[str, Any],
) -> list[str]:
    """Reasons not to trust this run that its own records show."""
    found = []
    if ready_ns is None:
        found.append("the target was never ready: nothing can be late")
    until_ns = facts.get("served_until_ns")
    ends = [ready_ns or 0, *(request.end_ns or request.arrival_ns for request in requests)]
    if until_ns is not None and until_ns < max(ends):
        found.append("what it says of when the last request was served is before that")
    if facts.get("hooks_displaced"):
        found.append(
            "the target replaced Triton's load hooks: whose loads came after that is unknown "
            "(add to kernel_load_start_hook, don't assign it)"
        )
    if coverage.load_source == "driver":
        found += _hook_without_module([e for e in events if e.pid not in coverage.hook_pids])
        found += _launched_without_load(events, facts.get("probe_kernels", ()))
    return found


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


def unanswered(requests: Sequence[Request], lengths: Sequence[int]) -> list[str]:
    """The requests that can't be judged: they raised, or were not answered, or never came."""
    found = []
    failed = [request for request in requests if request.error]
    if failed:
        named = ", ".join(str(request.prompt_tokens) for request in failed[:10])
        more = f" and {len(failed) - 10} more" if len(failed) > 10 else ""
        found.append(f"the target raised at prompt_tokens {named}{more}: {failed[0].error}")
    answered = {request.prompt_tokens for request in requests if request.end_ns is not None}
    open_ones = sorted({r.prompt_tokens for r in requests if r.end_ns is None} - set(lengths))
    if open_ones:
        found.append(f"not answered: prompt_tokens {spell_lengths(open_ones)}")
    missing = [length for length in lengths if length not in answered]
    if missing:
        found.append(
            f"{len(missing):,} of {plural(len(lengths), 'length')} not served: "
            f"{spell_lengths(missing)}"
        )
    return found


def without_launches(requests: Sequence[Request], events: Sequence[Event]) -> list[str]:
    """Where launches are counted, each answered request must have some, of what was loaded."""
    answered = [r for r in requests if r.error is None and r.end_ns is not None]
    idle = [request for request in answered if not request.launches]
    found = []
    if idle:
        found.append(
            f"{plural(len(idle), 'request')} launched nothing, first {idle[0].id}: "
            "what the target does for them can't be judged"
        )
    loads = {(event.pid, event.seq) for event in events if event.kind == "load"}
    unknown = [r for r in answered if any((r.pid, seq) not in loads for seq in r.used or ())]
    if unknown:
        found.append(f"{unknown[0].id} launched what no record says was loaded")
    return found


def unproved(
    proof: Proof | None, asked: int, requests: Sequence[Request], why: str | None
) -> list[str]:
    """Whether the proof asked for, for lengths up to `asked`, is one of these requests."""
    if proof is None:
        return [f"the proof for 1..{asked:,} was not finished" + (f": {why}" if why else "")]
    if why is not None:
        return [f"the proof for 1..{proof.max_tokens:,} does not hold: {why}"]
    served = {r.prompt_tokens for r in requests if r.error is None and r.end_ns is not None}
    if proof.served != len(served) or proof.max_tokens not in served:
        return [
            f"the proof for 1..{proof.max_tokens:,} is of {plural(proof.served, 'length')}, but "
            f"{len(served):,} were answered, up to {max(served, default=0):,}"
        ]
    if proof.max_tokens > asked:
        return [f"the proof is for 1..{proof.max_tokens:,}, asked for was 1..{asked:,}"]
    return []


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


def unlike_simulated(run: Run, events: Sequence[Event]) -> list[str]:
    """Where the simulated run of the same requests named other variants, one has a bug."""
    simulated: Sequence[Mapping[str, Any]] | None = run.meta.get("simulated")
    if simulated is None:
        return []
    expected = {read_variant(dict(item)) for item in simulated}
    until_ns = run.facts.get("served_until_ns")
    served = (e for e in events if until_ns is None or e.start_ns < until_ns)
    seen = set(loaded_variants(served, run.coverage))
    found = []
    for where, names in (("here", seen - expected), ("simulated", expected - seen)):
        if names:
            first = min(describe(variant) for variant in names)
            found.append(
                f"{plural(len(names), 'variant')} only {where}, first {first}: the simulated "
                f"device and this one disagree, so one of them has a bug"
            )
    return found


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
