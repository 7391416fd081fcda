"""The fla example: one guilty length, and the same variants as the H200's."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitwatch.render.json import read_json
from jitwatch.sweep import SweepOptions, run_sweep
from tests.controls.summary import summarize, variants

ROOT = Path(__file__).parent.parent
#: What a dense sweep must find is all in these: the guilty length and its neighbours.
LENGTHS = (11, 64, 65, 1024, 2048, 2049, 2050, 2560)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    pytest.importorskip("fla", reason="needs fla-core")
    folder = tmp_path_factory.mktemp("fla")
    options = SweepOptions(
        target="examples.fla.target:Target",
        devices=("sim:h200",),
        lengths=LENGTHS,
        run_dir=folder / "run",
        repo=ROOT,
        packages=("fla",),
        keys_only=True,
        path=ROOT,
    )
    return run_sweep(options)[0]


def test_l2norm_is_tuned_again_at_2049(report):
    (tuned,) = [stall for stall in report.stalls if stall.event.kind == "autotune"]
    assert (tuned.cause.code, tuned.event.kernel) == ("JW106", "l2norm_fwd_kernel")
    assert [(row.argument, row.now, row.before) for row in tuned.diff] == [("NB", "2", "1")]
    assert {
        r.request.prompt_tokens: r.in_repo_loads for r in report.requests if r.in_repo_loads
    } == {2049: 25}
    assert report.verdict.outcome == "fail"


@pytest.mark.triton("3.6")
def test_the_h200_loaded_the_same_variants(report):
    (recorded,) = sorted((ROOT / "sweeps" / "results" / "fla").glob("h200-*.json"))[-1:]
    (real,) = read_json(recorded.read_text())
    assert variants(report) == variants(real)
    ours, theirs = summarize(report), summarize(real)
    assert ours["stalls"] == theirs["stalls"]
    guilty = [length for length, loads, _ in theirs["requests"] if loads]
    assert guilty == [2049]


@pytest.mark.parametrize("version", ["0.1.2", "0.1.3"])
def test_freetoken_loads_the_same_variants_on_both_devices(version):
    folder = ROOT / "sweeps" / "results" / f"freetoken-{version}"
    (real,) = read_json(sorted(folder.glob("h200-*.json"))[-1].read_text())
    (simulated,) = read_json(sorted(folder.glob("sim-h200-*.json"))[-1].read_text())
    assert summarize(simulated)["stalls"] == summarize(real)["stalls"]
    assert {str(v) for v in variants(simulated)} == {str(v) for v in variants(real)}
