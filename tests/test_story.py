"""One changed line each: caught, named and explained; the clean engine passes."""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.story.change import change_line, replace_line

ROOT = Path(__file__).parent.parent
LENGTHS = "11,80,257,2049"
EXPERTS = ["align_kernel", "down_kernel", "gate_up_kernel"]


def swept(fault, tmp_path):
    """The exit status and the report of one fault on the simulated device."""
    out = tmp_path / "report.json"
    command = [sys.executable, "-m", "jitwatch", "sweep", "--device", "sim:h200", "--keys-only"]
    command += ["--target", f"examples.story.faults:{fault}", "--lengths", LENGTHS]
    command += ["--json", str(out), "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    return done.returncode, json.loads(out.read_text())


def causes(report, kind):
    """Who paid for what: code, kernel, argument that changed, its value, requests."""
    return [
        (s["cause"]["code"], s["kernel"], *[tuple(row.values()) for row in s["diff"]][:1])
        for s in report["stalls"]
        if s["kind"] == kind
    ]


def lengths_that_paid(report):
    return [q["prompt_tokens"] for q in report["requests"] if q["in_repo_loads"]]


def test_the_engine_as_it_is_passes(tmp_path):
    status, report = swept("clean", tmp_path)
    assert (status, report["stalls"]) == (0, [])
    assert [rung["prompt_tokens"] for rung in report["ladder"]] == [1, 257, 2049]


def test_a_constexpr_length_loads_once_for_each_new_length(tmp_path):
    status, report = swept("constexpr_length", tmp_path)
    assert status == 1
    assert causes(report, "load") == [
        ("JW103", "l2norm_kernel", ("num_tokens", "11", "1")),
        ("JW103", "l2norm_kernel", ("num_tokens", "80", "1")),
    ]
    # The ladder's own lengths were warm.
    assert lengths_that_paid(report) == [11, 80]


def test_a_guessed_ladder_misses_the_tiles_that_it_does_not_know(tmp_path):
    status, report = swept("guessed_ladder", tmp_path)
    assert status == 1
    assert [rung["prompt_tokens"] for rung in report["ladder"]] == [80, 128]
    assert lengths_that_paid(report) == [257, 2049]
    found = causes(report, "load")
    assert sorted(kernel for _, kernel, _ in found) == sorted(EXPERTS * 2)
    assert {code for code, _, _ in found} == {"JW103"}


def test_a_sampler_that_warmup_left_out_is_cold_at_the_first_request(tmp_path):
    status, report = swept("unwarmed_sampler", tmp_path)
    assert status == 1
    assert causes(report, "load") == [("JW101", "sample_kernel")]
    assert lengths_that_paid(report) == [11]


def test_an_autotuned_length_is_tuned_at_every_new_one(tmp_path):
    status, report = swept("autotuned_by_length", tmp_path)
    assert status == 1
    assert causes(report, "autotune") == [
        ("JW106", "gated_rms_norm_kernel", ("num_tokens", "11", "1")),
        ("JW106", "gated_rms_norm_kernel", ("num_tokens", "80", "1")),
    ]


TEXT = "def f():\n    n = 1\n    return n\n\ndef g():\n    n = 1\n"


def test_a_line_is_replaced_at_its_indentation():
    assert replace_line(TEXT, "return n", "return 2") == TEXT.replace("return n", "return 2")
    changed = replace_line(TEXT, "n = 1", "n = 3", after="def g():")
    assert changed == "def f():\n    n = 1\n    return n\n\ndef g():\n    n = 3\n"


@pytest.mark.parametrize(
    ("old", "after", "text"),
    [
        ("n = 1", "", "2 lines read 'n = 1'; exactly one must"),
        ("n = 7", "", "0 lines read 'n = 7'; exactly one must"),
        ("n = 1", "def h():", "0 lines read 'def h():'; exactly one must"),
        ("return n", "def g():", "no line 'return n' below 'def g():'"),
    ],
)
def test_a_line_must_be_the_only_one(old, after, text):
    with pytest.raises(ValueError, match=r"must|below") as caught:
        replace_line(TEXT, old, "pass", after)
    assert str(caught.value) == text


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module to change; its name."""
    (tmp_path / "changed_here.py").write_text("def answer():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.delitem(sys.modules, "changed_here", raising=False)
    yield "changed_here"
    sys.modules.pop("changed_here", None)


def test_a_module_is_changed_in_memory_only(module, tmp_path):
    change_line(module, "return 1", "return 2")
    changed = importlib.import_module(module)
    assert changed.answer() == 2
    assert changed.__file__ == str(tmp_path / "changed_here.py")
    assert inspect.getsource(changed.answer) == "def answer():\n    return 2\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["changed_here.py"]
    assert (tmp_path / "changed_here.py").read_text() == "def answer():\n    return 1\n"


def test_a_module_that_is_imported_already_is_not_changed(module):
    importlib.import_module(module)
    with pytest.raises(RuntimeError, match="changed_here is imported already"):
        change_line(module, "return 1", "return 2")
