"""The report's schema: names that other tools read."""

from __future__ import annotations

import json

import pytest

from jitwatch.errors import RunFileError
from jitwatch.events import SCHEMA
from jitwatch.render.json import read_json, render_json, to_object
from tests.samples import event, report
from tests.test_terminal import failing, inconclusive

TOP = {
    "schema",
    "tool",
    "device",
    "environment",
    "coverage",
    "verdict",
    "counts",
    "requests",
    "stalls",
    "warm_variants",
    "events",
    "steps",
    "ready_ns",
    "ladder",
    "uses",
    "proof",
}
COUNTS = {
    "requests",
    "launches",
    "late_in_repo_loads",
    "late_other_loads",
    "late_compiles",
    "late_autotunes",
    "late_launcher_builds",
    "warmup_variants",
}
REQUEST = {
    "id",
    "prompt_tokens",
    "phases",
    "in_repo_loads",
    "other_loads",
    "compiles",
    "launches",
    "stall_ms",
    "ttft_ms",
    "serve_ms",
    "error",
}
STALL = {
    "event",
    "pid",
    "kernel",
    "origin",
    "kind",
    "requests",
    "inferred",
    "stall_ms",
    "cause",
    "diff",
}


def test_the_names_of_the_schema():
    found = json.loads(render_json([failing()]))
    assert set(found) >= TOP
    assert found["schema"] == SCHEMA == 1
    assert found["tool"] == {"name": "jitwatch", "version": "0.1.0"}
    assert set(found["verdict"]) == {"outcome", "reasons"}
    assert set(found["counts"]) == COUNTS
    assert all(set(row) >= REQUEST for row in found["requests"])
    assert all(set(stall) >= STALL for stall in found["stalls"])
    assert set(found["stalls"][0]["cause"]) == {"code", "name", "why", "help"}
    rows = [row for stall in found["stalls"] for row in stall["diff"]]
    assert rows
    assert all(set(row) == {"argument", "now", "before"} for row in rows)


def test_the_values_are_the_reports():
    found = to_object(failing())
    assert found["verdict"]["outcome"] == "fail"
    assert found["counts"]["late_other_loads"] == 3
    late = next(stall for stall in found["stalls"] if stall["kind"] == "compile")
    assert (late["event"], late["kernel"], late["origin"]) == (4, "scale_kernel", "in-repo")
    assert (late["requests"], late["stall_ms"]) == (["len65"], 3.0)
    assert late["diff"][0] == {"argument": "BLOCK", "now": "512", "before": "256"}
    assert [row["in_repo_loads"] for row in found["requests"]] == [0, 1, 1]
    assert len(found["events"]) == 10
    assert [step["id"] for step in found["steps"]] == [64, 65, 66]


def test_one_device_is_an_object_and_several_are_a_list():
    assert isinstance(json.loads(render_json([failing()])), dict)
    several = json.loads(render_json([failing(), inconclusive()]))
    assert [one["device"] for one in several] == ["cuda", "sim:h200"]
    assert [one["counts"]["late_other_loads"] for one in several] == [3, None]


def test_a_row_is_a_line_and_an_empty_list_none():
    made = report([event(1, "load", -5)])
    text = render_json([made])
    # A tuple comes back as a list.
    plain = json.loads(json.dumps(to_object(made)))
    assert json.loads(text) == plain
    lines = text.split("\n")
    assert sum(line.startswith('  {"id": "len') for line in lines) == 2
    assert ' "stalls": [],' in lines
    assert json.loads(render_json([made, made])) == [plain, plain]


def test_a_report_with_an_impossible_length_is_refused():
    text = render_json([report([event(1, "load", -1)])])
    assert read_json(text)[0].requests[0].request.prompt_tokens == 64
    with pytest.raises(RunFileError, match="0 is no number of tokens"):
        read_json(text.replace('"prompt_tokens": 64', '"prompt_tokens": 0'))
