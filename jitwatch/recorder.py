"""Writes one process's events, steps and requests into a run directory.

Owns the file `events-<pid>.jsonl` (`events-<pid>-<ns>.jsonl` where an earlier program
of that number has the name): a JSON object a line, appended with one `write` each, so
that a killed process loses nothing it had begun. A begin line comes before the work (a
hang or a kill leaves it open), an end line after. Knows nothing of CUDA, Triton, judging
or the files' reader (`log.py`).
"""

from __future__ import annotations

import errno
import fcntl
import functools
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar, Token
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from jitwatch.events import Kind, Phase, SourceState, Variant

#: Version of the line format; a reader refuses a newer one.
FORMAT = 1
#: Numbers of a process's second file begin here, of its third at twice that, and so on.
NUMBERS_A_FILE = 10**9
HIGH_FD = 700


class Recorder:
    """Appends records of this process; safe from any thread, never raises in a hook.

    A write that fails (a full disk) is counted in `dropped` and told about at the
    next write that works. A forked child only says that it had something to write,
    or, with `follow_forks`, goes on in a file of its own.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        follow_forks: bool = False,
    ) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.run_dir = run_dir
        self.clock = clock
        self.follow_forks = follow_forks
        self.on_step: list[Callable[[int | None], None]] = []
        #: Tokens of the longest step so far; whoever asks may set it back to 0.
        self.longest_step = 0
        self._open()

    def _open(self) -> None:
        """Begin this process's file."""
        self.pid = os.getpid()
        self.dropped = self._told = 0
        self._lock = threading.Lock()
        self._thread = _Thread()
        self._step: ContextVar[int | None] = ContextVar("jitwatch_step", default=None)
        self._open_steps: set[int] = set()
        stem = f"events-{self.pid}"
        earlier = len(list(self.run_dir.glob(f"{stem}-*.jsonl")))
        earlier += (self.run_dir / f"{stem}.jsonl").exists()
        self._seq = earlier * NUMBERS_A_FILE
        self._step_ids = itertools.count(self._seq + 1)
        name = f"{stem}-{self.clock()}" if earlier else stem
        self._path = self.run_dir / f"{name}.jsonl"
        self._fd = self._open_file()
        self._write({"r": "process", "format": FORMAT, "pid": self.pid, "t": self.clock()})

    def _open_file(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return out_of_the_way(os.open(self._path, flags, 0o644))

    # -- events ---------------------------------------------------------------

    def begin(
        self,
        kind: Kind,
        source: str,
        kernel: str,
        *,
        variant: Variant | None = None,
        file: str | None = None,
        line: int | None = None,
        stack: tuple[str, ...] = (),
        detail: str = "",
        nbytes: int = 0,
        start_ns: int | None = None,
        detached: bool = False,
    ) -> int:
        """Write a begin record, before the work, and return the event's `seq`.

        A `detached` one goes on beside what this thread does next, which is not inside it.
        """
        with self._lock:
            self._seq += 1
            seq = self._seq
        open_events = self._open_events()
        record: dict[str, Any] = {
            "r": "begin",
            "seq": seq,
            "tid": threading.get_native_id(),
            "t": self.clock() if start_ns is None else start_ns,
            "kind": kind,
            "source": source,
            "kernel": kernel,
            "step": self.current_step,
            "parent": open_events[-1] if open_events else None,
        }
        if variant is not None:
            record["variant"] = asdict(variant)
        if file is not None:
            record["file"], record["line"] = file, line
        if stack:
            record["stack"] = stack
        if detail:
            record["detail"] = detail
        if nbytes:
            record["nbytes"] = nbytes
        if not detached:
            open_events.append(seq)
        self._write(record)
        return seq

    def end(self, seq: int, *, kind: Kind | None = None, detail: str = "", nbytes: int = 0) -> None:
        """Close an event; `kind` corrects what could not be known at its begin."""
        open_events = self._open_events()
        if seq in open_events:
            self._close_from(open_events.index(seq) + 1)
            open_events.pop()
        record: dict[str, Any] = {"r": "end", "seq": seq, "t": self.clock()}
        if kind is not None:
            record["kind"] = kind
        if detail:
            record["detail"] = detail
        if nbytes:
            record["nbytes"] = nbytes
        self._write(record)

    @property
    def is_inside_event(self) -> bool:
        """Whether an event is open on this thread."""
        return bool(self._open_events())

    def reenter(self, seq: int) -> None:
        """Go on with an event that was ended: what follows is inside it until the next end."""
        self._open_events().append(seq)

    def discard(self, seq: int) -> None:
        """Take a begun event back: nothing of its kind happened."""
        if seq in self._open_events():
            self._open_events().remove(seq)
        self._write({"r": "discard", "seq": seq})

    # -- steps and requests -----------------------------------------------------

    @property
    def current_step(self) -> int | None:
        """The id of the step open in this thread or asyncio task, if there is one."""
        step = self._step.get()
        return step if step in self._open_steps else None

    def step(
        self, phase: Phase, requests: tuple[str, ...], tokens: int
    ) -> AbstractContextManager[int]:
        """Mark one forward of the target for `requests`; events in it are charged to them."""
        return _OpenStep(self, phase, requests, tokens)

    def begin_step(self, phase: Phase, requests: tuple[str, ...], tokens: int) -> _StepBefore:
        """Open a step on this thread. On every forward's path: it must cost little."""
        thread = self._thread
        step = next(self._step_ids)
        self.longest_step = max(self.longest_step, tokens)
        self._open_steps.add(step)
        before = _StepBefore(step, len(thread.open_events), self._step.set(step))
        self._append(
            f'{{"r": "step", "id": {step}, "phase": "{phase}", "requests": {_as_list(requests)}, '
            f'"tokens": {tokens}, "tid": {thread.tid}, "t": {self.clock()}}}\n'
        )
        thread.steps.append(step)
        self._tell_step()
        return before

    def end_step(self, before: _StepBefore) -> None:
        """Close a step, and what an exception left open in it."""
        self._open_steps.discard(before.step)
        with suppress(ValueError):  # a generator may be closed in another context
            self._step.reset(before.token)
        steps = self._thread.steps
        if before.step in steps:
            steps.remove(before.step)
        self._tell_step()
        self._close_from(before.depth)
        self._append(f'{{"r": "step_end", "id": {before.step}, "t": {self.clock()}}}\n')

    def request(self, request: str, prompt_tokens: int, output_tokens: int) -> None:
        """A request arrived."""
        record = {"r": "request", "id": request, "prompt_tokens": prompt_tokens}
        self._write({**record, "output_tokens": output_tokens, "t": self.clock()})

    def first_token(self, request: str) -> None:
        """A request's first token is known."""
        self._write({"r": "first_token", "id": request, "t": self.clock()})

    def request_end(
        self,
        request: str,
        *,
        error: str | None = None,
        launches: int | None = None,
        used: Collection[int] | None = None,
    ) -> None:
        """A request was answered, or failed with `error`. `used`: see `events.Request`."""
        record: dict[str, Any] = {
            "r": "request_end",
            "id": request,
            "error": error,
            "launches": launches,
        }
        if used is not None:
            record["used"] = sorted(used)
        self._write({**record, "t": self.clock()})

    def ready(self) -> None:
        """Warmup is over: what loads from here on is late."""
        self._write({"r": "ready", "t": self.clock()})

    # -- coverage ----------------------------------------------------------------

    def source(self, state: SourceState) -> None:
        """A source was armed, or could not be."""
        self._write({"r": "source", **asdict(state)})

    def fact(self, name: str, value: object) -> None:
        """A fact for coverage or environment that only this process knows."""
        self._write({"r": "fact", "name": name, "value": value})

    def close(self) -> None:
        """Close the file; its last record says that nothing more was to come."""
        self._write({"r": "close", "t": self.clock()})
        with suppress(OSError):  # a target may have closed it
            os.close(self._fd)
        self._fd = -1

    # -- inside --------------------------------------------------------------------

    def _tell_step(self) -> None:
        """Steps of tasks may overlap on their thread, which is told of the one begun last."""
        steps = self._thread.steps
        step = steps[-1] if steps else None
        for notify in self.on_step:
            notify(step)

    def _close_from(self, depth: int) -> None:
        """End what was begun on this thread and left open by an exception."""
        open_events = self._open_events()
        for orphan in open_events[depth:]:
            self._write({"r": "end", "seq": orphan, "t": self.clock(), "detail": "raised"})
        del open_events[depth:]

    def _open_events(self) -> list[int]:
        return self._thread.open_events

    def _silent(self) -> None:
        """A forked child must not write into its parent's file: it says only that it had to."""
        with suppress(OSError):
            (self.run_dir / f"silent-{os.getpid()}").touch()

    def in_forked_child(self) -> None:
        """Go on in a file of this process's own."""
        with suppress(OSError):
            os.close(self._fd)
        try:
            self._open()
        except OSError:
            self._silent()
            self._fd = -1

    def _write(self, record: dict[str, Any]) -> None:
        try:
            self._append(json.dumps(record, default=str) + "\n")
        except (ValueError, TypeError, RecursionError):
            self.dropped += 1

    def _append(self, line: str) -> None:
        """Write one line, and before it how many were lost."""
        if os.getpid() != self.pid:
            if not self.follow_forks:
                self._silent()
                return
            self.in_forked_child()
        data = line.encode()
        lost = self.dropped - self._told
        if lost:
            # On a line of its own: the one before may be torn.
            data = b"\n" + json.dumps({"r": "lost", "number": lost}).encode() + b"\n" + data
        try:
            if self._write_to_file(data) != len(data):
                raise OSError("a short write")
            self._told += lost
        except OSError:
            self.dropped += 1

    def _write_to_file(self, data: bytes) -> int:
        try:
            return os.write(self._fd, data)
        except OSError as error:
            if error.errno != errno.EBADF or self._fd < 0:
                raise
        self._fd = self._open_file()  # the program closed all that was open
        return os.write(self._fd, data)


def out_of_the_way(fd: int) -> int:
    """`fd` under a high number: a program that closes descriptors and opens its own gets the lowest
    ones, and what we write must never end up in its files."""
    try:
        high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)
    except OSError:  # the process may have no such numbers
        return fd
    os.close(fd)
    return high


class _Thread(threading.local):
    """What one thread has open."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.open_events: list[int] = []
        self.tid = threading.get_native_id()


class _StepBefore(NamedTuple):
    """A step's number, how many events were open before it, and the step around it."""

    step: int
    depth: int
    token: Token[int | None]


class _OpenStep:
    """`begin_step` and `end_step` as a context; contextlib's own would cost twice as much."""

    __slots__ = ("_before", "_phase", "_recorder", "_requests", "_tokens")

    def __init__(
        self, recorder: Recorder, phase: Phase, requests: tuple[str, ...], tokens: int
    ) -> None:
        self._recorder, self._phase = recorder, phase
        self._requests, self._tokens = requests, tokens

    def __enter__(self) -> int:
        self._before = self._recorder.begin_step(self._phase, self._requests, self._tokens)
        return self._before.step

    def __exit__(self, *_: object) -> None:
        self._recorder.end_step(self._before)


@functools.lru_cache(maxsize=256)
def _as_list(names: tuple[str, ...]) -> str:
    return json.dumps(names)
