"""Puts committed results into the README and docs/story.md: `python docs/capture.py`.

A block between `<!-- captured from FILE -->` and `<!-- end of capture -->` is the command of that
result and what `jitwatch report FILE` prints of it; where the mark ends in `until WORD`, only what
stands before the paragraph that begins with WORD. FILE may be FOLDER/DEVICE, for that device's one
result in the folder. `<!-- counts of NAME... -->` is a table of the results in these folders of
sweeps/results, `<!-- first requests of NAME -->` one of benchmarks/first_request.py's result there.
`tests/test_readme.py` fails where they differ.
"""

from __future__ import annotations

import json
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


FIRST = re.compile(rf"(<!-- first requests of (\S+) -->\n).*?{END}", re.DOTALL)
FIRST_HEAD = "| | starts | warmup | first TTFT | later TTFT | ratio |\n|---|---|---|---|---|---|\n"


def captured(markdown: str) -> str:
    """`markdown` with every captured block and table made anew from its files."""
    markdown = BLOCK.sub(lambda m: f"{m[1]}```\n{output(m[2], m[3])}```\n{m[4]}", markdown)
    markdown = FIRST.sub(lambda m: f"{m[1]}{first_requests(m[2])}{m[3]}", markdown)
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
    said = "the same" if agrees else f"{predicted}, {len(waited(simulated))} waited"
    waits = [row.stall_ms or 0 for row in real.requests if row.request.id in waited(real)]
    longest = f"{max(waits):,.0f} ms" if waits else "none"
    numbers = " | ".join(f"{number:,}" for number in counted)
    return f"| {folder} | {numbers} | {len(waited(real)):,} | {longest} | {said} |\n"


def result(folder: str, device: str) -> Report:
    """What a device said in a sweep of this name."""
    file = only(ROOT / "sweeps" / "results" / folder, device)
    [report] = read_json(file.read_text(), file.name)
    return report


def only(folder: Path, device: str) -> Path:
    """The one committed result of a device."""
    [file] = folder.glob(f"{device}-*.json")
    return file


def waited(report: Report) -> set[str]:
    """The requests that waited for something in the repository."""
    return {r for s in report.stalls if s.event.origin == IN_REPO for r in s.requests}


def first_requests(folder: str) -> str:
    """A line for each kind of start: the first request beside the same one later."""
    file = only(ROOT / "sweeps" / "results" / folder, "h200")
    found = json.loads(file.read_text())
    starts = {
        "cold Triton cache": found["cold"],
        "warm Triton cache": found["warm"],
        "cold, prefill not warmed up": found["without_prefill_warmup"]["cold"],
        "warm, prefill not warmed up": found["without_prefill_warmup"]["warm"],
    }
    lines = []
    for name, start in starts.items():
        ttft = start["ttft_ms"]
        lines.append(
            f"| {name} | {len(start['starts'])} | {start['warmup_s']:.1f} s | "
            f"{ttft['first']:,.1f} ms | {ttft['later']:.1f} ms | {ttft['ratio']:,.2f} |\n"
        )
    return FIRST_HEAD + "".join(lines)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(captured(page.read_text()))
