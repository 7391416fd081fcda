"""Compilers started as programs: which are told, when they end, and that nothing else changes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from jitwatch.log import read_run
from jitwatch.recorder import Recorder
from jitwatch.records import write_meta
from jitwatch.sources.compilers import CompilerSource, is_compiler, program_of


@pytest.fixture
def recorder(tmp_path):
    write_meta(tmp_path, {})
    return Recorder(tmp_path)


@pytest.fixture
def armed(recorder):
    source = CompilerSource(lambda: recorder)
    source.arm()
    source.arm()
    yield recorder
    source.disarm()


def events(recorder):
    return [(e.kind, e.kernel, e.detail) for e in read_run(recorder.run_dir).events]


@pytest.mark.parametrize(
    ("args", "name"),
    [
        (["/usr/bin/nvcc", "-c"], "nvcc"),
        ("gcc -o x 'y z.c'", "gcc"),
        (b"ninja -v", "ninja"),
        (Path("/opt/ptxas"), "ptxas"),
        ((Path("cc"), "x.c"), "cc"),
        ([], ""),
        ("", ""),
    ],
)
def test_the_program_that_is_started(args, name):
    assert program_of(args) == name
    assert program_of(args, executable="/bin/true") == "true"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("gcc-12", True),
        ("x86_64-linux-gnu-g++-12", True),
        ("clang-17.0.6", True),
        ("clang++", True),
        ("make", True),
        ("makeinfo", False),
        ("python3", False),
        ("git", False),
        ("cc-wrapper", False),
        ("12", False),
        ("", False),
    ],
)
def test_what_is_a_compiler(name, found):
    assert is_compiler(name) is found


def test_a_compiler_is_an_event_from_its_start_to_its_end(armed, tmp_path):
    (tmp_path / "x.c").write_text("int x;")
    with armed.step("decode", ("a",), 1):
        subprocess.run(["cc", "-c", "x.c"], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    subprocess.run("cc -c nowhere.c", shell=True, cwd=tmp_path, check=False, capture_output=True)
    assert events(armed) == [("subprocess", "cc", ""), ("subprocess", "cc", "status 1")]
    first = read_run(armed.run_dir).events[0]
    assert (first.step, first.duration_ns > 0) == (1, True)


def test_one_that_goes_on_is_open_and_holds_nothing_that_follows(armed, tmp_path):
    slow = tmp_path / "nvcc"
    slow.write_text("#!/bin/sh\nread line\n")
    slow.chmod(0o755)
    process = subprocess.Popen([str(slow)], stdin=subprocess.PIPE)
    armed.end(armed.begin("load", "triton", "k"))
    compiler, load = read_run(armed.run_dir).events
    assert (compiler.end_ns, load.parent) == (None, None)
    process.stdin.close()
    while process.poll() is None:
        time.sleep(0.01)
    process.wait()
    assert events(armed)[0] == ("subprocess", "nvcc", "status 1")


def test_inside_another_sources_event_it_is_that_events(armed):
    seq = armed.begin("compile", "triton", "k")
    subprocess.run(["cc", "--version"], check=True, capture_output=True)
    armed.end(seq)
    assert [kind for kind, *_ in events(armed)] == ["compile"]


def test_what_can_not_be_started_raises_as_it_would(armed):
    with pytest.raises(FileNotFoundError):
        subprocess.run(["/no/such/nvcc"], check=False)
    with pytest.raises(TypeError):
        subprocess.run(7, check=False)
    with pytest.raises(TypeError):
        subprocess.Popen()
    assert events(armed) == [("subprocess", "nvcc", "not started")]


def test_popen_is_put_back(recorder):
    before = subprocess.Popen.__init__, subprocess.Popen._handle_exitstatus
    source = CompilerSource(lambda: recorder)
    source.arm()
    assert subprocess.Popen.__init__ is not before[0]
    source.disarm()
    assert (subprocess.Popen.__init__, subprocess.Popen._handle_exitstatus) == before
