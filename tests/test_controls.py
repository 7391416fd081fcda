"""Every control is caught and named, every near miss is clean, on the device and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jitwatch.report import Report
from jitwatch.sweep import SweepOptions, run_sweep
from tests.controls import CONTROLS, Control, Late
from tests.controls.summary import summarize

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests" / "corpus" / "controls-h200.json"
SIDES = [(name, side) for name in CONTROLS for side in ("faulty", "clean")]
#: How often a launch signature is new where a control's fault is: Triton 3.7 and older.
NEW_SIGNATURES = {"JW101": 0, "JW102": 1, "JW109": 1, "JW110": 1, "JW202": 1, "JW206": 1}


def has_launchers() -> bool:
    """Whether this Triton builds C launchers."""
    source = pytest.importorskip("triton.backends.nvidia.driver")
    return hasattr(source, "make_launcher")


def sweep(name: str, side: str, device: str, tmp_path: Path, *, keys_only: bool = False) -> Report:
    control = CONTROLS[name]
    target = control.faulty if side == "faulty" else control.clean
    for run in ["first", "run"] if control.second_run else ["run"]:
        options = SweepOptions(
            target=target,
            devices=(device,),
            lengths=tuple(dict.fromkeys(control.lengths)),
            run_dir=tmp_path / run,
            repo=ROOT,
            keys_only=keys_only,
            path=ROOT,
        )
        (report,) = run_sweep(options)
    return report


def expected_stalls(control: Control) -> list[tuple[int, str, str, str | None, str | None]]:
    return [
        (late.prompt_tokens, late.code, late.kernel, late.argument, late.now)
        for late in control.late
    ]


def check_faulty(name: str, report: Report) -> None:
    control = CONTROLS[name]
    lengths = {row.request.id: row.request.prompt_tokens for row in report.requests}
    named = [
        (
            lengths[stall.requests[0]],
            stall.cause.code,
            stall.event.kernel,
            *(
                (stall.diff[0].argument, stall.diff[0].now, stall.diff[0].before)
                if stall.diff
                else (None, None, None)
            ),
        )
        for stall in report.stalls
        if stall.event.kind == "load"
    ]
    wanted = [row(late) for late in control.late for _ in range(late.loads)]
    assert named == wanted
    assert report.verdict.outcome == "fail"
    loads = sum(late.loads for late in control.late)
    assert report.counts["late_in_repo_loads"] == loads
    assert report.counts["late_autotunes"] == (1 if name == "JW106" else 0)
    paid = {r.request.prompt_tokens for r in report.requests if r.in_repo_loads}
    assert paid == {late.prompt_tokens for late in control.late}


def row(late: Late) -> tuple[int, str, str, str | None, str | None, str | None]:
    return (late.prompt_tokens, late.code, late.kernel, late.argument, late.now, late.before)


def check_clean(report: Report) -> None:
    assert report.verdict.reasons == ()
    assert report.verdict.outcome == "pass"
    assert not report.stalls
    assert report.counts["launches"]


@pytest.mark.parametrize("device", ["sim:h200", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("name", "side"), SIDES)
def test_control(name, side, device, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    report = sweep(name, side, device, tmp_path)
    if side == "clean" and CONTROLS[name].clean:
        check_clean(report)
    else:
        check_faulty(name, report)
    if name == "JW206" and side == "faulty":
        built = [s for s in report.stalls if s.event.kind == "launcher_build"]
        assert [stall.cause.code for stall in built] == ["JW206"] * has_launchers()


@pytest.mark.parametrize(("name", "side"), [s for s in SIDES if s[0] != "JW201"])
def test_keys_only_says_the_same_as_compiling(name, side, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    compiled = summarize(sweep(name, side, "sim:h200", tmp_path / "compiled"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache2"))
    keys = summarize(sweep(name, side, "sim:h200", tmp_path / "keys", keys_only=True))
    assert keys == compiled


@pytest.mark.triton("3.6")
@pytest.mark.parametrize(("name", "side"), SIDES)
def test_simulated_says_what_the_h200_said(name, side, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    recorded = json.loads(RECORDED.read_text())["controls"][f"{name}/{side}"]
    assert summarize(sweep(name, side, "sim:h200", tmp_path)) == recorded
