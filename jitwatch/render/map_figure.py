"""The variant map as a figure, drawn by matplotlib: PNG, SVG or PDF."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jitwatch.errors import UsageError
from jitwatch.render.variant_map import (
    MOST_LABELS,
    Lane,
    VariantMap,
    lay_out,
    place,
    shortened,
    ticks,
)
from jitwatch.report import Report
from jitwatch.verdict import plural

#: Endings of files that can be written, and what to leave out: dates and matplotlib's version.
ENDINGS = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
#: Bars of a kernel's variants, in turn, a dark one and a light one; marks; what recedes.
BARS = ("#2f5f98", "#6f9fd0", "#1b3657", "#a3c1e0")
LATE, RUNG, TEXT, RULE = "#c8321e", "#6b7280", "#1f2937", "#e5e7eb"
WIDTH_INCHES, LANE_INCHES, MARGIN_INCHES = 10.0, 0.33, 1.75
#: Shares of the axis that a character of a label and a mark take.
CHARACTER_SHARE, MARK_SHARE = 0.008, 0.011
#: Characters of a kernel's name, of a label, and of a line above and below the lanes.
MOST_NAME, MOST_LABEL, TITLE_LINE, NOTE_LINE = 32, 60, 80, 150


def write_figure(report: Report, path: Path) -> None:
    """Draw the map of a run into `path`, by its ending; the same run gives the same bytes.

    Raises:
        UsageError: matplotlib is missing, the ending is another one, or the file can't be written.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(
            f"--map {path}: unknown ending",
            f"a figure ends in {', '.join(ENDINGS)}; text ends in .txt, or is - for stdout",
            "for example --map variants.png",
        )
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            f"--map {path}: matplotlib is missing",
            str(error),
            "pip install 'jitwatch[map]', or take the text: --map -",
        ) from error
    drawn = lay_out(report)
    # Else a user's matplotlibrc would be in it, and a `$` in a name begin a formula.
    style = {**matplotlib.rcParamsDefault, "svg.hashsalt": "jitwatch", "text.parse_math": False}
    style["figure.constrained_layout.w_pad"] = 0.08
    del style["backend"]
    height = MARGIN_INCHES + LANE_INCHES * max(len(drawn.lanes), 2)
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        draw(figure, drawn)
        try:
            figure.savefig(path, dpi=160, metadata=ENDINGS[ending])
        except OSError as error:
            raise UsageError(
                f"--map {path}: can't be written", str(error), "give a file of your own"
            ) from error


def draw(figure: Any, drawn: VariantMap) -> None:
    """Lanes from the top, lengths on a logarithmic axis, rungs across all lanes."""
    axes = figure.subplots()
    for number, lane in enumerate(drawn.lanes):
        _draw_lane(axes, lane, number, drawn)
    _draw_rungs(axes, drawn)
    _draw_axes(axes, drawn)
    _draw_legend(axes, drawn)
    title = textwrap.fill(drawn.title, TITLE_LINE)
    figure.suptitle(title, x=0.008, ha="left", fontsize=12, color=TEXT, weight="bold")
    below = "\n".join(textwrap.fill(text, NOTE_LINE) for text in _below(drawn))
    figure.supxlabel(below, x=0.008, ha="left", fontsize=8, color=RUNG)


def _draw_lane(axes: Any, lane: Lane, number: int, drawn: VariantMap) -> None:
    if lane.bars:
        spans = [(bar.first, bar.last) for bar in lane.bars]
        color, label = BARS[lane.bars[0].variant % len(BARS)], lane.bars[0].label
        if len(lane.labels) > MOST_LABELS:
            # One color: of thousands of bars, only what pixels make of them would show.
            spans = runs([n for first, last in spans for n in range(first, last + 1)])
            color, label = BARS[1], f"{plural(len(lane.labels), 'variant')}: {label}, …"
        _draw_spans(axes, spans, (number - 0.35, 0.7), color, zorder=2)
        _draw_label(axes, label, spans, number, color, drawn)
    _draw_late(axes, lane, number, drawn)


def _draw_spans(
    axes: Any,
    spans: Sequence[tuple[int, int]],
    rows: tuple[float, float],
    color: str,
    *,
    zorder: int,
) -> None:
    """Bars from first to last length, both included; `rows` are their top and height."""
    axes.broken_barh(
        [(first - 0.5, last - first + 1) for first, last in spans],  # a lone length has a width too
        rows,
        color=color,
        zorder=zorder,
        snap=False,  # else bars and gaps narrower than a pixel come and go by chance
        lw=0.4,  # else a lone length among thousands is too pale to see
    )


def _draw_late(axes: Any, lane: Lane, number: int, drawn: VariantMap) -> None:
    """A mark on the bar that begins at the length; where marks would touch, one and a band."""
    on: dict[int, list[int]] = {}
    for length in lane.late:
        on.setdefault(_lane_of(length, number, drawn), []).append(length)
    for row, lengths in on.items():
        top = row - 0.35 if drawn.lanes[row].bars else row
        groups = _touching(lengths, drawn)
        bands = [group for group in groups if group[0] != group[1]]
        if bands:
            _draw_spans(axes, bands, (top - 0.07, 0.14), LATE, zorder=4)
        axes.plot(
            [first for first, _ in groups],
            [top] * len(groups),
            linestyle="none",
            marker="v",
            color=LATE,
            markersize=7,
            markeredgecolor="white",
            markeredgewidth=0.5,
            zorder=4,
            clip_on=False,
        )


