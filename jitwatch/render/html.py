"""The report as one self-contained HTML file: no script, no network.

Shows what the text shows, and a strip of all requests by prompt length in which the
ones that waited stand out.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from jitwatch.attribution import IN_REPO
from jitwatch.render.terminal import (
    Diagnostic,
    coverage_lines,
    diagnostic_lines,
    diagnostics,
    first_line,
)
from jitwatch.report import Report

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1d2733; background: #fff }
h1 { font-size: 1.2rem; padding: .6rem .8rem; border-radius: 4px; color: #fff }
h1.fail { background: #b3261e } h1.pass { background: #1e7b34 }
h1.inconclusive { background: #8a6100 }
h2 { font-size: 1rem; margin-top: 2rem; border-bottom: 1px solid #d5dbe1 }
pre { background: #f4f6f8; padding: .7rem .8rem; overflow-x: auto; border-left: 3px solid #b3261e }
pre.plain { border-left-color: #aab4be }
table { border-collapse: collapse } td, th { padding: .2rem .8rem .2rem 0; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums }
svg { width: 100%; height: 3.4rem }
"""
#: The strip's size in SVG units: a request is a bar, wide enough to be seen.
STRIP_WIDTH, STRIP_HEIGHT, LEAST_WIDTH = 1000, 34, 1.5
LATE, CALM = "#b3261e", "#9fb0bf"


def render_html(reports: Sequence[Report]) -> str:
    """The whole page, a part for each device."""
    parts = "\n".join(_part(report) for report in reports)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(first_line(reports[0]))}</title><style>{STYLE}</style></head>\n"
        f"<body>\n{parts}\n</body></html>\n"
    )


def _part(report: Report) -> str:
    found = diagnostics(report)
    ours = [item for item in found if item.first.event.origin == IN_REPO]
    others = [item for item in found if item not in ours]
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in report.verdict.reasons)
    blocks = [
        f'<h1 class="{report.verdict.outcome}">{escape(first_line(report))}</h1>',
        f"<ul>{reasons}</ul>" if reasons else "",
        "<h2>Requests by prompt length</h2>",
        _strip(report),
        "<h2>Why they waited</h2>" if ours else "",
        *(_block(item) for item in ours),
        "<h2>Third-party, listed and not judged</h2>" if others else "",
        *(_block(item, plain=True) for item in others),
        "<h2>Requests that waited</h2>" if ours else "",
        _table(report) if ours else "",
        f'<h2>Coverage</h2><pre class="plain">{escape(_text(coverage_lines(report)[1:]))}</pre>',
        f"<h2>Environment</h2>{_environment(report)}",
    ]
    return "\n".join(block for block in blocks if block)


def _block(item: Diagnostic, *, plain: bool = False) -> str:
    kind = ' class="plain"' if plain else ""
    return f"<pre{kind}>{escape(_text(diagnostic_lines(item)))}</pre>"


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines)


def _strip(report: Report) -> str:
    """A bar for each request, at its place between the shortest and the longest prompt."""
    lengths = [row.request.prompt_tokens for row in report.requests]
    if not lengths:
        return "<p>No request was served.</p>"
    low, high = min(lengths), max(lengths)
    width = max(STRIP_WIDTH / (high - low + 1), LEAST_WIDTH)
    bars = []
    for late in (False, True):  # the late ones last, so that none is covered
        for row in report.requests:
            if bool(row.in_repo_loads or row.compiles) is late:
                x = (row.request.prompt_tokens - low) * STRIP_WIDTH / (high - low + 1)
                label = f"{row.request.prompt_tokens} tokens, {row.in_repo_loads} late loads"
                bars.append(
                    f'<rect x="{x:.2f}" width="{width:.2f}" height="{STRIP_HEIGHT}" '
                    f'fill="{LATE if late else CALM}"><title>{label}</title></rect>'
                )
    text = STRIP_HEIGHT + 14
    return (
        f'<svg viewBox="0 0 {STRIP_WIDTH} {text + 2}" preserveAspectRatio="none" role="img" '
        f'aria-label="requests by prompt length">{"".join(bars)}</svg>'
        f"<p>{low:,} to {high:,} tokens; red waited for late in-repo work.</p>"
    )


def _table(report: Report) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("tokens", "loads", "compiles", "stall ms"))
    rows = []
    for row in report.requests:
        if row.in_repo_loads or row.compiles:
            stall = "-" if row.stall_ms is None else f"{row.stall_ms:,.1f}"
            cells = (f"{row.request.prompt_tokens:,}", row.in_repo_loads, row.compiles, stall)
            rows.append("".join(f'<td class="number">{cell}</td>' for cell in cells))
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _environment(report: Report) -> str:
    rows = (
        f"<tr><th>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"
        for name, value in report.environment.items()
    )
    return f"<table>{''.join(rows)}</table>"
