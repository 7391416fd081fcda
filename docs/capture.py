"""Puts committed results into the README and docs/story.md: `python docs/capture.py`.

A block between `<!-- captured from FILE -->` and `<!-- end of capture -->` is what
`jitwatch report FILE` prints of it; where the mark ends in `until WORD`, only what stands before
the line that begins with WORD. FILE may be FOLDER/DEVICE, for that device's one result in the
folder. `<!-- counts of NAME... -->` is a table of the results in these folders of sweeps/results.
`tests/test_readme.py` fails where they differ.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from jitwatch.attribution import IN_REPO
from jitwatch.render.json import read_json
from jitwatch.render.terminal import render_text
from jitwatch.report import COUNTED_KINDS, Report

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "story.md")
END = r"(<!-- end of capture -->)"
BLOCK = re.compile(rf"(<!-- captured from (\S+?)(?: until (\w+))? -->\n).*?{END}", re.DOTALL)
COUNTS = re.compile(rf"(<!-- counts of ([^>]+?) -->\n).*?{END}", re.DOTALL)
HEAD = (
    "| | loads | compiles | autotunes | launchers | requests that waited | longest wait "
    "| sim:h200 says |\n|---|---|---|---|---|---|---|---|\n"
)


def captured(markdown: str) -> str:
    """`markdown` with every captured block and table made anew from its files."""
    markdown = BLOCK.sub(lambda m: f"{m[1]}```\n{output(m[2], m[3])}```\n{m[4]}", markdown)
    return COUNTS.sub(lambda m: f"{m[1]}{HEAD}{rows(m[2].split())}{m[3]}", markdown)


def output(file: str, until: str | None) -> str:
    """The command of a result and what it prints."""
    path = ROOT / file
    if not path.is_file():
        path = only(path.parent, path.name)
    reports = read_json(path.read_text(), file)
    text = "\n".join(render_text(report) for report in reports)
    if until is not None:
        text = text[: text.index(f"\n\n{until}") + 1]
    return f"$ {reports[0].environment['command']}\n{text}"


def rows(folders: Iterable[str]) -> str:
    """A line for each folder: what the H200 counted, and whether the simulated one agrees."""
    return "".join(row(folder) for folder in folders)


def row(folder: str) -> str:
    real, simulated = (result(folder, device) for device in ("h200", "sim-h200"))
    counted = [real.counts[name] for name in COUNTED_KINDS]
    predicted = [simulated.counts[name] for name in COUNTED_KINDS]
    agrees = counted == predicted and waited(real) == waited(simulated)
    said = "the same" if agrees else f"{predicted}, {waited(simulated)} waited"
    waits = [request.stall_ms or 0 for request in real.requests if request.in_repo_loads]
    longest = f"{max(waits):,.0f} ms" if waits else "none"
    numbers = " | ".join(f"{number:,}" for number in counted)
    return f"| {folder} | {numbers} | {waited(real):,} | {longest} | {said} |\n"


def result(folder: str, device: str) -> Report:
    """What a device said in a sweep of this name."""
    file = only(ROOT / "sweeps" / "results" / folder, device)
    [report] = read_json(file.read_text(), file.name)
    return report


def only(folder: Path, device: str) -> Path:
    """The one committed result of a device."""
    [file] = folder.glob(f"{device}-*.json")
    return file


def waited(report: Report) -> int:
    """How many requests waited for something in the repository."""
    return len({r for s in report.stalls if s.event.origin == IN_REPO for r in s.requests})


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(captured(page.read_text()))
