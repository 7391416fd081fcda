"""One changed line each: caught, named and explained. The clean engine and near misses pass."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.story import faults

ROOT = Path(__file__).parent.parent
FAULTS = "examples.story.faults:"
NAMES = ("constexpr_length", "guessed_ladder", "unwarmed_sampler", "autotuned_by_length")
NEAR_MISSES = (
    "constexpr_stride",
    "lucky_ladder",
    "captured_sampler",
    "eager",
    "autotuned_by_width",
)
LENGTHS = "11,80,257,2049"


def sweep(target, folder, *options, **environment):
    """The exit status, the text and the report of a sweep on the simulated device."""
    out = folder / "report.json"
    command = [sys.executable, "-m", "jitwatch", "sweep", "--device", "sim:h200"]
    command += ["--target", target, "--lengths", LENGTHS, *options]
    command += ["--json", str(out), "--run-dir", str(folder / "run")]
    environment = {**os.environ, **environment}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert out.exists(), done.stderr
    return done.returncode, done.stdout, json.loads(out.read_text())


def engine_files():
    """A digest of each source file that a fault could have changed."""
    return {
        path: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((ROOT / "engine").rglob("*.py"))
    }


@pytest.fixture(scope="module")
def files_before():
    """The engine's files as they were before any sweep of `swept`."""
    return engine_files()


@pytest.fixture(scope="module")
def swept(tmp_path_factory, files_before):
    """`sweep` of each fault, made once and when first asked for."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = sweep(FAULTS + name, tmp_path_factory.mktemp(name), "--keys-only")
        return made[name]

    return of


def late(report, kind):
    """Who paid for what, in order: prompt length, code, kernel, rows (argument, now, before)."""
    lengths = {request["id"]: request["prompt_tokens"] for request in report["requests"]}
    return [
        (
            *(lengths[request] for request in stall["requests"]),
            stall["cause"]["code"],
            stall["kernel"],
            *((row["argument"], row["now"], row["before"]) for row in stall["diff"]),
        )
        for stall in report["stalls"]
        if stall["kind"] == kind
    ]


def ladder(report):
    return [rung["prompt_tokens"] for rung in report["ladder"]]


def test_the_engine_as_it_is_passes(swept):
    status, _, report = swept("clean")
    assert (status, report["stalls"], report["verdict"]["outcome"]) == (0, [], "pass")
    assert ladder(report) == [1, 257, 2049]
    assert [request["prompt_tokens"] for request in report["requests"]] == [11, 80, 257, 2049]


def test_a_constexpr_length_loads_once_for_each_new_length(swept):
    status, _, report = swept("constexpr_length")
    assert (status, report["verdict"]["outcome"]) == (1, "fail")
    # The ladder's own lengths are warm.
    assert late(report, "load") == [
        (11, "JW103", "l2norm_kernel", ("num_tokens", "11", "1")),
        (80, "JW103", "l2norm_kernel", ("num_tokens", "80", "1")),
    ]
    assert {stall["kernel"] for stall in report["stalls"]} == {"l2norm_kernel"}


def test_a_guessed_ladder_misses_the_tiles_that_it_does_not_know(swept):
    status, _, report = swept("guessed_ladder")
    assert (status, ladder(report)) == (1, [80, 128])
    wide = (("BLOCK_M", "128", "64"), ("num_stages", "3", "4"), ("num_warps", "8", "4"))
    tiled = [("BLOCK_K", "64", "128"), ("BLOCK_M", "64", "16")]
    assert late(report, "load") == [
        (257, "JW103", "align_kernel", ("BLOCK_M", "64", "16")),
        (257, "JW103", "gate_up_kernel", *tiled, ("BLOCK_N", "64", "32")),
        (257, "JW103", "down_kernel", *tiled, ("BLOCK_N", "128", "64")),
        (2049, "JW103", "align_kernel", ("BLOCK_M", "128", "16")),
        (2049, "JW103", "gate_up_kernel", *wide),
        (2049, "JW103", "down_kernel", *wide),
    ]


def test_a_sampler_that_warmup_left_out_is_cold_at_the_first_request(swept):
    status, _, report = swept("unwarmed_sampler")
    assert (status, ladder(report)) == (1, [1, 257, 2049])
    assert late(report, "load") == [(11, "JW101", "sample_kernel")]
    assert {stall["kernel"] for stall in report["stalls"]} == {"sample_kernel"}


def test_an_autotuned_length_is_tuned_at_every_new_one(swept):
    status, _, report = swept("autotuned_by_length")
    assert (status, report["verdict"]["outcome"]) == (1, "fail")
    assert late(report, "autotune") == [
        (11, "JW106", "gated_rms_norm_kernel", ("num_tokens", "11", "1")),
        (80, "JW106", "gated_rms_norm_kernel", ("num_tokens", "80", "1")),
    ]
    assert {stall["kernel"] for stall in report["stalls"]} == {"gated_rms_norm_kernel"}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_the_like_of_it_that_does_no_harm_passes(name, tmp_path):
    status, _, report = sweep(f"tests.story.targets:{name}", tmp_path, "--keys-only")
    assert (status, report["stalls"], report["verdict"]["outcome"]) == (0, [], "pass")


@pytest.mark.parametrize(
    ("name", "kind", "code", "lengths"),
    [
        ("constexpr_length", "load", "JW103", [11, 80, 257, 2049]),
        ("autotuned_by_length", "autotune", "JW106", [11, 80, 257, 2049]),
    ],
)
def test_triton_compiles_the_changed_kernel(name, kind, code, lengths, tmp_path):
    """Keys are made of a kernel that doesn't compile, too."""
    cache = str(tmp_path / "cache")
    status, _, report = sweep(f"tests.story.targets:{name}_alone", tmp_path, TRITON_CACHE_DIR=cache)
    assert status == 1, report["verdict"]
    assert [item[:2] for item in late(report, kind)] == [(length, code) for length in lengths]


def changes(monkeypatch):
    """What each fault changes: its name, module, line before and line after."""
    made = []
    monkeypatch.setattr(faults, "change_line", lambda *line, **_: made.append((name, *line)))
    for name in NAMES:
        getattr(faults, name)()
    return made


def test_each_fault_is_one_line(monkeypatch):
    assert [name for name, *_ in changes(monkeypatch)] == list(NAMES)


def test_no_file_is_changed(swept, files_before):
    assert files_before
    for name in NAMES:
        swept(name)
    assert engine_files() == files_before


def test_the_readme_shows_each_line_and_what_is_said_of_it(monkeypatch, swept):
    readme = (ROOT / "examples" / "story" / "README.md").read_text()
    for name, module, old, new in changes(monkeypatch):
        (section,) = re.findall(rf"^## {name}\n(.*?)(?=^## |\Z)", readme, re.DOTALL | re.MULTILINE)
        assert f"`{module.replace('.', '/')}.py`" in section
        assert f"\n-{old}\n+{new}\n" in section
        said = re.findall(r"^JW.*(?:\n .*)*", section, re.MULTILINE)
        assert said
        assert [text for text in said if text not in swept(name)[1]] == []
