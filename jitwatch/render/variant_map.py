"""The variant map: prompt length across, kernels down, a bar where each variant rules.

Owns the layout, from a report to lanes, and the map as text. `map_figure.py` draws the same
layout. Pure: no I/O, no clock.
"""

from __future__ import annotations

import math
import textwrap
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jitwatch.attribution import IN_REPO
from jitwatch.errors import UsageError
from jitwatch.events import Variant, VariantUse
from jitwatch.report import Report
from jitwatch.verdict import plural

#: Of the map as text: a line, the names on its left, the columns of the axis.
WIDTH, NAME_WIDTH, COLUMNS = 80, 24, 56
LETTERS = "abcdefghijklmnopqrstuvwxyz"
#: Kinds of a stall that a mark stands for.
MARKED = ("load", "autotune")
#: Fields of a variant that its label names, and variants of a kernel that are told apart.
LABEL_FIELDS, MOST_LABELS = 3, 8
#: Characters at the end of a name that is cut: names that a compiler makes end in a number.
NAME_END = 8
#: How much of the axis a named length needs to itself.
TICK_ROOM = 0.045
NO_BARS = "a GPU does not tell which variants a request launched; a sweep on sim:BOARD has bars"
NO_USES = "no launch of an answered request was recorded, so there are no bars"


@dataclass(frozen=True, slots=True)
class Bar:
    """A variant from one swept length to another, both included.

    `variant` counts its kernel's; `label` tells it from the kernel's others.
    """

    first: int
    last: int
    variant: int
    label: str


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of the map: the bars of one variant, or of all where a kernel has too many.

    The last of a kernel's lanes has the labels of all its variants and the lengths that were late.
    """

    name: str
    bars: tuple[Bar, ...]
    labels: tuple[str, ...] = ()
    late: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VariantMap:
    """What is drawn. `constant` are kernels with one variant, never late; `notes` are sentences."""

    title: str
    shortest: int
    longest: int
    lanes: tuple[Lane, ...]
    constant: tuple[str, ...]
    rungs: tuple[int, ...]
    notes: tuple[str, ...]


def lay_out(report: Report) -> VariantMap:
    """The map of one run.

    Raises:
        UsageError: no request was served, so that there is no axis.
    """
    lengths = sorted(row.request.prompt_tokens for row in report.requests)
    if not lengths:
        raise UsageError(
            f"the run on {report.device} has no variant map",
            "no request was served, so there is no length to draw",
            "`jitwatch report RUN` says what went wrong; mend that and sweep again",
        )
    rungs = [rung.prompt_tokens for rung in report.ladder]
    late = late_lengths(report)
    uses = uses_by_kernel(report, lengths)
    constant = [kernel for kernel, found in uses.items() if len(found) == 1 and kernel not in late]
    lanes = [
        lane
        for kernel in sorted(set(uses) | set(late), key=lambda name: (name not in late, name))
        if kernel not in constant
        for lane in lanes_of(kernel, uses.get(kernel, []), late.get(kernel, ()))
    ]
    return VariantMap(
        title=title_of(report, lengths),
        shortest=lengths[0],
        longest=lengths[-1],
        lanes=tuple(lanes),
        constant=tuple(sorted(constant)),
        rungs=tuple(sorted({n for n in rungs if n <= lengths[-1]})),
        notes=tuple(notes_of(report, {kernel: uses[kernel][0] for kernel in constant}, lengths)),
    )


def title_of(report: Report, lengths: Sequence[int]) -> str:
    """Target, verdict, device and lengths."""
    served = f"{plural(len(lengths), 'length')} from {lengths[0]:,} to {lengths[-1]:,}"
    target = report.environment.get("target")
    said = f"{report.verdict.outcome.upper()} on {report.device}, {served}"
    return f"{target}: {said}" if target else said


def late_lengths(report: Report) -> dict[str, tuple[int, ...]]:
    """By kernel in the repository, the lengths that waited for a load or an autotune of it."""
    lengths = {row.request.id: row.request.prompt_tokens for row in report.requests}
    found: dict[str, set[int]] = {}
    for stall in report.stalls:
        if stall.event.kind in MARKED and stall.event.origin == IN_REPO:
            paid = {lengths[request] for request in stall.requests if request in lengths}
            found.setdefault(stall.event.kernel, set()).update(paid)
    return {kernel: tuple(sorted(paid)) for kernel, paid in found.items() if paid}


def uses_by_kernel(report: Report, lengths: Sequence[int]) -> dict[str, list[VariantUse]]:
    """The variants in the repository, each once: one may be loaded again, tuned or redefined."""
    spans: dict[Variant, list[tuple[int, int]]] = {}
    for use in report.uses:
        if use.origin == IN_REPO:
            spans.setdefault(use.variant, []).extend(use.spans)
    uses: dict[str, list[VariantUse]] = {}
    for variant, found in spans.items():
        use = VariantUse(variant, IN_REPO, merged(found, lengths))
        uses.setdefault(variant.kernel, []).append(use)
    return uses


def merged(spans: Iterable[tuple[int, int]], lengths: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """`spans` in order; two are one where none of `lengths`, ascending, lies between them."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and bisect_left(lengths, first) <= bisect_right(lengths, found[-1][1]):
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return tuple(found)


