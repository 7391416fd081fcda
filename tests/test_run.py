"""`jitwatch run` as its user meets it: programs of all kinds, on a CUDA driver that isn't there."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from jitwatch.log import read_report, read_run
from tests.fake_cuda import ROOT, build_fake

#: What every program below begins with: `load()` is cuInit and a module load.
PRELUDE = """
import ctypes, os, subprocess, sys, time
def load(image=b"x"):
    fake = ctypes.CDLL(os.environ["FAKE"])
    fake.fake_cuModuleLoadData.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    assert fake.fake_cuInit() == 0
    fake.fake_cuModuleLoadData(image, len(image))
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    return build_fake(tmp_path_factory.mktemp("fake") / "libcupti.so.13")


@pytest.fixture
def jitwatch_run(tmp_path, fake):
    """Runs a Python program under `jitwatch run`, in a folder without jitwatch on its path."""
    environment = {**os.environ, "FAKE": str(fake)}
    environment.pop("PYTHONPATH", None)

    class Run:
        directory = tmp_path / "run"

        def start(self, code, *options, command=None, **more):
            (tmp_path / "program.py").write_text(PRELUDE + textwrap.dedent(code))
            command = command or [sys.executable, "program.py"]
            words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); "]
            words[2] += "from jitwatch.cli import main; sys.exit(main(sys.argv[1:]))"
            words += ["run", "--run-dir", str(self.directory), *options, "--", *command]
            return subprocess.Popen(
                words,
                cwd=tmp_path,
                env={**environment, **more},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

        def __call__(self, code, *options, **more):
            process = self.start(code, *options, **more)
            out, err = process.communicate()
            return process.returncode, out, err

        def loads(self):
            """By process, the steps of its loads."""
            found = {}
            for event in read_run(self.directory).events:
                if event.source == "driver":
                    found.setdefault(event.pid, []).append(event.step)
            return found

    return Run()


def test_a_program_is_watched_and_its_output_and_status_are_its_own(jitwatch_run):
    status, out, err = jitwatch_run(
        """
        load()
        print("its output")
        print("its error", file=sys.stderr)
        sys.exit(7)
        """
    )
    assert (status, out) == (7, "its output\n")
    assert err.startswith("its error\nINCONCLUSIVE: ")
    assert "- the target was never ready: nothing can be late" in err
    assert list(jitwatch_run.loads().values()) == [[None]]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_join(jitwatch_run, method):
    jitwatch_run(
        f"""
        import multiprocessing
        if __name__ == "__main__":
            children = [
                multiprocessing.get_context({method!r}).Process(target=load) for _ in range(2)
            ]
            for child in children:
                child.start()
            for child in children:
                child.join()
        """
    )
    assert sorted(jitwatch_run.loads().values()) == [[None], [None]]


def test_a_shell_script_an_exec_and_another_python_join(jitwatch_run, tmp_path):
    (tmp_path / "script.sh").write_text("set -e\n$PYTHON program.py\nexec $PYTHON program.py\n")
    command = ["sh", "script.sh"]
    jitwatch_run("load()", command=command, PYTHON=f"{sys.executable} -S")
    # Without site there is no sitecustomize: the driver's own injection is enough.
    assert sorted(jitwatch_run.loads().values()) == [[None], [None]]
    run = read_run(jitwatch_run.directory)
    assert run.coverage.load_source == "driver"


def test_a_process_that_becomes_another_program_has_both_programs_loads(jitwatch_run):
    jitwatch_run(
        """
        import jitwatch
        with jitwatch.step("decode", ["a"], 1):
            load()
        if len(sys.argv) == 1:
            os.execv(sys.executable, [sys.executable, "program.py", "again"])
        """
    )
    [steps] = jitwatch_run.loads().values()
    assert len(steps) == 2
    assert len(set(steps)) == 2
    assert {step.id for step in read_run(jitwatch_run.directory).steps} == set(steps)


def test_steps_and_requests_of_a_program_are_charged(jitwatch_run):
    status, _, err = jitwatch_run(
        """
        import jitwatch
        load()
        jitwatch.ready()
        with jitwatch.request("first", prompt_tokens=64):
            with jitwatch.step("prefill", ["first"], 64):
                load()
        try:
            with jitwatch.request("second", prompt_tokens=65):
                raise ValueError("no")
        except ValueError:
            pass
        """,
        *("--json", "report.json", "--fail-on", "any"),
    )
    assert status == 1, err
    report = json.loads((jitwatch_run.directory.parent / "report.json").read_text())
    assert [stall["requests"] for stall in report["stalls"]] == [["first"]]
    assert [r["error"] for r in report["requests"]] == [None, "ValueError: no"]
    assert report["verdict"]["reasons"][0] == "1 late third-party load"
    assert report["events"][-1]["stack"][-1].endswith("program.py:14 <module>")


def test_a_killed_process_loses_nothing(jitwatch_run):
    status, _, _ = jitwatch_run(
        """
        import jitwatch, signal
        with jitwatch.step("decode", ["a"], 1):
            load()
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert status == -signal.SIGKILL
    assert list(jitwatch_run.loads().values()) == [[1]]
    assert read_run(jitwatch_run.directory).steps[0].end_ns is None
    assert not any(path.is_symlink() for path in jitwatch_run.directory.iterdir())


@pytest.mark.parametrize(("fail_on", "own", "status"), [(False, 3, 3), (True, 3, 3), (True, 0, 2)])
def test_a_run_directory_that_is_removed_costs_the_report_alone(jitwatch_run, fail_on, own, status):
    code = f"""
        import jitwatch, shutil
        load()
        shutil.rmtree({str(jitwatch_run.directory)!r})
        with jitwatch.request("a", 5), jitwatch.step("decode", ["a"], 1):
            load()
        print("still here")
        sys.exit({own})
        """
    found, out, err = jitwatch_run(code, *(["--fail-on", "any"] if fail_on else []))
    assert (found, out) == (status, "still here\n"), err
    assert "can't be written any more" in err
    assert "Traceback" not in err


def test_a_full_disk_is_nothing_to_the_program(jitwatch_run):
    code = """
        import jitwatch, resource, signal
        load()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # every write fails from here on
        jitwatch.ready()
        with jitwatch.request("a", 5), jitwatch.step("decode", ["a"], 1):
            load()
        print("still here")
        """
    status, out, err = jitwatch_run(code)
    assert (status, out) == (0, "still here\n"), err
    assert "Traceback" not in err


def test_a_signal_to_us_reaches_the_program(jitwatch_run):
    process = jitwatch_run.start(
        """
        import signal
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("up", flush=True)
        time.sleep(60)
        """
    )
    assert process.stdout.readline() == "up\n"
    process.terminate()
    process.communicate()
    assert process.returncode == 5


def test_the_users_own_sitecustomize_runs_and_the_path_is_as_it_was(jitwatch_run, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/sitecustomize.py").write_text("import builtins; builtins.OWN = __file__\n")
    _, out, _ = jitwatch_run(
        "print(OWN); print(sys.modules['sitecustomize'].__file__); print(sys.path)",
        PYTHONPATH=str(tmp_path / "own"),
    )
    alone = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "own")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out == alone.stdout
    assert out.startswith(f"{tmp_path}/own/sitecustomize.py\n" * 2)


def test_an_injection_of_the_users_own_is_left_alone(jitwatch_run):
    _, out, err = jitwatch_run(
        "print(os.environ['CUDA_INJECTION64_PATH'])", CUDA_INJECTION64_PATH="/their/own.so"
    )
    assert out == "/their/own.so\n"
    assert "the driver hook was not injected: CUDA_INJECTION64_PATH is /their/own.so" in " ".join(
        err.split()
    )


def test_a_process_whose_cupti_is_taken_says_so(jitwatch_run):
    status, _, err = jitwatch_run(
        """
        import jitwatch
        ctypes.CDLL(os.environ["FAKE"]).fake_set_taken(1)
        load()
        jitwatch.ready()
        """,
        "--fail-on=in-repo",
    )
    assert status == 2
    assert "- the driver hook was not armed (cuptiSubscribe returned 39" in " ".join(err.split())
    [state] = read_run(jitwatch_run.directory).coverage.sources
    assert (state.name, state.armed) == ("driver", False)
    assert "this process already has a subscriber" in state.reason


def test_a_process_that_used_cuda_unwatched_is_named(jitwatch_run, tmp_path, monkeypatch):
    device = tmp_path / "device"
    device.touch()
    from jitwatch import run

    monkeypatch.setattr(run, "DEVICE", str(device))
    program = f"held = open({str(device)!r}); import time; time.sleep(1)"
    options = run.RunOptions((sys.executable, "-c", program), tmp_path / "run", tmp_path)
    status, report = run.run_command(options)
    assert status == 0
    [doubt] = [text for text in report.doubts if "used CUDA" in text]
    assert f"and was not watched: {sys.executable} -c held" in doubt


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_line_of_the_output_says_ready(jitwatch_run, stream):
    status, out, err = jitwatch_run(
        f"""
        load()
        print("serving on port 80", file=sys.{stream}, flush=True)
        time.sleep(1)
        load()
        """,
        *("--ready-log", r"serving on port \\d+".replace("\\\\", "\\"), "--fail-on", "any"),
    )
    assert status == 1, err
    assert "serving on port 80\n" in (out if stream == "stdout" else err)
    assert "- 1 late third-party load" in err


def test_a_url_says_ready(jitwatch_run):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    status, _, err = jitwatch_run(
        """
        import http.server, socketserver, threading
        class Answer(http.server.BaseHTTPRequestHandler):
            number = 0
            def do_GET(self):
                Answer.number += 1
                self.send_response(503 if Answer.number < 3 else 200)
                self.end_headers()
            def log_message(self, *_): pass
        load()
        socketserver.TCPServer.allow_reuse_address = True
        server = socketserver.TCPServer(("127.0.0.1", int(os.environ["PORT"])), Answer)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while Answer.number < 3:
            time.sleep(0.05)
        time.sleep(0.5)
        load()
        """,
        *("--ready-url", f"http://127.0.0.1:{port}/health", "--fail-on", "any"),
        PORT=str(port),
    )
    assert status == 1, err
    assert "- 1 late third-party load" in err


@pytest.mark.parametrize(
    ("options", "command", "text"),
    [
        ([], ["/no/such/program"], "jitwatch run: /no/such/program can't be started"),
        (["--ready-log", "["], ["true"], "--ready-log [: is no regular expression"),
        (["--repo", "/no/such"], ["true"], "--repo /no/such: there is no such folder"),
    ],
)
def test_what_can_not_be_run_is_told(jitwatch_run, options, command, text):
    status, _, err = jitwatch_run("", *options, command=command)
    assert status == 2
    assert text in err


def test_without_a_command_there_is_nothing_to_run():
    done = subprocess.run(
        [sys.executable, "-m", "jitwatch", "run"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.split("\n")[0]) == (
        2,
        "jitwatch: jitwatch run: there is no command",
    )


def test_where_nobody_watches_the_api_does_nothing(tmp_path, monkeypatch):
    import jitwatch

    monkeypatch.chdir(tmp_path)
    jitwatch.ready()
    with jitwatch.request("a", 1), jitwatch.step("decode", ["a"], 1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_joining_costs_a_process_little():
    """Every Python process of a run pays for it, helpers too."""
    code = "import sys; before = set(sys.modules); import jitwatch.live; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"dataclasses", "json", "pathlib", "ctypes", "torch", "importlib.abc"}
    assert not heavy & {*done.stdout.split()} - _at_startup()


def _at_startup():
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {*done.stdout.split()}


def test_the_clock_of_both_halves_is_one(jitwatch_run):
    before = time.monotonic_ns()
    jitwatch_run("import jitwatch; load(); jitwatch.ready()")
    run = read_run(jitwatch_run.directory)
    assert before < run.events[0].start_ns < run.ready_ns < time.monotonic_ns()


def test_arming_late_records_from_then_on(tmp_path, fake):
    code = """
        import jitwatch
        load()
        jitwatch.arm(sys.argv[1])
        jitwatch.arm(sys.argv[1])
        jitwatch.ready()
        with jitwatch.request("one", 5), jitwatch.step("prefill", ["one"], 5):
            load()
        """
    environment = {**os.environ, "FAKE": str(fake), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), str(tmp_path / "run")]
    subprocess.run(command, check=True, env=environment, cwd=tmp_path)
    run = read_run(tmp_path / "run")
    assert [event.step for event in run.events] == [1]
    report = read_report(tmp_path / "run")
    assert [(stall.requests, stall.inferred) for stall in report.stalls] == [(("one",), False)]


def test_a_package_is_found_where_the_program_finds_it(jitwatch_run, tmp_path):
    (tmp_path / "lib/judged").mkdir(parents=True)
    (tmp_path / "lib/judged/__init__.py").touch()
    jitwatch_run(
        "import jitwatch; jitwatch.ready()",
        *("--package", "judged", "--package", "nowhere_to_be_found"),
        PYTHONPATH=str(tmp_path / "lib"),
    )
    assert read_run(jitwatch_run.directory).facts["packages"] == {
        "judged": [str(tmp_path / "lib/judged")]
    }


def test_a_module_is_the_same_watched_or_not(jitwatch_run, tmp_path):
    """Who only looks for torch, or imports it later, finds what would be there without us."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("class cuda:\n    is_initialized = lambda: False\n")
    _, out, err = jitwatch_run(
        """
        import importlib.util, inspect
        print(importlib.util.find_spec("torch").origin)
        print(importlib.util.find_spec("torch").loader.get_filename("torch"))
        import torch
        print(type(torch.__loader__).__name__, type(torch.__spec__.loader).__name__)
        print(inspect.getsource(torch.cuda).splitlines()[0])
        """
    )
    path = str(tmp_path / "torch/__init__.py")
    names = "SourceFileLoader SourceFileLoader"
    assert out.splitlines() == [path, path, names, "class cuda:"], err


def test_late_loads_are_told_while_the_program_runs(jitwatch_run):
    process = jitwatch_run.start(
        """
        import jitwatch
        load()
        jitwatch.ready()
        with jitwatch.request("first", 64), jitwatch.step("prefill", ["first"], 64):
            load()
        with jitwatch.request("second", 65):
            load()
        load()
        sys.stdin.read()
        """
    )
    told = [process.stderr.readline() for _ in range(3)]
    assert process.poll() is None
    process.kill()
    process.communicate()
    names = [re.fullmatch(r"jitwatch: late load: (.*), \?, \d+\.\d ms\n", line) for line in told]
    assert [match and match[1] for match in names] == ["first", "second", "no request"], told


def test_a_compiler_on_the_request_path_is_charged(jitwatch_run):
    _, _, err = jitwatch_run(
        """
        import jitwatch
        load()
        jitwatch.ready()
        with jitwatch.request("one", prompt_tokens=64):
            subprocess.run(["cc", "--version"], stdout=subprocess.DEVNULL)
        """
    )
    said = " ".join(err.split())
    assert "compiler: prompt_tokens 64: 1 subprocess; " in said
    assert "step inferred; JW207 compiler started: cc" in said


def test_a_program_that_closes_all_descriptors_keeps_its_files_to_itself(jitwatch_run, tmp_path):
    status, _, err = jitwatch_run(
        """
        import jitwatch
        with jitwatch.request("before", 5), jitwatch.step("decode", ["before"], 1):
            load()
        os.closerange(3, 10_000)
        own = [open(f"own-{n}", "w") for n in range(50)]
        with jitwatch.request("after", 5), jitwatch.step("decode", ["after"], 1):
            load()
        for file in own:
            file.close()
        """
    )
    assert status == 0, err
    assert {path.read_text() for path in tmp_path.glob("own-*")} == {""}
    run = read_run(jitwatch_run.directory)
    assert [request.id for request in run.requests] == ["before", "after"]
    assert all(request.end_ns for request in run.requests)
    assert (len(run.events), run.coverage.dropped) == (2, 0)


def test_any_name_of_a_request_is_read_back(jitwatch_run):
    names = ["a\nb", 'q"', "\udcff", "é", "7"]
    jitwatch_run(
        """
        import jitwatch
        for name in ("a\\nb", 'q"', "\\udcff", "\xe9", 7):
            with jitwatch.request(name, 5), jitwatch.step("odd", [name], 1):
                pass
        """
    )
    run = read_run(jitwatch_run.directory)
    assert [request.id for request in run.requests] == names
    assert [step.requests for step in run.steps] == [(name,) for name in names]
    assert run.coverage.dropped == 0


def test_a_run_inside_a_run_is_watched_by_the_inner_one(jitwatch_run, tmp_path):
    (tmp_path / "inner.py").write_text(PRELUDE + "load()")
    words = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from jitwatch.cli import main; "
    words += f"main(['run', '--run-dir', 'inner', '--', {sys.executable!r}, 'inner.py'])"
    jitwatch_run("", command=[sys.executable, "-c", words])
    assert [event.kind for event in read_run(tmp_path / "inner").events] == ["load"]
    assert jitwatch_run.loads() == {}
