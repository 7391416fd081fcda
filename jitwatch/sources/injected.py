"""The driver hook of a process under `jitwatch run`, which the CUDA driver itself loads at cuInit.

Owns what Python adds to it: the step of each thread, and a file that stacks go to. Makes no CUDA
call: the program must find CUDA as untouched as it would alone.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from pathlib import Path

from jitwatch.recorder import out_of_the_way
from jitwatch.sources.driver import SHARED_MEMORY, answer_with_stacks
from jitwatch.sources.driver_library import declare
from jitwatch.sources.driver_log import NO_STEP


class InjectedHook:
    """The library that CUDA_INJECTION64_PATH names, before the driver arms it or after."""

    def __init__(self, directory: Path, library: str) -> None:
        self._directory = directory
        self._library = declare(ctypes.CDLL(library))
        self._give_stacks()

    def set_step(self, step: int | None) -> None:
        """Stamp this thread's records with `step` from now on."""
        self._library.jw_set_step(NO_STEP if step is None else step)

    def set_explained(self, explained: bool) -> None:
        """Say whether a compiler's hook explains this thread's loads: then no stack is taken."""
        self._library.jw_set_explained(explained)

    def set_ready(self, ready: bool) -> None:
        """From ready on, unexplained loads get the Python stack of their thread."""
        self._library.jw_set_ready(ready)

    def in_forked_child(self) -> None:
        """A child that initialises CUDA has a record file of its own, and stacks beside it."""
        self._give_stacks()
        self.set_ready(True)

    def _give_stacks(self) -> None:
        """A file in shared memory, with a link to it in the run's directory."""
        buffer = ctypes.create_string_buffer(64)
        self._library.jw_run_stem(os.fsencode(self._directory), buffer, len(buffer))
        link = self._directory / f"{buffer.value.decode()}.stacks"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        shared = SHARED_MEMORY / f"jitwatch-{os.getpid()}-{secrets.token_hex(6)}.stacks"
        try:
            link.symlink_to(shared)
            fd = os.open(shared, flags, 0o600)
        except OSError:
            link.unlink(missing_ok=True)
            fd = os.open(link, flags, 0o600)
        fd = out_of_the_way(fd)
        number = answer_with_stacks(self._library, fd)
        self._library.jw_set_stack(fd, number)
