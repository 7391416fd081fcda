"""The report as text: 80 columns, the first line stands alone, no colour in a pipe."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from jitwatch.attribution import IN_REPO, union_ms
from jitwatch.events import Event, Stall
from jitwatch.render.lengths import ladder_lines, proof_lines
from jitwatch.report import Report
from jitwatch.verdict import plural, spell_lengths

WIDTH = 80
#: Kinds in the order they happen, with their plain nouns.
NOUNS = {
    "autotune": "autotune",
    "compile": "compile",
    "disk_hit": "disk hit",
    "launcher_build": "launcher build",
    "load": "load",
    "link": "link",
    "subprocess": "subprocess",
}
#: Causes whose values may be as many as there are lengths: told once for all.
EVERY_VALUE = ("JW103", "JW106")
#: Packages whose frames never say who launched a kernel.
SUBSCRIPT = "triton/runtime/jit.py"
MACHINERY = ("triton/", "jitwatch/", "torch/", "<")
BARRIER = (
    "A late load is also a barrier: it waits until all GPU work in flight is done, and "
    "other threads that submit meanwhile wait with it."
)
TIMED = " Its stall includes both."


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """Stalls of one kernel with one cause in the same arguments: told once."""

    stalls: tuple[Stall, ...]
    lengths: tuple[int, ...]
    timed: bool = True

    @property
    def first(self) -> Stall:
        """The earliest, which the text shows."""
        return self.stalls[0]


def render_text(report: Report) -> str:
    """The whole report, each line within 80 columns; ends with a newline."""
    found = diagnostics(report)
    lines = [first_line(report)]
    lines += [_wrapped(f"- {reason}", "  ") for reason in report.verdict.reasons]
    ours = [item for item in found if item.first.event.origin == IN_REPO]
    for item in ours:
        lines += ["", *diagnostic_lines(item)]
    if ours:
        lines += ["", _wrapped(BARRIER if is_simulated(report) else BARRIER + TIMED, "")]
    lines += _others(report, [item for item in found if item not in ours])
    lines += ["", *ladder_lines(report)] if report.ladder else []
    lines += ["", *proof_lines(report.proof)] if report.proof is not None else []
    lines += ["", *coverage_lines(report)]
    fitted = (_wrapped(line, "    ") for text in lines for line in text.split("\n"))
    return "\n".join(fitted) + "\n"


def is_simulated(report: Report) -> bool:
    """Whether nothing ran: then nothing is timed either."""
    return report.device.startswith("sim:")


def first_line(report: Report) -> str:
    """Verdict and number of requests, on one line."""
    counts = report.counts
    waited = {r for s in report.stalls if s.event.origin == IN_REPO for r in s.requests}
    served = plural(counts["requests"] or 0, "request")
    head = f"{report.verdict.outcome.upper()}: {served} on {report.device}"
    if report.proof is not None and not waited:
        head += f" stand for 1..{report.proof.max_tokens:,}"
    if waited:
        return f"{head}, {len(waited):,} waited for late in-repo work"
    return f"{head}, {plural(counts['warmup_variants'] or 0, 'variant')} warm at ready"


def diagnostics(report: Report, only: str | None = None) -> list[Diagnostic]:
    """The stalls, grouped by kernel, cause and arguments, in the order they came.

    `only` keeps those that one request waited for, in the repository under test.
    """
    lengths = {row.request.id: row.request.prompt_tokens for row in report.requests}
    groups: dict[tuple[object, ...], list[Stall]] = {}
    for stall in report.stalls:
        event = stall.event
        if only is not None and (only not in stall.requests or event.origin != IN_REPO):
            continue
        told = slice(1) if stall.cause.code in EVERY_VALUE else slice(3)
        arguments = tuple(astuple(row)[told] for row in stall.diff)
        kernel = event.kernel if event.origin == IN_REPO else event.origin
        key = (event.origin == IN_REPO, kernel, event.file, stall.cause.code, arguments)
        groups.setdefault(key, []).append(stall)
    return [
        Diagnostic(
            tuple(stalls),
            tuple(sorted({lengths[r] for s in stalls for r in s.requests if r in lengths})),
            timed=not is_simulated(report),
        )
        for stalls in groups.values()
    ]


def diagnostic_lines(item: Diagnostic) -> list[str]:
    """One diagnostic; its first line stands alone, however long it is."""
    stall = item.first
    head = f"{stall.cause.code} {stall.cause.name}: {stall.event.kernel}"
    if stall.diff:
        row = stall.diff[0]
        head += f", {row.argument}: now {row.now}, before {row.before}"
        values = {other.diff[0].now for other in item.stalls}
        if len(values) > 1:
            head += f" (and {plural(len(values) - 1, 'other value')})"
    lines = [head]
    lines += [f"  {row.argument}: now {row.now}, before {row.before}" for row in stall.diff[1:]]
    lines.append(_wrapped(f"  {_paid(item)}", "    "))
    place = _place(stall.event)
    if place:
        lines.append(_wrapped(f"  at   {place}", "       "))
    lines.append(_wrapped(f"  why  {stall.cause.why}", "       "))
    lines.append(_wrapped(f"  fix  {stall.cause.help}", "       "))
    return lines


def _paid(item: Diagnostic) -> str:
    counts = ", ".join(
        plural(number, noun)
        for kind, noun in NOUNS.items()
        if (number := sum(stall.event.kind == kind for stall in item.stalls))
    )
    spent = union_ms(
        (event.start_ns, event.start_ns + event.duration_ns)
        for event in (stall.event for stall in item.stalls)
    )
    where = f"prompt_tokens {spell_lengths(item.lengths)}" if item.lengths else "no request"
    guessed = (
        ", step inferred" if any(stall.inferred and stall.requests for stall in item.stalls) else ""
    )
    if not item.timed:
        return f"{where}: {counts}{guessed}"
    unseen = sum(stall.stall_ms is None for stall in item.stalls)
    took = "time unseen, inside launches" if unseen == len(item.stalls) else f"{spent:,.1f} ms"
    if 0 < unseen < len(item.stalls):
        took += f" and {plural(unseen, 'load')} inside launches, time unseen"
    return f"{where}: {counts}; {took}{guessed}"


def _place(event: Event) -> str:
    defined = f"{event.file}:{event.line}" if event.file else ""
    caller = launch_site(event.stack)
    if defined and caller:
        return f"{defined}, launched from {caller}"
    return defined or caller


def launch_site(stack: Sequence[str]) -> str:
    """The frame that launched: outside Triton's `kernel[grid]`, where the stack has it."""
    for inner, outer in itertools.pairwise(stack):
        if inner.startswith(SUBSCRIPT) and inner.endswith("<lambda>"):
            return outer
    return next((line for line in stack if not line.startswith(MACHINERY)), "")


