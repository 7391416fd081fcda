"""Targets that misbehave: nothing passes that was not seen, nothing hangs, nothing lingers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitwatch.errors import RunFileError, UsageError
from jitwatch.sweep import SweepOptions, run_sweep

ROOT = Path(__file__).parent.parent
pytest.importorskip("triton")

KERNEL = """
import asyncio, json, os, subprocess, sys, time
import torch, triton, triton.language as tl

@triton.jit
def add_kernel(x, n: tl.constexpr):
    o = tl.arange(0, 64)
    tl.store(x + o, tl.load(x + o, mask=o < n), mask=o < n)

X = torch.empty(1024, device="cuda")

def launch(n):
    add_kernel[(1,)](X, n)

class Base:
    def warmup(self):
        launch(64)
    def serve(self, request):
        launch(64)
"""
CLASSES = {
    "Coroutine": "    async def warmup(self): launch(64)\n"
    "    async def serve(self, request): launch(request.prompt_tokens)",
    "Generator": "    def serve(self, request):\n        yield 1\n"
    "        launch(request.prompt_tokens)",
    "ExitsInClose": "    def close(self): os._exit(0)",
    "LeavesProcess": "    def serve(self, request):\n        launch(64)\n"
    "        subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
    "close_fds=False)",
    "WritesEverywhere": "    def serve(self, request):\n        launch(64)\n"
    "        for fd in range(3, 30):\n            try: os.write(fd, b'[1]\\\\n{}\\\\n')\n"
    "            except OSError: pass",
    "ReplacesHooks": "    def serve(self, request):\n        from triton import knobs\n"
    "        knobs.runtime.kernel_load_start_hook = knobs.HookChain()\n        launch(64)",
    "Forks": "    def serve(self, request):\n        launch(64)\n        pid = os.fork()\n"
    "        if pid == 0:\n            launch(request.prompt_tokens)\n            os._exit(0)\n"
    "        os.waitpid(pid, 0)",
    "OddText": "    def serve(self, request):\n        launch(64)\n"
    "        if request.prompt_tokens == 33: raise ValueError(chr(0xD800))",
    "Hangs": "    def serve(self, request): time.sleep(600)",
    "NoMethod": "    warmup = 'yes'",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that holds `odd.py`: a class for each misbehaviour."""
    folder = tmp_path_factory.mktemp("odd")
    body = "\n".join(f"class {name}(Base):\n{text}\n" for name, text in CLASSES.items())
    (folder / "odd.py").write_text(KERNEL + body)
    return folder


@pytest.fixture
def swept(folder, tmp_path):
    """A function that sweeps one of the classes over 33 and 64 tokens."""

    def sweep(name: str, **changes):
        options = {"repo": folder, "path": folder, "run_dir": tmp_path / "run"} | changes
        return run_sweep(
            SweepOptions(
                target=f"odd:{name}",
                devices=("sim:h200",),
                lengths=(33, 64),
                keys_only=True,
                **options,
            )
        )[0]

    return sweep


@pytest.mark.parametrize("name", ["Coroutine", "Generator"])
def test_what_serve_gives_back_is_run_to_its_end(swept, name):
    report = swept(name)
    assert report.verdict.outcome == "fail"
    assert [row.in_repo_loads for row in report.requests] == [1, 0]


def test_a_process_that_ends_itself_is_no_pass(swept):
    report = swept("ExitsInClose")
    assert report.verdict.reasons == (
        "the target's process ended itself before the sweep was over (status 0)",
    )


def test_a_process_left_behind_does_not_hold_up_the_sweep(swept):
    started = time.monotonic()
    assert swept("LeavesProcess").verdict.outcome == "pass"
    assert time.monotonic() - started < 40


def test_noise_on_our_pipe_is_passed_over(swept):
    assert swept("WritesEverywhere").verdict.outcome in ("pass", "inconclusive")


def test_replaced_load_hooks_are_a_doubt(swept):
    (reason, *_) = swept("ReplacesHooks").verdict.reasons
    assert reason.startswith("the target replaced Triton's load hooks")


def test_a_forked_child_that_compiles_is_a_doubt(swept):
    (reason,) = swept("Forks").verdict.reasons
    assert reason.startswith("forked processes compiled or loaded kernels, unseen: ")


def test_an_exceptions_odd_text_is_that_requests_error(swept):
    report = swept("OddText")
    errors = [row.request.error for row in report.requests]
    assert errors[0].startswith("ValueError: \\ud800 (")
    assert errors[1] is None


def test_a_warmup_that_is_no_method_is_bad_usage(swept):
    with pytest.raises(UsageError, match="its warmup is no method"):
        swept("NoMethod")


def test_a_repository_reached_through_a_link_is_the_same(swept, folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    for number, places in enumerate([{"repo": link}, {"path": link}]):
        report = swept("Base", run_dir=tmp_path / str(number), **places)
        assert report.verdict.outcome == "pass"


def test_a_package_that_is_one_file_is_that_file(swept, tmp_path):
    (empty := tmp_path / "elsewhere").mkdir()
    judged = swept("Base", repo=empty, packages=("odd",))
    assert judged.verdict.outcome == "pass"
    other = swept("Base", repo=empty, packages=("typing_extensions",), run_dir=tmp_path / "2")
    assert other.verdict.outcome == "inconclusive"
    with pytest.raises(UsageError, match="--package sys: no such package"):
        swept("Base", packages=("sys",), run_dir=tmp_path / "3")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_the_child_ends_with_its_parent(folder, tmp_path):
    command = [sys.executable, "-m", "jitwatch", "sweep", "--target", "odd:Hangs"]
    command += ["--device", "sim:h200", "--lengths", "33", "--run-dir", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(command, cwd=folder, env=environment)
    events = wait_for(lambda: [*(tmp_path / "run").glob("events-*.jsonl")])[0]
    wait_for(lambda: '"r": "step"' in events.read_text())
    child = int(events.stem.split("-")[1])
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not is_running(child))


def wait_for(condition, seconds: float = 60):
    """Poll until `condition` holds: another process makes it so, in its own time."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it never came"
        os.sched_yield()
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def test_a_run_directory_taken_away_is_an_error(swept, tmp_path, monkeypatch):
    import jitwatch.sweep

    def run_child(job, progress):
        (tmp_path / "run" / "meta.json").unlink()
        (tmp_path / "run").rmdir()
        return []

    monkeypatch.setattr(jitwatch.sweep, "run_child", run_child)
    with pytest.raises(RunFileError, match="can't be written any more"):
        swept("Base")
