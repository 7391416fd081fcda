"""`jitwatch run`: any command and all that it starts, watched.

Owns the command's environment, its life, and when it is ready. The watching is done inside its
processes (`live.py`, the driver hook); here their files are collected and what was not watched is
named. Imports no torch.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

import jitwatch
from jitwatch.errors import DriverUnavailable, RunFileError, UsageError
from jitwatch.follow import Follower
from jitwatch.live import INJECTION, LIBRARY, PACKAGES, RUN_DIR
from jitwatch.log import read_report
from jitwatch.provenance import environment_of
from jitwatch.recorder import Recorder
from jitwatch.records import write_meta
from jitwatch.report import Report
from jitwatch.sources.driver import collect_killed
from jitwatch.sources.driver_library import build_library, find_cupti
from jitwatch.sweep import make_run_dir

#: The folder of the sitecustomize.py that joins a Python process to a run.
INJECT = Path(__file__).parent / "inject"
#: What a process has open from cuInit on.
DEVICE = "/dev/nvidia-uvm"
LOOK_SECONDS = 0.2
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to run and how to judge it. Ready is said by the program, a URL or its output."""

    command: tuple[str, ...]
    run_dir: Path
    repo: Path
    packages: tuple[str, ...] = ()
    fail_on: str | None = None
    ready_url: str | None = None
    ready_log: str | None = None
    typed: str = ""


def run_command(options: RunOptions) -> tuple[int, Report | RunFileError]:
    """Run the command to its end; its status (negative for a signal, as in subprocess), a report.

    Where the run directory is gone by then, the error that says so is in the report's place.

    Raises:
        UsageError: the command can't be started, or an option is wrong.
    """
    pattern = _pattern(options.ready_log)
    make_run_dir(options.run_dir)
    run_dir = options.run_dir.resolve()
    environment, doubts = watched_environment(os.environ, run_dir)
    environment[PACKAGES] = " ".join(options.packages)
    meta = {**_meta(options), "doubts": doubts}
    write_meta(run_dir, meta)
    recorder = Recorder(run_dir)
    ready = _Once(recorder.ready)
    started = time.monotonic()
    processes = _Processes(run_dir)
    with _forwarded_signals() as forward_to:
        child = _start(options, environment, piped=pattern is not None)
        forward_to(child.pid)
        threads = _follow(child, pattern, ready) if pattern is not None else []
        if options.ready_url is not None:
            _in_background(partial(_ask, options.ready_url, child, ready))
        follower = Follower(run_dir)
        while child.poll() is None:
            processes.look(child.pid)
            _say(follower)
            time.sleep(LOOK_SECONDS)
        for thread in threads:
            thread.join(timeout=1)
    meta["environment"]["wall_seconds"] = round(time.monotonic() - started, 1)
    recorder.close()
    try:
        (run_dir / f"events-{recorder.pid}.jsonl").stat()  # a process may make the folder anew
        collect_killed(run_dir)
        _say(follower)
        write_meta(run_dir, {**meta, "doubts": [*doubts, *processes.unwatched()]})
        return child.returncode, read_report(run_dir)
    except OSError as error:
        return child.returncode, RunFileError(
            f"the run directory {run_dir} can't be written any more",
            f"{type(error).__name__}: {error.strerror}",
            "leave it alone while the command runs",
        )
    except RunFileError as error:
        return child.returncode, error


def _say(follower: Follower) -> None:
    for line in follower.lines():
        print(line, file=sys.stderr, flush=True)


def watched_environment(
    environment: Mapping[str, str], run_dir: Path
) -> tuple[dict[str, str], list[str]]:
    """`environment` with what makes a process watch itself, and doubts where it can't all be had.

    An injection of somebody else's (nsys, another profiler) is left alone.
    """
    found = dict(environment)
    found[RUN_DIR] = str(run_dir)
    found["JITWATCH_RECORD_DIR"] = str(run_dir)
    found["JITWATCH_HOME"] = str(Path(jitwatch.__file__).parent.parent)
    found["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(INJECT), environment.get("PYTHONPATH")])
    )
    if environment.get(INJECTION) not in (None, "", environment.get(LIBRARY)):
        text = f"the driver hook was not injected: {INJECTION} is {environment[INJECTION]}"
        return found, [text]
    try:
        library = str(build_library())
    except DriverUnavailable as error:
        return found, [f"{error.what}: {error.why}"]
    found[INJECTION] = found[LIBRARY] = library
    cupti = find_cupti()
    if cupti is not None:
        found["JITWATCH_CUPTI"] = str(cupti)
    return found, []


