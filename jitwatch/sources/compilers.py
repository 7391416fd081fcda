"""Compilers started as programs of their own: nvcc, ninja, gcc, ptxas and the like.

Owns the wrapper of `subprocess.Popen`. Knows nothing of what is built. A compiler that another
source's event has started (Triton's ptxas, a launcher's gcc) is that event's, and not told again.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

from jitwatch.recorder import Recorder

#: Programs that build what is loaded later, by name; a version or a target may stand around it.
COMPILERS = frozenset(
    {
        *("nvcc", "cicc", "ptxas", "nvlink", "fatbinary"),
        *("ninja", "cmake", "make"),
        *("cc", "c++", "gcc", "g++", "clang", "clang++", "cc1plus"),
    }
)


class CompilerSource:
    """Arms `subprocess.Popen` of one process; `recorder` is asked for at the first compiler."""

    def __init__(self, recorder: Callable[[], Recorder]) -> None:
        self._recorder = recorder
        self._undo: tuple[Any, Any] | None = None

    def arm(self) -> None:
        """Wrap Popen; arming twice changes nothing."""
        if self._undo is None:
            popen: Any = subprocess.Popen
            begin, end = popen.__init__, popen._handle_exitstatus
            source = self

            def __init__(self: Any, args: Any, *more: Any, **named: Any) -> None:
                seq = source.begun(args, named.get("executable"))
                try:
                    begin(self, args, *more, **named)
                except BaseException:
                    source.ended(seq, "not started")
                    raise
                self._jitwatch_seq = seq

            def _handle_exitstatus(self: Any, *arguments: Any, **named: Any) -> None:
                end(self, *arguments, **named)
                seq, self._jitwatch_seq = getattr(self, "_jitwatch_seq", None), None
                source.ended(seq, f"status {self.returncode}" if self.returncode else "")

            popen.__init__, popen._handle_exitstatus = __init__, _handle_exitstatus
            self._undo = begin, end

    def disarm(self) -> None:
        """Put back what was there before."""
        if self._undo is not None:
            popen: Any = subprocess.Popen
            popen.__init__, popen._handle_exitstatus = self._undo
            self._undo = None

    def begun(self, args: Any, executable: Any = None) -> int | None:
        """An event for a compiler that is about to start; None for any other program."""
        try:
            name = program_of(args, executable)
            if not is_compiler(name) or self._recorder().is_inside_event:
                return None
            return self._recorder().begin("subprocess", "compilers", name, detached=True)
        except Exception:  # what Popen makes of such arguments is the program's business
            return None

    def ended(self, seq: int | None, detail: str) -> None:
        """The compiler ended, as somebody who waited for it saw."""
        if seq is not None:
            self._recorder().end(seq, detail=detail)


def program_of(args: Any, executable: Any = None) -> str:
    """The name of the program that `Popen(args)` starts, without its folder."""
    if executable is not None:
        first = executable
    elif isinstance(args, str | bytes):
        words = shlex.split(os.fsdecode(args))
        first = words[0] if words else ""
    elif isinstance(args, os.PathLike):
        first = args
    else:
        first = next(iter(args), "")
    return os.path.basename(os.fsdecode(first))


def is_compiler(name: str) -> bool:
    """Whether a program is a compiler: `gcc`, `gcc-12`, `x86_64-linux-gnu-gcc-12`."""
    parts = name.split("-")
    while parts and parts[-1].replace(".", "").isdecimal():
        parts.pop()
    return bool(parts) and parts[-1] in COMPILERS
