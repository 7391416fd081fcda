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
    for page in capture["PAGES"]:
        text = page.read_text()
        assert capture["BLOCK"].search(text), f"{page.name} shows no captured output"
        assert capture["captured"](text) == text


def test_make_targets_named_exist():
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"^make (\w+)", README, re.MULTILINE))
    assert {"sweep", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_files_linked_exist():
    pages = ["README.md", "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for page in [ROOT / page for page in (*pages, *(ROOT / "examples").glob("*/README.md"))]:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_map_shown_is_of_a_committed_result():
    [(result, image)] = re.findall(
        r"^jitwatch report (\S+) --map (docs/\S+)$", README, re.MULTILINE
    )
    assert (ROOT / result).is_file()
    assert f"]({image})" in README


def test_sweeps_took_as_long_as_their_committed_results_say():
    stated = re.findall(r"\((\d+) s in \[[^]]+\]\((\S+?)\)\)", README)
    assert len(stated) == 5
    for seconds, link in stated:
        assert int(seconds) == round(only_run(link)["environment"]["wall_seconds"]), link


def test_waits_are_those_of_their_committed_result():
    number = r"([\d.]+)"
    pattern = f"a compile \\({number} to {number} s\\) .* a launcher \\({number} to {number} s; "
    [(*stated, link)] = re.findall(pattern + r"both on \[an H200\]\((\S+?)\)\)", README)
    took: dict[str, list[float]] = {"compile": [], "launcher_build": []}
    for event in only_run(link)["events"]:
        if event["kind"] in took:
            took[event["kind"]].append((event["end_ns"] - event["start_ns"]) / 1e9)
    ends = [round(end(seconds), 1) for seconds in took.values() for end in (min, max)]
    assert [float(n) for n in stated] == ends


def only_run(link):
    """The one run of a committed sweep, as JSON."""
    found = json.loads((ROOT / link).read_text())
    if isinstance(found, list):
        [found] = found
    return found


def test_the_engines_figures_are_those_of_their_committed_result():
    [link] = re.findall(r"\[figures\]\((sweeps/results/engine/[^)]+)\)", README)
    result = json.loads((ROOT / link).read_text())
    for title, name in (("engine", "engine"), ("FreeToken 0.1.2", "freetoken")):
        figures = result[name]
        ttft = [f"{figures['ttft_ms'][length]:.1f} ms" for length in ("11", "128", "1024", "2048")]
        cells = [title, *ttft, f"{figures['decode_tokens_per_s']:.0f} tokens/s"]
        assert f"| {' | '.join(cells)} |" in README


def test_the_hooks_cost_is_that_of_its_committed_result():
    number = r"([\d.]+)"
    pattern = f"at {number} of its speed without \\(95 % interval {number} to {number}, "
    pattern += r"\[(\d+) pairs\]\((\S+)\)\)"
    [(ratio, low, high, pairs, link)] = re.findall(pattern, README)
    result = json.loads((ROOT / link).read_text())
    decode = result["engine_decode"]
    stated = [float(ratio), float(low), float(high)]
    assert stated == [round(n, 3) for n in (decode["speed_ratio"], *decode["speed_ratio_95"])]
    assert int(pairs) == result["pairs"]


def test_the_first_request_is_as_slow_as_its_committed_result_says():
    [(ratio, page)] = re.findall(
        r"takes ([\d.]+) times what it takes later \(\[figures\]\((\S+?)#", README
    )
    assert (ROOT / page).is_file()
    [file] = (ROOT / "sweeps" / "results" / "first-request").glob("h200-*.json")
    cold = json.loads(file.read_text())["cold"]
    assert float(ratio) == round(cold["ttft_ms"]["ratio"], 1)
    assert len(cold["starts"]) == 5


def test_a_watched_programs_loads_are_its_results():
    match = re.search(
        r"under `jitwatch run`.*\[result\]\((\S+)\)\): (\d+) late loads of its own kernels "
        r"in (\d+) requests, and (\d+) of",
        README,
    )
    report = json.loads((ROOT / match[1]).read_text())
    ours = [s for s in report["stalls"] if s["origin"] == "in-repo" and s["kind"] == "load"]
    counts = report["counts"]
    paid = {name for stall in ours for name in stall["requests"]}
    assert [int(n) for n in match.groups()[1:]] == [
        counts["late_in_repo_loads"],
        len(paid),
        counts["late_other_loads"],
    ]
