"""The sweep's options, and the run it is compared with."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jitwatch import sweep
from jitwatch.errors import UsageError
from jitwatch.provenance import default_repo
from jitwatch.render.json import render_json
from jitwatch.sweep import (
    SweepOptions,
    lengths_between,
    make_run_dir,
    new_run_dir,
    parse_lengths,
    resolve_devices,
    run_sweep,
)

ROOT = Path(__file__).parent.parent


def refused(function, *arguments):
    with pytest.raises(UsageError) as caught:
        function(*arguments)
    return str(caught.value)


def test_lengths_between_two():
    assert lengths_between(11, 14) == (11, 12, 13, 14)
    assert lengths_between(11, 16, 3) == (11, 14)
    assert lengths_between(5, 5) == (5,)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            (20, 10),
            "--min 20 is above --max 10\n"
            "  why: no length lies between them\n"
            "  fix: swap them: --min 10 --max 20",
        ),
        ((0, 10), "--min 0: must be 1 or more"),
        ((1, 10, 0), "--step 0: must be 1 or more"),
    ],
)
def test_a_range_without_lengths_is_refused(arguments, text):
    assert refused(lengths_between, *arguments) == text


def test_listed_lengths_keep_their_order_each_once():
    assert parse_lengths("64, 65,1,64") == (64, 65, 1)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("11,x", "'x'"),
        ("11,,12", "'an empty part'"),
        ("0", "'0'"),
        ("-3", "'-3'"),
        ("1.5", "'1.5'"),
    ],
)
def test_listed_lengths_that_are_none_are_refused(text, part):
    assert refused(parse_lengths, text) == (
        f"--lengths {text}: {part} is no length\n"
        "  why: lengths are whole numbers of 1 or more, separated by commas\n"
        "  fix: for example --lengths 11,64,2560"
    )


@pytest.mark.parametrize("here", [True, False])
def test_auto_is_the_gpu_where_there_is_one(monkeypatch, here):
    monkeypatch.setattr(sweep, "has_gpu", lambda: here)
    assert resolve_devices("auto") == ("cuda" if here else "sim:h200",)


def test_boards_are_named_once_and_by_their_own_name(monkeypatch):
    monkeypatch.setattr(sweep, "has_gpu", lambda: True)
    assert resolve_devices("sim:sm_90,sim:H200, sim:l4,cuda") == ("sim:h200", "sim:l4", "cuda")


def test_cuda_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(sweep, "has_gpu", lambda: False)
    assert refused(resolve_devices, "cuda") == (
        "--device cuda: there is no GPU here\n"
        "  why: the CUDA driver library is missing or finds no device\n"
        "  fix: use --device sim:h200, or run where there is a GPU"
    )


def test_an_unknown_device_and_an_unknown_board_are_refused():
    assert refused(resolve_devices, "gpu") == (
        "--device 'gpu' is no device\n"
        "  why: a device is auto, cuda or sim:BOARD\n"
        "  fix: for example --device sim:h200"
    )
    text = refused(resolve_devices, "sim:h20")
    assert text.startswith("there is no simulated board 'sim:h20'\n  why: known are sim:h200, ")
    assert text.endswith("\n  fix: use sim:h200")


def test_the_repository_is_the_git_top_level_or_the_folder_itself(tmp_path):
    inner = tmp_path / "a"
    inner.mkdir()
    assert default_repo(inner) == inner.resolve()
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert default_repo(inner) == tmp_path.resolve()


def test_a_new_run_directory_is_kept_out_of_git(tmp_path):
    run_dir = new_run_dir(tmp_path)
    assert run_dir.parent == tmp_path / ".jitwatch"
    assert run_dir.is_dir()
    assert (tmp_path / ".jitwatch" / ".gitignore").read_text() == "*\n"


def test_a_run_directory_beneath_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    run_dir = tmp_path / "file" / "run"
    assert refused(make_run_dir, run_dir) == (
        f"--run-dir {run_dir}: can't be written\n"
        "  why: NotADirectoryError: Not a directory\n"
        "  fix: give a folder of your own: --run-dir DIR"
    )


def test_a_run_directory_that_holds_something_is_refused_and_left(tmp_path):
    (tmp_path / "mine").write_text("kept")
    assert refused(make_run_dir, tmp_path) == (
        f"--run-dir {tmp_path} is not empty\n"
        "  why: a run never writes over another\n"
        "  fix: give a new folder, or remove this one"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_parent_imports_no_torch():
    asked = "import sys, jitwatch.cli, jitwatch.plugin; print({'torch', 'triton'} & {*sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.stdout.strip() == "set()"


@pytest.fixture(scope="module")
def simulated_run(tmp_path_factory):
    """A keys-only run of a control at 64 and 65 tokens, as a directory and as JSON."""
    folder = tmp_path_factory.mktemp("simulated")
    options = SweepOptions(
        target="tests.controls.integer_class:Faulty",
        devices=("sim:h200",),
        lengths=(64, 65),
        run_dir=folder / "run",
        repo=ROOT,
        keys_only=True,
        path=ROOT,
    )
    reports = run_sweep(options)
    (folder / "run.json").write_text(render_json(reports))
    return options


def test_the_same_variants_as_the_simulated_run_leave_no_doubt(simulated_run, tmp_path):
    for number, source in enumerate([simulated_run.run_dir, f"{simulated_run.run_dir}.json"]):
        again = replace(simulated_run, run_dir=tmp_path / str(number), simulated=Path(source))
        (report,) = run_sweep(again)
        assert report.doubts == ()


def test_other_variants_than_the_simulated_run_are_a_doubt(simulated_run, tmp_path):
    other = replace(
        simulated_run,
        devices=("sim:a100",),
        run_dir=tmp_path / "run",
        simulated=simulated_run.run_dir,
    )
    (report,) = run_sweep(other)
    assert [doubt.split(",")[0] for doubt in report.doubts] == [
        "2 variants only here",
        "2 variants only simulated",
    ]


def test_a_simulated_run_of_other_lengths_is_refused(simulated_run, tmp_path):
    other = replace(
        simulated_run, lengths=(64,), run_dir=tmp_path / "run", simulated=simulated_run.run_dir
    )
    with pytest.raises(UsageError, match=r"it served other lengths\n  why: 64..65 there, 64 here"):
        run_sweep(other)
    assert not other.run_dir.exists()