def _others(report: Report, found: Sequence[Diagnostic]) -> list[str]:
    if not found:
        return []
    judged = "--package NAME judges a package's kernels"
    if report.counts["late_other_loads"] is not None:
        judged += ", --fail-on any all loads"
    lines = ["", f"Third-party, listed and not judged ({judged}):"]
    for item in found:
        event, cause = item.first.event, item.first.cause
        kernels = dict.fromkeys(_shortened(stall.event.kernel) for stall in item.stalls)
        named = ", ".join([*kernels][:2]) + (", …" if len(kernels) > 2 else "")
        where = f" ({event.file})" if event.origin == "other" else ""
        text = f"  {event.origin}{where}: {_paid(item)}; {cause.code} {cause.name}: {named}"
        lines.append(_wrapped(text, "    "))
    return lines


def _shortened(kernel: str) -> str:
    """A symbol name of a library, which may run to hundreds of characters."""
    first = kernel.split(",")[0]
    return first if len(first) <= 48 else f"{first[:45]}..."


def coverage_lines(report: Report) -> list[str]:
    """What was watching, its self-test, and what it could not see."""
    coverage = report.coverage
    lines = ["Coverage"]
    for state in coverage.sources:
        text = f"armed, {state.version}" if state.armed else f"not armed: {state.reason}"
        counted = "; loads are counted here" if state.name == coverage.load_source else ""
        lines.append(_wrapped(f"  {state.name:<8} {text}{counted}", "           "))
    lines.append(f"  self-test {coverage.self_test}; {plural(coverage.dropped, 'record')} lost")
    if coverage.probes:
        launches = plural(coverage.probe_launches or 0, "launch").replace("launchs", "launches")
        lines.append(f"  {plural(coverage.probes, 'probe')} after the sweep: {launches}")
    lines += [_wrapped(f"  blind: {text}", "         ") for text in coverage.blind_spots]
    lines += [_wrapped(f"  assumed: {text}", "    ") for text in _assumed(coverage.assumed)]
    for reason, number in coverage.missing_stacks.items():
        lines.append(f"  {plural(number, 'stack')} missing: {reason}")
    return lines


def _assumed(lines: Sequence[str]) -> list[str]:
    """Each assumption once, with the first line that made it and how many more did."""
    places: dict[str, list[str]] = {}
    for line in lines:
        place, found, what = line.partition(": ")
        places.setdefault(what if found else line, []).append(place if found else "")
    return [
        f"{what} ({found[0]}{f' and {len(found) - 1} more' if len(found) > 1 else ''})"
        if found[0]
        else what
        for what, found in places.items()
    ]


def _wrapped(text: str, indent: str) -> str:
    if len(text) <= WIDTH:
        return text
    first = len(text) - len(text.lstrip())
    return textwrap.fill(
        text.strip(),
        WIDTH,
        initial_indent=" " * first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
