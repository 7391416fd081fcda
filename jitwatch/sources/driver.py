"""The CUDA driver hook: arm driver.c in this process, collect what it records.

Owns the hook's life and its files in shared memory. Knows nothing of the records' contents
(driver_log.py), of events, verdicts or Triton.

Import torch before arming: CUPTI gives one subscription per copy of the library,
and torch brings the copy that the process should share.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import os
import secrets
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitwatch.errors import DriverUnavailable
from jitwatch.sources.driver_library import find_cupti, load_library, read_text
from jitwatch.sources.driver_log import NO_STEP, SELF_TEST_KERNEL, used_bytes

SHARED_MEMORY = Path("/dev/shm")

# Return values of jw_arm(), as driver.c numbers them.
_SUBSCRIBER_TAKEN = 3
_FILE_ERRORS = (6, 7, 8)

_SELF_TEST_PTX = f""".version 7.0
.target sm_50
.address_size 64
.visible .entry {SELF_TEST_KERNEL}() {{ ret; }}
\0""".encode()


@dataclass(frozen=True, slots=True)
class DriverCounts:
    """What the hook counted so far: module loads, records, drops, kernel launches."""

    loads: int
    records: int
    drops: int
    launches: int


class DriverHook:
    """The armed hook of this process. Make it with `arm`; one process has at most one."""

    _armed: DriverHook | None = None

    def __init__(self, library: ctypes.CDLL, directory: Path, cupti: Path) -> None:
        self._library = library
        self._directory = directory
        self._pid = os.getpid()
        self._signal = 0
        self._record_fd = self._stack_fd = -1
        self.path = cupti
        self.version = ""
        self._stem = f"driver-{self._pid}"
        self.record_path = self.stack_path = Path()

    @classmethod
    def arm(cls, directory: Path, cupti: Path | None = None) -> DriverHook:
        """Subscribe to the driver's module loads and record them for the run in `directory`.

        `directory` gets links to the record and stack files at once, so that a run can be
        read, and `collect_killed` works, whatever happens to this process. Armed already
        (also by CUDA_INJECTION64_PATH): the same record file goes on.

        Raises:
            DriverUnavailable: no compiler, no libcupti, or another tool holds CUPTI.
        """
        if cls._armed is not None and cls._armed._pid == os.getpid():
            return cls._armed
        path = cupti or find_cupti()
        if path is None:
            raise DriverUnavailable(
                "the driver hook can't be armed: no libcupti was found",
                "none is mapped, none in an nvidia wheel on sys.path, none in /usr/local/cuda*",
                "import torch first, or pip install nvidia-cuda-cupti",
            )
        hook = cls(load_library(), directory, path)
        directory.mkdir(parents=True, exist_ok=True)
        hook._open()
        cls._armed = hook
        atexit.register(hook._collect_at_exit)
        return hook

    def _open(self) -> None:
        stem = f"jitwatch-{self._pid}-{secrets.token_hex(6)}"
        error = 0
        for folder in (SHARED_MEMORY, self._directory):
            try:
                self._open_stacks(folder / f"{stem}.stacks")
            except OSError:
                continue
            record = os.fsencode(folder / f"{stem}.bin")
            cupti = os.fsencode(self.path)
            error = self._library.jw_arm(cupti, record, self._stack_fd, self._signal)
            if error == 0:
                break
            self._close_stacks()
            if error not in _FILE_ERRORS:
                break
        if self._stack_fd < 0:
            raise self._unavailable(error)
        # A process armed by injection keeps its first file, not the one named here.
        self.record_path = Path(read_text(self._library.jw_record_path))
        self._record_fd = os.open(self.record_path, os.O_RDONLY | os.O_CLOEXEC)
        self.version = str(self._library.jw_cupti_version())
        self._stem = self._name_in_run()
        _link(self._collected(".bin"), self.record_path)
        _link(self._collected(".stacks"), self.stack_path)

    def _name_in_run(self) -> str:
        """`driver-<pid>`, or with a time behind it where an earlier arm, or the program that
        this process was before an exec, has that name."""
        for path in self._directory.glob(f"{self._stem}*.bin"):
            if path.exists() and path.samefile(self.record_path):  # armed by injection
                self.record_path = path if not path.is_symlink() else self.record_path
                return path.stem
        taken = os.path.lexists(self._collected(".bin"))
        return f"{self._stem}-{time.monotonic_ns()}" if taken else self._stem

    def _open_stacks(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._stack_fd = os.open(path, flags, 0o600)
        self.stack_path = path
        self._signal = answer_with_stacks(self._library, self._stack_fd)

    def _close_stacks(self) -> None:
        if self._signal:
            faulthandler.unregister(self._signal)
        if self._stack_fd >= 0:
            os.close(self._stack_fd)
            self.stack_path.unlink(missing_ok=True)
        self._signal, self._stack_fd = 0, -1

    def _unavailable(self, error: int) -> DriverUnavailable:
        why = read_text(self._library.jw_error)
        if error == _SUBSCRIBER_TAKEN:
            return DriverUnavailable(
                "the driver hook can't be armed: another tool holds CUPTI's only subscription",
                f"{why}; {_likely_subscriber()}",
                "run without that tool; after torch.profiler, start a new process",
            )
        if error == 0 or error in _FILE_ERRORS:
            return DriverUnavailable(
                "the driver hook can't be armed: there is no room for its record file",
                why or f"neither {SHARED_MEMORY} nor {self._directory} can be written",
                f"free 8 MiB in {SHARED_MEMORY} (docker: --shm-size) or in {self._directory}",
            )
        return DriverUnavailable(
            f"the driver hook can't be armed through {self.path}",
            why,
            "check that nvidia-smi shows a GPU, and install the CUPTI of the driver's CUDA version",
        )

    def _ours(self) -> bool:
        """False in a forked child: the hook and its files are the parent's."""
        return self._pid == os.getpid()

    def set_step(self, step: int | None) -> None:
        """Stamp this thread's records with `step` from now on."""
        self._library.jw_set_step(NO_STEP if step is None else step)

    def set_explained(self, explained: bool) -> None:
        """Say whether a compiler's hook explains this thread's loads: then no stack is taken."""
        self._library.jw_set_explained(explained)

    def set_ready(self, ready: bool = True) -> None:
        """From ready on, unexplained loads get the Python stack of their thread."""
        self._library.jw_set_ready(ready)

    def launches(self, enabled: bool) -> None:
        """Count every kernel launch, and record the first of each kernel name since this call.

        For probe requests only: it stands on the launch path.
        """
        if self._ours() and self._library.jw_launches(enabled):
            raise DriverUnavailable(
                "kernel launches can't be counted",
                read_text(self._library.jw_error),
                "count them between arm() and disarm()",
            )

    def counts(self) -> DriverCounts:
        """The counts of this arm, also after `disarm`."""
        values = (ctypes.c_uint64 * 4)()
        self._library.jw_counts(values)
        return DriverCounts(*values)

    def collect(self) -> Path:
        """Copy the used part of the records, and the stacks, into the run directory.

        Returns driver-<pid>.bin (driver-<pid>-<ns>.bin where that name is taken), with its
        .stacks beside it; the files in shared memory are gone then. May be called again: what
        was recorded since is added.
        """
        records = self._collected(".bin")
        if not self._ours() or self._record_fd < 0:
            return records
        _write_collected(self._record_fd, records)
        if self.record_path != records:
            self.record_path.unlink(missing_ok=True)
        if self._stack_fd >= 0:
            _write_collected(self._stack_fd, self._collected(".stacks"))
            self.stack_path.unlink(missing_ok=True)
        return records

    def disarm(self) -> None:
        """Collect and give CUPTI back; nothing is recorded any more."""
        if not self._ours() or DriverHook._armed is not self:
            return
        self._library.jw_disarm()
        DriverHook._armed = None
        atexit.unregister(self._collect_at_exit)
        self.collect()
        self._close_stacks()
        os.close(self._record_fd)
        self._record_fd = -1

    def _collected(self, suffix: str) -> Path:
        return self._directory / f"{self._stem}{suffix}"

    def _collect_at_exit(self) -> None:
        """A program that ends without `disarm` leaves nothing in shared memory."""
        try:
            self.collect()
        except OSError as error:
            print(f"jitwatch: the driver hook's records are lost: {error}", file=sys.stderr)
            if self._ours():
                self.record_path.unlink(missing_ok=True)
                self.stack_path.unlink(missing_ok=True)

    def self_test(self) -> str:
        """Load one tiny module on device 0: `passed`, `skipped: …`, or what was wrong."""
        try:
            from cuda.bindings import driver
        except ImportError as error:
            return f"skipped: cuda-python can't be imported ({error})"
        before = self.counts().loads
        self.set_explained(True)
        try:
            _load_tiny_module(driver)
        except RuntimeError as error:
            return str(error)
        finally:
            self.set_explained(False)
        seen = self.counts().loads - before
        return "passed" if seen == 1 else f"one module was loaded, the hook saw {seen}"