def _lane_of(length: int, last: int, drawn: VariantMap) -> int:
    """The kernel's lane with a bar that begins at `length`; `last`, its last one, without any."""
    first = last
    while not drawn.lanes[first].name:
        first -= 1
    found = (n for n in range(first, last + 1) for b in drawn.lanes[n].bars if b.first == length)
    return next(found, last)


def _touching(lengths: Sequence[int], drawn: VariantMap) -> list[tuple[int, int]]:
    """First and last of each group of lengths so near each other that their marks would touch."""
    found: list[tuple[int, int]] = []
    for length in sorted(lengths):
        at = place(length, drawn.shortest, drawn.longest)
        if found and at - place(found[-1][1], drawn.shortest, drawn.longest) < MARK_SHARE:
            found[-1] = (found[-1][0], length)
        else:
            found.append((length, length))
    return found


def runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive lengths."""
    found: list[tuple[int, int]] = []
    for length in sorted(lengths):
        if found and found[-1][1] >= length - 1:
            found[-1] = (found[-1][0], length)
        else:
            found.append((length, length))
    return found


def _draw_label(
    axes: Any,
    label: str,
    spans: Sequence[tuple[int, int]],
    number: int,
    color: str,
    drawn: VariantMap,
) -> None:
    """On the first bar where there is room, else left or right of all, else from its begin on."""
    if not label:
        return
    text = label if len(label) <= MOST_LABEL else f"{label[: MOST_LABEL - 1]}…"
    room = (len(text) + 2) * CHARACTER_SHARE
    x, end, last = spans[0][0], spans[0][1], spans[-1][1]
    begins, ends, all_end = (place(n, drawn.shortest, drawn.longest) for n in (x, end, last))
    inside = ends - begins >= room
    # Left of the first column the kernels' names stand.
    left = not inside and begins >= room
    if not inside and not left and 1 - all_end >= room:
        x = last
    axes.annotate(
        text,
        (x, number),
        xytext=(-6 if left else 6, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        fontsize=8,
        color="white" if inside and color in BARS[::2] else TEXT,
        zorder=5,
        # A ground of its own, for no rung or gap between bars to cross it.
        bbox={"facecolor": color if inside else "white", "edgecolor": "none", "pad": 1.5},
    )


def _draw_rungs(axes: Any, drawn: VariantMap) -> None:
    free_from = -1.0
    for rung in drawn.rungs:
        # One below the shortest length served stands at its edge.
        x = max(rung, drawn.shortest)
        axes.axvline(x, color=RUNG, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
        text, at = f"{rung:,}", place(x, drawn.shortest, drawn.longest)
        half = (len(text) + 1) * CHARACTER_SHARE / 2
        if at - half < free_from:
            continue
        free_from = at + half
        axes.annotate(
            text,
            (x, 1),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=RUNG,
        )


def _draw_axes(axes: Any, drawn: VariantMap) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(drawn.shortest - 0.5, drawn.longest + 0.5)
    marks = ticks(drawn.shortest, drawn.longest)
    axes.set_xticks(marks, [f"{n:,}" for n in marks], fontsize=8, color=TEXT)
    axes.minorticks_off()
    axes.set_xlabel("prompt tokens", fontsize=9, color=TEXT)
    axes.set_ylim(max(len(drawn.lanes), 2) - 0.4, -0.8)
    names = [shortened(lane.name, MOST_NAME) for lane in drawn.lanes]
    if not names:
        text = "no late load or autotune"
        ground = {"facecolor": "white", "edgecolor": "none"}
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", color=RUNG, bbox=ground)
    axes.set_yticks(range(len(names)), names, fontsize=9, color=TEXT)
    axes.tick_params(length=0)
    axes.grid(axis="x", color=RULE, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(RULE)


def _draw_legend(axes: Any, drawn: VariantMap) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    if any(lane.bars for lane in drawn.lanes):
        handles.append(Patch(color=BARS[0], label="where a variant is launched"))
    if drawn.rungs:
        line = Line2D([], [], color=RUNG, linewidth=1, linestyle=(0, (4, 3)))
        line.set_label("warmup's rungs")
        handles.append(line)
    if any(lane.late for lane in drawn.lanes):
        mark = Line2D([], [], color=LATE, marker="v", linestyle="none", markersize=7)
        mark.set_label("late load or autotune")
        handles.append(mark)
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1.0),
        ncols=3,
        fontsize=8,
        frameon=False,
        borderaxespad=1.4,
        labelcolor=TEXT,
    )


def _below(drawn: VariantMap) -> list[str]:
    lines = []
    if drawn.constant:
        count = plural(len(drawn.constant), "kernel")
        lines.append(f"{count} with one variant each: {', '.join(drawn.constant)}")
    return [*lines, *drawn.notes]
