"""The README shows what a committed result prints, and commands that exist."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_captured_output_is_that_of_its_committed_result():
    capture = runpy.run_path(str(ROOT / "docs" / "capture.py"))
    assert capture["BLOCK"].search(README), "the README shows no captured output"
    assert capture["captured"](README) == README


def test_make_targets_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert {"sweep", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_linked_exist():
    for link in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / link).exists(), link


def test_the_engines_figures_are_those_of_their_committed_result():
    [link] = re.findall(r"\[figures\]\((sweeps/results/engine/[^)]+)\)", README)
    result = json.loads((ROOT / link).read_text())
    for title, name in (("engine", "engine"), ("FreeToken 0.1.2", "freetoken")):
        figures = result[name]
        ttft = [f"{figures['ttft_ms'][length]:.1f} ms" for length in ("11", "128", "1024", "2048")]
        cells = [title, *ttft, f"{figures['decode_tokens_per_s']:.0f} tokens/s"]
        assert f"| {' | '.join(cells)} |" in README