def answer_with_stacks(library: ctypes.CDLL, fd: int) -> int:
    """Have a signal that nobody handles answered with the Python stack, written to `fd`.

    Returns its number, or 0 where all are taken: stacks are then missing, and counted as such.
    """
    candidates = range(signal.SIGRTMAX - 2, signal.SIGRTMIN, -1)
    number = next((s for s in candidates if library.jw_signal_is_free(s)), 0)
    if number:
        faulthandler.register(number, file=fd, all_threads=False)
    return number


def collect_killed(directory: Path) -> list[Path]:
    """Collect the record files of processes that ended without doing so, SIGKILL included."""
    collected = []
    for link in sorted([*directory.glob("driver-*.bin"), *directory.glob("driver-*.stacks")]):
        source = link.resolve()
        if not link.is_symlink() or not source.name.startswith("jitwatch-"):
            continue
        try:
            fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            link.unlink()
            continue
        _write_collected(fd, link)
        os.close(fd)
        source.unlink(missing_ok=True)
        collected.append(link)
    return collected


def _link(link: Path, target: Path) -> None:
    if link == target:
        return
    unfinished = link.with_name(f"{link.name}.link")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target.resolve())
    os.replace(unfinished, link)


def _write_collected(fd: int, target: Path) -> None:
    """Copy a record or a stack file to `target`, without the record file's unused slots."""
    unfinished = target.with_name(f"{target.name}.tmp")
    with open(unfinished, "wb") as output:
        output.write(os.pread(fd, used_bytes(fd), 0))
    os.replace(unfinished, target)


def _likely_subscriber() -> str:
    if "NSYS_PROFILING_SESSION_ID" in os.environ:
        return "this process runs under nsys"
    if "triton.profiler" in sys.modules:
        return "Proton (triton.profiler) is imported here"
    injection = os.environ.get("CUDA_INJECTION64_PATH")
    if injection:
        return f"CUDA_INJECTION64_PATH is {injection}"
    return "torch.profiler keeps it from its first use to the end of the process"


def _load_tiny_module(driver: Any) -> None:
    """Raises RuntimeError with the call and its status where one fails."""

    def call(name: str, *arguments: object) -> Any:
        status, *values = getattr(driver, name)(*arguments)
        if int(status) != 0:
            raise RuntimeError(f"{name} returned {int(status)} in the driver hook's self-test")
        return values[0] if values else None

    call("cuInit", 0)
    device = call("cuDeviceGet", 0)
    context = call("cuDevicePrimaryCtxRetain", device)
    try:
        call("cuCtxPushCurrent", context)
        try:
            call("cuModuleUnload", call("cuModuleLoadData", _SELF_TEST_PTX))
        finally:
            call("cuCtxPopCurrent")
    finally:
        call("cuDevicePrimaryCtxRelease", device)
