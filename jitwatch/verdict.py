"""The verdict: pass needs evidence, fail needs a late event, all else is inconclusive.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jitwatch.events import Verdict

#: Counts that must be zero in the default budget.
BUDGET = {
    "late_in_repo_loads": "late in-repo load",
    "late_compiles": "late in-repo compile",
    "late_autotunes": "late in-repo autotune",
    "late_launcher_builds": "late in-repo launcher build",
}

BUDGET_KINDS = ("load", "compile", "autotune", "launcher_build")


def judge(
    counts: Mapping[str, int | None],
    doubts: Sequence[str],
    *,
    fail_on: str,
) -> Verdict:
    """`fail` beats `inconclusive` beats `pass`; `doubts` are reasons not to trust the run."""
    failures = [plural(counts[key] or 0, name) for key, name in BUDGET.items() if counts[key]]
    if fail_on == "any" and counts["late_other_loads"]:
        failures.append(plural(counts["late_other_loads"] or 0, "late third-party load"))
    if failures:
        return Verdict("fail", (*failures, *doubts))
    reasons = list(doubts)
    if fail_on == "any" and counts["late_other_loads"] is None:
        reasons.append(
            "--fail-on any needs the driver hook on a GPU: without it third-party loads can't be "
            "seen (jitwatch doctor says what is missing)"
        )
    return Verdict("inconclusive" if reasons else "pass", tuple(reasons))


def plural(number: int, noun: str) -> str:
    """`1 late load`, `3 late loads`, `1,024 late loads`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def spell_lengths(lengths: Sequence[int], most: int = 8) -> str:
    """`11..15, 17` and how many there are, where there are many."""
    ranges: list[list[int]] = []
    for length in lengths:
        if ranges and length == ranges[-1][1] + 1:
            ranges[-1][1] = length
        else:
            ranges.append([length, length])
    shown = [str(a) if a == b else f"{a}..{b}" for a, b in ranges[:most]]
    text = ", ".join(shown)
    return text if len(ranges) <= most else f"{text}, … ({len(lengths):,} lengths)"