def _meta(options: RunOptions) -> dict[str, Any]:
    return {
        "device": "cuda",
        "mode": "run",
        "command": list(options.command),
        "repo": str(options.repo.resolve()),
        "packages": list(options.packages),
        "fail_on": options.fail_on or "in-repo",
        "environment": environment_of(options.repo, options.typed),
    }


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--ready-log {text}: is no regular expression", str(error), "escape what is literal"
        ) from error


def _start(
    options: RunOptions, environment: Mapping[str, str], *, piped: bool
) -> subprocess.Popen[bytes]:
    output = subprocess.PIPE if piped else None
    try:
        return subprocess.Popen(
            options.command, env=dict(environment), stdout=output, stderr=output
        )
    except OSError as error:
        raise UsageError(
            f"jitwatch run: {options.command[0]} can't be started",
            f"{type(error).__name__}: {error.strerror}",
            "give the command after --, as you would type it: jitwatch run -- python serve.py",
        ) from error


class _Once:
    """Says that the program is ready, the first time it is called."""

    def __init__(self, say: Callable[[], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self.said = False

    def __call__(self) -> None:
        with self._lock:
            if not self.said:
                self.said = True
                self._say()


def _follow(
    child: subprocess.Popen[bytes], pattern: re.Pattern[str], ready: _Once
) -> list[threading.Thread]:
    """Pass the program's output on as it comes, and watch it for the line that says ready."""
    pairs = ((child.stdout, sys.stdout.buffer), (child.stderr, sys.stderr.buffer))
    return [
        _in_background(partial(_pass_on, source, sink, pattern, ready))
        for source, sink in pairs
        if source is not None
    ]


def _pass_on(source: IO[bytes], sink: IO[bytes], pattern: re.Pattern[str], ready: _Once) -> None:
    line = b""
    while data := os.read(source.fileno(), 1 << 16):
        try:
            sink.write(data)
            sink.flush()
        except OSError:  # nobody reads any more; the program is not to notice
            pass
        *whole, line = (line + data).split(b"\n")
        for text in (*whole, line):
            if not ready.said and pattern.search(text.decode(errors="replace")):
                ready()


def _ask(url: str, child: subprocess.Popen[bytes], ready: _Once) -> None:
    """Ask until the answer's status is 200."""
    while child.returncode is None and not ready.said:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    ready()
        except (OSError, ValueError, urllib.error.URLError):
            pass
        time.sleep(LOOK_SECONDS)


def _in_background(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


class _forwarded_signals:
    """Signals to us go to the program; a terminal's Ctrl-C reaches it by itself."""

    def __enter__(self) -> Callable[[int], None]:
        self._pid = 0
        self._before = {s: signal.signal(s, self._forward) for s in FORWARDED}
        self._before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
        return self._to

    def _to(self, pid: int) -> None:
        self._pid = pid

    def _forward(self, number: int, _: object) -> None:
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Processes:
    """Which processes of the run used CUDA; looked at from time to time, so not the briefest."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.users: dict[int, str] = {}

    def look(self, root: int) -> None:
        """Note the processes that have the CUDA device open."""
        for pid in descendants(root):
            if pid not in self.users and _has_open(pid, DEVICE):
                self.users[pid] = _command_line(pid)

    def unwatched(self) -> Iterator[str]:
        """A doubt for each process that used CUDA and left no record of it."""
        for pid, command in sorted(self.users.items()):
            if not list(self.run_dir.glob(f"driver-{pid}[.-]*")):
                yield (
                    f"process {pid} used CUDA and was not watched: {command} (does it drop "
                    f"{INJECTION} from its environment, or was it in another container?)"
                )


def descendants(root: int) -> set[int]:
    """`root` and the processes below it that are alive."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            parents[int(entry.name)] = int(text.rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _has_open(pid: int, path: str) -> bool:
    try:
        return any(os.readlink(fd) == path for fd in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "?"
    return " ".join(word.decode(errors="replace") for word in words[:6] if word) or "?"


def end_as(status: int) -> int:
    """End as the command did: its exit status, or the signal that killed it."""
    if status >= 0:
        return status
    number = -status
    sys.stdout.flush()
    sys.stderr.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number  # a signal that doesn't kill


def judged(status: int, report: Report | RunFileError, fail_on: str | None) -> int:
    """The command's own status; where it is 0 and a budget was asked for, the verdict's."""
    if status != 0 or fail_on is None:
        return status
    if isinstance(report, RunFileError):
        return 2
    return {"pass": 0, "fail": 1, "inconclusive": 2}[report.verdict.outcome]


def split_command(words: Sequence[str]) -> tuple[str, ...]:
    """The command behind `--`.

    Raises:
        UsageError: there is none.
    """
    command = tuple(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise UsageError(
            "jitwatch run: there is no command",
            "nothing stands behind --",
            "for example: jitwatch run -- python -m engine serve",
        )
    return command
