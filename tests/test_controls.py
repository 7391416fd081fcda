"""Every control is caught and named, every near miss is clean, on the device and without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jitwatch.report import Report
from jitwatch.sweep import SweepOptions, run_sweep
from tests.controls import CONTROLS, Late
from tests.controls.summary import summarize

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests" / "corpus" / "controls-h200.json"
SIDES = [(name, side) for name in CONTROLS for side in ("faulty", "clean")]
DEVICES = ["sim:h200", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A function that sweeps one side of one control on a fresh Triton cache, once a module."""
    reports: dict[tuple[str, str, str, bool], Report] = {}

    def sweep(name: str, side: str, device: str, *, keys_only: bool = False) -> Report:
        key = (name, side, device, keys_only)
        if key not in reports:
            reports[key] = _sweep(*key, tmp_path_factory.mktemp("control"))
        return reports[key]

    return sweep


def _sweep(name: str, side: str, device: str, keys_only: bool, folder: Path) -> Report:
    control = CONTROLS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(folder / "cache"))
        for run in ["first", "run"] if control.second_run else ["run"]:
            options = SweepOptions(
                target=control.faulty if side == "faulty" else control.clean,
                devices=(device,),
                lengths=control.lengths,
                run_dir=folder / run,
                repo=ROOT,
                keys_only=keys_only,
                path=ROOT,
            )
            (report,) = run_sweep(options)
    return report


def row(late: Late) -> tuple[int, str, str, str | None, str | None, str | None]:
    return (late.prompt_tokens, late.code, late.kernel, late.argument, late.now, late.before)


def named(report: Report) -> list[tuple[int, str, str, str | None, str | None, str | None]]:
    """The late loads, as a control's table has them."""
    lengths = {row.request.id: row.request.prompt_tokens for row in report.requests}
    found = []
    for stall in report.stalls:
        if stall.event.kind != "load":
            continue
        diff = (None, None, None)
        if stall.diff:
            diff = (stall.diff[0].argument, stall.diff[0].now, stall.diff[0].before)
        found.append((lengths[stall.requests[0]], stall.cause.code, stall.event.kernel, *diff))
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CONTROLS)
def test_fault_is_caught_and_named(name, device, swept):
    control = CONTROLS[name]
    report = swept(name, "faulty", device)
    assert named(report) == [row(late) for late in control.late for _ in range(late.loads)]
    assert report.verdict.outcome == "fail"
    assert report.counts["late_in_repo_loads"] == sum(late.loads for late in control.late)
    assert report.counts["late_autotunes"] == (1 if name == "JW106" else 0)
    paid = {row.request.prompt_tokens for row in report.requests if row.in_repo_loads}
    assert paid == {late.prompt_tokens for late in control.late}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CONTROLS)
def test_near_miss_is_clean(name, device, swept):
    report = swept(name, "clean", device)
    assert (report.verdict.outcome, report.verdict.reasons) == ("pass", ())
    assert not [stall for stall in report.stalls if stall.event.origin == "in-repo"]
    assert report.counts["launches"]


def test_a_new_launch_signature_needs_a_launcher_where_triton_builds_them(swept):
    nvidia = pytest.importorskip("triton.backends.nvidia.driver")
    built = [
        stall
        for stall in swept("JW206", "faulty", "sim:h200").stalls
        if stall.event.kind == "launcher_build"
    ]
    builds = hasattr(nvidia, "make_launcher")
    assert [stall.cause.code for stall in built] == (["JW206"] if builds else [])


@pytest.mark.parametrize(("name", "side"), [side for side in SIDES if side[0] != "JW201"])
def test_keys_only_says_the_same_as_compiling(name, side, swept):
    keys = swept(name, side, "sim:h200", keys_only=True)
    assert summarize(keys) == summarize(swept(name, side, "sim:h200"))


@pytest.mark.triton("3.6")
@pytest.mark.parametrize(("name", "side"), SIDES)
def test_simulated_says_what_the_h200_said(name, side, swept):
    recorded = json.loads(RECORDED.read_text())["controls"][f"{name}/{side}"]
    assert summarize(swept(name, side, "sim:h200")) == recorded
