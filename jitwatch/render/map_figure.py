"""The variant map as a figure, drawn by matplotlib: PNG, SVG or PDF."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jitwatch.errors import UsageError
from jitwatch.render.variant_map import (
    MOST_LABELS,
    Bar,
    Lane,
    VariantMap,
    lay_out,
    place,
    ticks,
)
from jitwatch.report import Report
from jitwatch.verdict import plural

#: Endings of files that can be written, with the metadata left out: dates and versions.
ENDINGS = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
#: Bars of a kernel's variants, in turn; marks; what recedes.
BARS = ("#2f5f98", "#6f9fd0", "#1b3657", "#a3c1e0")
LATE, RUNG, TEXT, RULE = "#c8321e", "#6b7280", "#1f2937", "#e5e7eb"
WIDTH_INCHES, LANE_INCHES, MARGIN_INCHES = 10.0, 0.33, 1.75
#: A bar this share of the axis wide has its label inside; a narrower one beside it.
LABEL_SHARE = 0.35
#: More late lengths than these are a band, not marks.
MOST_MARKS = 40


def write_figure(report: Report, path: Path) -> None:
    """Draw the map of a run into `path`, by its ending; the same run gives the same bytes.

    Raises:
        UsageError: matplotlib is missing, the ending is another one, or the file can't be written.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise UsageError(
            f"--map {path}: no figure ends so",
            f"figures end in {', '.join(ENDINGS)}, the map as text in .txt or is -, stdout",
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
    figure.suptitle(drawn.title, x=0.008, ha="left", fontsize=12, color=TEXT, weight="bold")
    below = "\n".join(textwrap.fill(text, 150) for text in _below(drawn))
    figure.supxlabel(below, x=0.008, ha="left", fontsize=8, color=RUNG)


def _draw_lane(axes: Any, lane: Lane, number: int, drawn: VariantMap) -> None:
    crowd = len(lane.labels) > MOST_LABELS
    bars = [(bar.first, bar.last, bar.variant) for bar in lane.bars]
    if crowd:
        # One color: of thousands, only what pixels make of them would show.
        bars = [(*run, 1) for run in runs([n for a, b, _ in bars for n in range(a, b + 1)])]
    spans = [(first, last) for first, last, _ in bars]
    colors = [BARS[variant % len(BARS)] for *_, variant in bars]
    _draw_spans(axes, spans, (number - 0.35, 0.7), colors, zorder=2)
    if crowd:
        text = f"{plural(len(lane.labels), 'variant')}: {lane.labels[0]}, …"
        _draw_label(axes, replace(lane.bars[0], label=text), number, drawn)
    labelled: set[str] = set()
    for bar in lane.bars if not crowd else ():
        if bar.label and bar.label not in labelled:
            labelled.add(bar.label)
            _draw_label(axes, bar, number, drawn)
    _draw_late(axes, lane, number, drawn)


def _draw_spans(
    axes: Any,
    spans: Sequence[tuple[int, int]],
    place: tuple[float, float],
    colors: Sequence[str],
    *,
    zorder: int,
) -> None:
    """Bars from first to last length, both included, at `place`: their top and height."""
    axes.broken_barh(
        [(first - 0.5, last - first + 1) for first, last in spans],  # a lone length has a width too
        place,
        facecolors=colors,
        zorder=zorder,
        snap=False,  # else bars and gaps narrower than a pixel come and go by chance
        lw=0,
    )


def _draw_late(axes: Any, lane: Lane, number: int, drawn: VariantMap) -> None:
    """A mark on the bar that begins at the length; a band where they are too many for marks."""
    if len(lane.late) > MOST_MARKS:
        _draw_spans(axes, runs(lane.late), (number - 0.49, 0.14), [LATE], zorder=4)
    elif lane.late:
        places = [_lane_of(length, number, drawn) - 0.35 for length in lane.late]
        axes.plot(
            lane.late,
            places,
            linestyle="none",
            marker="v",
            color=LATE,
            markersize=6,
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


def runs(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive lengths."""
    found: list[tuple[int, int]] = []
    for length in sorted(lengths):
        if found and found[-1][1] == length - 1:
            found[-1] = (found[-1][0], length)
        else:
            found.append((length, length))
    return found


def _draw_label(axes: Any, bar: Bar, number: int, drawn: VariantMap) -> None:
    begin, end = (place(n, drawn.shortest, drawn.longest) for n in (bar.first, bar.last))
    # Left of the first column the kernels' names stand.
    inside = end - begin >= LABEL_SHARE or begin < LABEL_SHARE
    # Every other color is a dark one. On a bar too short for it a label has a ground of its own.
    covered = end - begin >= LABEL_SHARE or not inside
    dark = bar.variant % 2 == 0 and covered
    axes.annotate(
        bar.label,
        (bar.first, number),
        xytext=(6 if inside else -6, 0),
        textcoords="offset points",
        ha="left" if inside else "right",
        va="center",
        fontsize=8,
        color="white" if inside and dark else TEXT,
        zorder=5,
        bbox=None if covered else {"facecolor": "white", "edgecolor": "none", "pad": 1.5},
    )


def _draw_rungs(axes: Any, drawn: VariantMap) -> None:
    for rung in drawn.rungs:
        # One below the shortest length served stands at its edge.
        x = max(rung, drawn.shortest)
        axes.axvline(x, color=RUNG, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
        axes.annotate(
            f"{rung:,}",
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
    names = [lane.name for lane in drawn.lanes]
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
        mark = Line2D([], [], color=LATE, marker="v", linestyle="none", markersize=6)
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
