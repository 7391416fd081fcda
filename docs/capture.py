"""Puts the output of a committed result into the README: `python docs/capture.py`.

A block between `<!-- captured from FILE -->` and `<!-- end of capture -->` is what
`jitwatch report FILE` prints of it. `tests/test_readme.py` fails where they differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from jitwatch.render.json import read_json
from jitwatch.render.terminal import render_text

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"(<!-- captured from (\S+) -->\n).*?(<!-- end of capture -->)", re.DOTALL)


def captured(markdown: str) -> str:
    """`markdown` with every captured block made anew from its file."""

    def block(match: re.Match[str]) -> str:
        reports = read_json((ROOT / match[2]).read_text(), match[2])
        text = "\n".join(render_text(report) for report in reports)
        return f"{match[1]}```\n$ {reports[0].environment['command']}\n{text}```\n{match[3]}"

    return BLOCK.sub(block, markdown)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(captured(readme.read_text()))