def notes_of(
    report: Report, constant: Mapping[str, VariantUse], lengths: Sequence[int]
) -> list[str]:
    """What the map can't show; `constant` are the kernels with one variant, and their use."""
    above = [f"{r.prompt_tokens:,}" for r in report.ladder if r.prompt_tokens > lengths[-1]]
    notes = [f"warmup's rungs above {lengths[-1]:,}: {', '.join(above)}"] if above else []
    if not report.uses:
        why = NO_USES if report.device.startswith("sim:") else NO_BARS
        return [*notes, why, *_warm(report)]
    partial: dict[tuple[tuple[int, int], ...], list[str]] = {}
    for kernel, use in sorted(constant.items()):
        if use.spans != ((lengths[0], lengths[-1]),):
            partial.setdefault(use.spans, []).append(kernel)
    for spans, kernels in partial.items():
        where = f"{spans[0][0]:,}..{spans[-1][1]:,}"
        where += f" in {len(spans):,} spans" if len(spans) > 1 else ""
        notes.append(f"of these, launched at {where} only: {', '.join(kernels)}")
    used = {use.variant for use in report.uses}
    unused = sum(variant not in used for variant in report.warm_variants)
    if unused:
        notes.append(f"no served length launched {plural(unused, 'variant')} that warmup loaded")
    return notes


def _warm(report: Report) -> list[str]:
    """What warmup loaded, where that is all that is known of it."""
    kernels = Counter(variant.kernel for variant in report.warm_variants)
    if not kernels:
        return []
    several = ", ".join(f"{name} {n}" for name, n in sorted(kernels.items()) if n > 1)
    loaded = f"{plural(kernels.total(), 'variant')} of {plural(len(kernels), 'kernel')}"
    return [f"warm at ready: {loaded}" + (f"; more than one: {several}" if several else "")]


def lanes_of(kernel: str, uses: Sequence[VariantUse], late: tuple[int, ...]) -> list[Lane]:
    """A lane for each variant, in order of their first lengths; one for all where they are many."""
    ordered = sorted(uses, key=lambda use: use.spans)
    labels = labels_of([use.variant for use in ordered])
    bars = [
        [Bar(first, last, number, labels[number]) for first, last in use.spans]
        for number, use in enumerate(ordered)
    ]
    if not bars or len(bars) > MOST_LABELS:
        together = sorted((bar for found in bars for bar in found), key=lambda bar: bar.first)
        return [Lane(kernel, tuple(together), tuple(labels), late)]
    lanes = [Lane("" if number else kernel, tuple(found)) for number, found in enumerate(bars)]
    lanes[-1] = replace(lanes[-1], labels=tuple(labels), late=late)
    return lanes


def labels_of(variants: Sequence[Variant]) -> list[str]:
    """What tells each of a kernel's variants from the others; nothing for an only one."""
    tables = [{**dict(v.arguments), **dict(v.constants), **dict(v.options)} for v in variants]
    names = dict.fromkeys(name for table in tables for name in table)
    telling = [name for name in names if len({table.get(name) for table in tables}) > 1]
    return [
        ", ".join(f"{name} {table.get(name, 'not passed')}" for name in telling[:LABEL_FIELDS])
        for table in tables
    ]


