"""What warmup ran and what was proved of all lengths, as lines of the text report."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from jitwatch.events import Boundary, Proof
from jitwatch.report import Report
from jitwatch.verdict import plural

WIDTH = 80
#: More names of kernels than these are counted.
FEW_KERNELS = 4


def ladder_lines(report: Report) -> list[str]:
    """The warmup ladder, a line or more for each rung; nothing where the target has none."""
    if not report.ladder:
        return []
    seconds = report.environment.get("warmup_seconds")
    took = f", {seconds:.1f} s" if seconds is not None else ""
    lines = [f"Warmup: {plural(len(report.ladder), 'rung')}{took}"]
    for rung in report.ladder:
        reasons = "; ".join(_shortened(reason) for reason in rung.reasons)
        lines += _column(f"{rung.prompt_tokens:,}", reasons)
    return lines


def proof_lines(proof: Proof) -> list[str]:
    """Where variants change, and on what grounds the lengths between were not served."""
    lines = [f"Proved for 1..{proof.max_tokens:,} by {plural(proof.served, 'request')}"]
    for boundary in proof.boundaries:
        lines += _column(f"{boundary.prompt_tokens:,}", _change(boundary))
    for text in proof.assumptions:
        lines += textwrap.wrap(f"  assumed: {text}", WIDTH, subsequent_indent="    ")
    return lines


def _change(boundary: Boundary) -> str:
    names = _few(boundary.kernels)
    rest = ", ".join(map(str, boundary.residues))
    return f"other variants of {names}" + (f", lengths of {rest} mod 16" if rest else "")


def _shortened(reason: str) -> str:
    """A reason with its kernels counted where they are many: `17 kernels: its only variant`."""
    kernels, colon, why = reason.partition(": ")
    return f"{_few(kernels.split(', '))}{colon}{why}"


def _few(kernels: Sequence[str]) -> str:
    if len(kernels) <= FEW_KERNELS:
        return ", ".join(kernels)
    return plural(len(kernels), "kernel")


def _column(head: str, text: str) -> list[str]:
    first = f"  {head:>7}"
    if not text:
        return [first]
    return textwrap.wrap(text, WIDTH, initial_indent=f"{first}  ", subsequent_indent=" " * 11)