def shortened(name: str, width: int) -> str:
    """A name within `width` characters, cut in its middle."""
    cut = f"{name[: width - NAME_END - 1]}…{name[-NAME_END:]}"
    return name if len(name) <= width else cut


def place(length: int, shortest: int, longest: int) -> float:
    """Where a length lies between the ends, from 0 to 1, on a logarithmic axis."""
    if longest == shortest:
        return 0.0
    return math.log(length / shortest) / math.log(longest / shortest)


def ticks(shortest: int, longest: int) -> list[int]:
    """Powers of two for the axis, and its ends where no power is near."""
    powers = [2**k for k in range(32) if shortest <= 2**k <= longest]
    near = [n for n in powers if TICK_ROOM < place(n, shortest, longest) < 1 - 1.3 * TICK_ROOM]
    return [shortest, *near, longest] if longest > shortest else [shortest]


def render_map(report: Report) -> str:
    """The map as text, each line within 80 columns; ends with a newline.

    A letter is a variant, `*` any of too many, `!` a late load or autotune, `|` a rung.
    """
    drawn = lay_out(report)
    lines = [
        *textwrap.wrap(drawn.title, WIDTH),
        "",
        _axis(drawn),
        _marks("warmup", drawn.rungs, "|", drawn),
    ]
    for lane in drawn.lanes:
        lines += _lane(lane, drawn)
    if drawn.constant:
        count = plural(len(drawn.constant), "kernel")
        text = f"{count} with one variant each: {', '.join(drawn.constant)}"
        lines += ["", *textwrap.wrap(text, WIDTH, subsequent_indent="  ")]
    lines += [line for note in drawn.notes for line in ("", *textwrap.wrap(note, WIDTH))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _column(length: int, drawn: VariantMap) -> int:
    """Where a length stands; at the edge where it lies beyond, as a rung may."""
    last = COLUMNS - 1
    return min(last, max(0, round(place(length, drawn.shortest, drawn.longest) * last)))


def _axis(drawn: VariantMap) -> str:
    """The lengths above the columns, as many as have room; the last one ends with its column."""
    cells = [" "] * COLUMNS
    longest = f"{drawn.longest:,}"
    free_until = COLUMNS - len(longest)
    taken = 0
    for tick in ticks(drawn.shortest, drawn.longest)[:-1]:
        text, start = f"{tick:,}", _column(tick, drawn)
        if start >= taken and start + len(text) < free_until:
            cells[start : start + len(text)] = text
            taken = start + len(text) + 1
    cells[free_until:] = longest
    return f"{'prompt tokens':<{NAME_WIDTH}}{''.join(cells)}"


def _marks(name: str, lengths: Iterable[int], mark: str, drawn: VariantMap) -> str:
    cells = [" "] * COLUMNS
    for length in lengths:
        cells[_column(length, drawn)] = mark
    return f"{name:<{NAME_WIDTH}}{''.join(cells)}"


def _lane(lane: Lane, drawn: VariantMap) -> list[str]:
    cells = [" "] * COLUMNS
    for bar in lane.bars:
        letter = LETTERS[bar.variant] if len(lane.labels) <= MOST_LABELS else "*"
        for column in range(_column(bar.first, drawn), _column(bar.last, drawn) + 1):
            cells[column] = letter
    name = shortened(lane.name, NAME_WIDTH - 1)
    lines = [f"{name:<{NAME_WIDTH}}{''.join(cells)}"] if lane.bars else []
    if lane.late:
        lines.append(_marks("  late" if lane.bars else name, lane.late, "!", drawn))
    if len(lane.labels) < 2:
        return lines
    if len(lane.labels) > MOST_LABELS:
        legend = f"{plural(len(lane.labels), 'variant')}: {lane.labels[0]}, …"
    else:
        legend = "; ".join(f"{LETTERS[n]} {label}" for n, label in enumerate(lane.labels))
    return [*lines, *textwrap.wrap(f"  {legend}", WIDTH, subsequent_indent="    ")]
