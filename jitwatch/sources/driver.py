"""The CUDA driver hook: build and arm driver.c, collect and read its record file.

Owns the native library, the record file's format (with driver.c) and whom a
kernel's symbol belongs to. Knows nothing of events, verdicts or Triton.

Import torch before arming: CUPTI gives one subscription per copy of the library,
and torch brings the copy that the process should share.
"""

from __future__ import annotations

import ctypes
import faulthandler
import hashlib
import os
import platform
import re
import secrets
import shlex
import signal
import struct
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jitwatch.errors import DriverUnavailable, RunFileError

RecordType = Literal["api_call", "module_loaded", "module_unload", "launch"]

SOURCE = Path(__file__).with_name("driver.c")
SHARED_MEMORY = Path("/dev/shm")

MAGIC = b"JWDRIVER"
FORMAT_VERSION = 1
FILE_BYTES = 8 << 20
HEADER_BYTES = 4096
RECORD_BYTES = 256
# magic, version, pid, capacity, record size, next, dropped, loads, launches, start, missing, name
_HEADER = struct.Struct("<8sIIIIQQQQq8Q64s")
# start, end, stack, step, nbytes, hash, type, code, result, tid, parent, flags, kernels, -, name
_RECORD = struct.Struct("<qqqqQQIIiIIIII176s")
_TYPES: dict[int, RecordType] = {
    1: "api_call",
    2: "module_loaded",
    3: "module_unload",
    4: "launch",
}
_EXPLAINED, _STACK_REQUESTED, _NAMES_CUT = 1, 2, 4
_NO_STEP = -(2**63)
MISSING_STACK_REASONS = (
    "no stack file",
    "another stack was being written",
    "signal blocked on the thread",
    "signal handler replaced",
    "no Python stack on the thread",
)

# Return values of jw_arm(), as driver.c numbers them.
_SUBSCRIBER_TAKEN = 3
_FILE_ERRORS = (6, 7, 8)

_SELF_TEST_PTX = b""".version 7.0
.target sm_50
.address_size 64
.visible .entry jitwatch_self_test() { ret; }
\0"""


# ---- building and finding libraries


def build_library() -> Path:
    """The hook as a shared library: the package build's, else compiled once per user and source.

    Raises:
        DriverUnavailable: there is no C compiler, or it failed.
    """
    prebuilt = SOURCE.with_name("_driver.so")
    if prebuilt.exists() and (
        not SOURCE.exists() or prebuilt.stat().st_mtime_ns >= SOURCE.stat().st_mtime_ns
    ):
        return prebuilt
    digest = hashlib.sha256(SOURCE.read_bytes() + platform.machine().encode()).hexdigest()
    library = _cache_folder() / f"driver-{digest[:16]}.so"
    if not library.exists():
        _compile(library)
    return library


def _cache_folder() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "jitwatch"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid()
        why = "it belongs to another user or is read-only"
    except OSError as error:
        writable, why = False, str(error)
    if not writable:
        raise DriverUnavailable(
            f"the driver hook can't be built: {folder} can't be written",
            why,
            "set XDG_CACHE_HOME to a folder of your own",
        )
    return folder


def _compile(library: Path) -> None:
    compiler = shlex.split(os.environ.get("CC") or "cc")
    unfinished = library.with_name(f"{library.name}.{os.getpid()}.{secrets.token_hex(4)}")
    command = [*compiler, "-O2", "-std=gnu11", "-shared", "-fPIC", "-pthread"]
    command += ["-o", str(unfinished), str(SOURCE), "-ldl"]
    fix = "install gcc, or set CC to a C compiler that works"
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise DriverUnavailable(
            f"the driver hook can't be built: {compiler[0]!r} can't be run", str(error), fix
        ) from error
    if done.returncode != 0:
        unfinished.unlink(missing_ok=True)
        why = f"{shlex.join(command)} exited {done.returncode}: {done.stderr.strip()[:2000]}"
        raise DriverUnavailable("the driver hook can't be built: the compiler failed", why, fix)
    os.replace(unfinished, library)


def find_cupti() -> Path | None:
    """The libcupti to share: the mapped one, else the wheel's, else the system's. Never Triton's,
    which is older than the driver's and would be a second copy."""
    return next((path for path in _cupti_candidates() if "/triton/" not in str(path)), None)


def _cupti_candidates() -> Iterator[Path]:
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = Path("/" + line.rstrip("\n").partition("/")[2])
            if path.name.startswith("libcupti.so") and path.exists():
                yield path
    for name in ("libcupti.so.13", "libcupti.so.12"):
        for folder in filter(None, sys.path):
            yield from sorted(Path(folder).glob(f"nvidia/cu*/lib/{name}"))
    for name in ("libcupti.so.13", "libcupti.so.12"):
        for folder in ("lib64", "lib", "extras/CUPTI/lib64", "targets/*/lib"):
            yield from sorted(Path("/usr/local").glob(f"cuda*/{folder}/{name}"), reverse=True)


# ---- the hook


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
        hook = cls(_load(build_library()), directory, path)
        directory.mkdir(parents=True, exist_ok=True)
        hook._open()
        cls._armed = hook
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
        self.record_path = Path(_text(self._library.jw_record_path))
        self._record_fd = os.open(self.record_path, os.O_RDONLY | os.O_CLOEXEC)
        self.version = str(self._library.jw_cupti_version())
        _link(self._collected(".bin"), self.record_path)
        _link(self._collected(".stacks"), self.stack_path)

    def _open_stacks(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._stack_fd = os.open(path, flags, 0o600)
        self.stack_path = path
        candidates = range(signal.SIGRTMAX - 2, signal.SIGRTMIN, -1)
        free = (s for s in candidates if self._library.jw_signal_is_free(s))
        self._signal = next(free, 0)
        if self._signal:  # without one, stacks are missing and counted as such
            faulthandler.register(self._signal, file=self._stack_fd, all_threads=False)

    def _close_stacks(self) -> None:
        if self._signal:
            faulthandler.unregister(self._signal)
        if self._stack_fd >= 0:
            os.close(self._stack_fd)
            self.stack_path.unlink(missing_ok=True)
        self._signal, self._stack_fd = 0, -1

    def _unavailable(self, error: int) -> DriverUnavailable:
        why = _text(self._library.jw_error)
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
        self._library.jw_set_step(_NO_STEP if step is None else step)

    def set_explained(self, explained: bool) -> None:
        """Say whether a compiler's hook explains this thread's loads: then no stack is taken."""
        self._library.jw_set_explained(explained)

    def set_ready(self, ready: bool = True) -> None:
        """From ready on, unexplained loads get the Python stack of their thread."""
        self._library.jw_set_ready(ready)

    def launches(self, enabled: bool) -> None:
        """Record every kernel launch: for probe requests only, it stands on the launch path."""
        if self._ours() and self._library.jw_launches(enabled):
            raise DriverUnavailable(
                "kernel launches can't be counted",
                _text(self._library.jw_error),
                "count them between arm() and disarm()",
            )

    def counts(self) -> DriverCounts:
        """The counts of this arm, also after `disarm`."""
        values = (ctypes.c_uint64 * 4)()
        self._library.jw_counts(values)
        return DriverCounts(*values)

    def collect(self) -> Path:
        """Copy the used part of the records, and the stacks, into the run directory.

        Returns driver-<pid>.bin, with driver-<pid>.stacks beside it; the files in shared
        memory are gone then. May be called again: what was recorded since is added.
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
        self.collect()
        self._close_stacks()
        os.close(self._record_fd)
        self._record_fd = -1

    def _collected(self, suffix: str) -> Path:
        return self._directory / f"driver-{self._pid}{suffix}"

    def self_test(self) -> str:
        """Load one tiny module on device 0: `passed`, `skipped: …`, or what was wrong."""
        try:
            from cuda.bindings import driver
        except ImportError as error:
            return f"skipped: cuda-python can't be imported ({error})"
        before = self.counts().loads
        try:
            _load_tiny_module(driver)
        except RuntimeError as error:
            return str(error)
        seen = self.counts().loads - before
        return "passed" if seen == 1 else f"one module was loaded, the hook saw {seen}"


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


def _load(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DriverUnavailable(
            "the driver hook can't be loaded", str(error), f"delete {path} and try again"
        ) from error
    library.jw_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    library.jw_cupti_version.restype = ctypes.c_uint32
    library.jw_set_step.argtypes = [ctypes.c_int64]
    for name in ("jw_set_step", "jw_set_explained", "jw_set_ready", "jw_counts"):
        getattr(library, name).restype = None
    for name in ("jw_error", "jw_record_path"):
        getattr(library, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library


def _text(function: Any) -> str:
    buffer = ctypes.create_string_buffer(4096)
    function(buffer, len(buffer))
    return os.fsdecode(buffer.value)


def _link(link: Path, target: Path) -> None:
    if link == target:
        return
    unfinished = link.with_name(f"{link.name}.link")
    unfinished.unlink(missing_ok=True)
    unfinished.symlink_to(target.resolve())
    os.replace(unfinished, link)


def _write_collected(fd: int, target: Path) -> None:
    """Copy a record or a stack file to `target`, without the record file's unused slots."""
    num_bytes = os.fstat(fd).st_size
    header = os.pread(fd, _HEADER.size, 0)
    if header.startswith(MAGIC) and len(header) == _HEADER.size:
        num_bytes = HEADER_BYTES + min(_HEADER.unpack(header)[5] * RECORD_BYTES, num_bytes)
    unfinished = target.with_name(f"{target.name}.tmp")
    with open(unfinished, "wb") as output:
        output.write(os.pread(fd, num_bytes, 0))
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


# ---- reading


@dataclass(frozen=True, slots=True)
class DriverRecord:
    """One driver call or module. `slot` and `parent` (the record around it) count from 0.

    `end_ns` is None while it is open; a module is an instant in its parent. `kernels` are
    the first names, the last one cut where `names_cut`; a launch has its kernel there.
    `stack_ns` is what our stack dumps cost within it. `result` is the CUresult.
    """

    slot: int
    type: RecordType
    api: str
    start_ns: int
    end_ns: int | None
    stack_ns: int
    result: int
    tid: int
    step: int | None
    parent: int | None
    nbytes: int
    kernels: tuple[str, ...]
    num_kernels: int
    image_hash: int
    explained: bool
    stack_requested: bool
    names_cut: bool


@dataclass(frozen=True, slots=True)
class DriverLog:
    """A record file. `loads` and `launches` count dropped ones too; `dropped` includes records
    that a truncated file lost, `torn` slots were begun and never published."""

    pid: int
    records: tuple[DriverRecord, ...]
    dropped: int
    missing_stacks: dict[str, int]
    loads: int
    launches: int
    start_ns: int
    torn: int
    backend: str


def read_records(path: Path) -> DriverLog:
    """Read a record file, also that of a running or killed process, as far as it goes.

    Raises:
        RunFileError: it is no record file, or a newer jitwatch wrote it.
    """
    data = path.read_bytes()
    magic, version = data[:8].ljust(8, b"\0"), int.from_bytes(data[8:12], "little")
    if magic != MAGIC and magic.strip(b"\0"):
        why = f"it starts with {magic!r}, not {MAGIC!r}"
        raise RunFileError(f"{path} is no driver record file", why, "give a run directory's own")
    if version > FORMAT_VERSION:
        raise RunFileError(
            f"{path} was written by a newer jitwatch",
            f"its format is {version}, this version reads up to {FORMAT_VERSION}",
            "read it with the jitwatch that wrote it",
        )
    header = _HEADER.unpack(data[: _HEADER.size].ljust(_HEADER.size, b"\0"))
    _, _, pid, capacity, _, claimed, dropped, loads, launches, start_ns = header[:10]
    num_slots = min(claimed, capacity)
    body = data[HEADER_BYTES : HEADER_BYTES + num_slots * RECORD_BYTES]
    whole = len(body) // RECORD_BYTES
    decoded = [
        _decode(slot, fields)
        for slot, fields in enumerate(_RECORD.iter_unpack(body[: whole * RECORD_BYTES]))
    ]
    records = tuple(record for record in decoded if record is not None)
    missing = zip(MISSING_STACK_REASONS, header[10:18], strict=False)
    return DriverLog(
        pid=pid,
        records=records,
        dropped=dropped + num_slots - whole,
        missing_stacks={reason: count for reason, count in missing if count},
        loads=loads,
        launches=launches,
        start_ns=start_ns,
        torn=whole - len(records),
        backend=_decode_name(header[18]),
    )


def _decode(slot: int, fields: tuple[Any, ...]) -> DriverRecord | None:
    start_ns, end_ns, stack_ns, step, nbytes, image_hash, number, _, result, tid = fields[:10]
    parent, flags, num_kernels, _, raw_name = fields[10:]
    kind, name = _TYPES.get(number), _decode_name(raw_name)
    if kind is None:
        return None
    is_call = kind == "api_call"
    return DriverRecord(
        slot=slot,
        type=kind,
        api=name if is_call else "",
        start_ns=start_ns,
        end_ns=end_ns if end_ns >= start_ns and end_ns else None,
        stack_ns=stack_ns,
        result=result,
        tid=tid,
        step=None if step == _NO_STEP else step,
        parent=parent - 1 if 0 < parent <= slot else None,
        nbytes=nbytes,
        kernels=() if is_call or not name else tuple(name.split(",")),
        num_kernels=num_kernels,
        image_hash=image_hash,
        explained=bool(flags & _EXPLAINED),
        stack_requested=bool(flags & _STACK_REQUESTED),
        names_cut=bool(flags & _NAMES_CUT),
    )


def _decode_name(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


_SLOT_LINE = re.compile(r"#(\d+)")
_FRAME_LINE = re.compile(r'  File "(?P<file>.*)", line (?P<line>\S+) in (?P<function>.*)')


def read_stacks(path: Path) -> dict[int, tuple[str, ...]]:
    """The stacks of a .stacks file by slot, as "file:line function", innermost first.

    A file that isn't there has none; a slot whose dump wrote nothing has an empty one.
    """
    if not path.exists():
        return {}
    stacks: dict[int, list[str]] = {}
    frames: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if slot := _SLOT_LINE.fullmatch(line):
            frames = stacks[int(slot[1])] = []
        elif frame := _FRAME_LINE.fullmatch(line):
            frames.append(f"{frame['file']}:{frame['line']} {frame['function']}")
    return {slot: tuple(frames) for slot, frames in stacks.items()}


# ---- whose kernel is it

#: The first rule that matches a kernel's symbol names its owner. A bare "gemm" is nobody's.
_OWNERS = tuple(
    (re.compile(pattern), owner)
    for pattern, owner in (
        (r"^triton_(poi|red|per|tem|for|spl|unk|mix|mm|bmm|flex)_", "inductor"),
        (r"nccl(Dev)?Kernel|^nccl|_ZN\d+nccl", "nccl"),
        (r"flashinfer", "flashinfer"),
        (r"cudnn", "cudnn"),
        (r"pytorch_flash|_ZN5flash|flash_(fwd|bwd)_|flash_attn|flash::", "flashattention"),
        (r"^nvjet_|cublas|^gemv(2|x|NSP|T|N)|_ZN7cutlass7Kernel2I\d+cutlass_", "cublas"),
        (r"^(volta|turing|ampere|hopper|sm\d+)_\w*(gemm|xmma)", "cublas"),
        (r"cusparse", "cusparse"),
        (r"cusolver", "cusolver"),
        (r"(^|_)_?ZN?K?2at|2at6native|at::native|at_cuda|3c10|c10::|fmha_cutlass", "torch"),
        (r"_ZN\w*(3cub|6thrust)|cub::|thrust::", "torch"),
    )
)


def owner_of(kernel_names: Iterable[str]) -> str:
    """Whose kernels these are by their symbols: `cublas`, `torch`, …, or `unknown`."""
    for name in kernel_names:
        for pattern, owner in _OWNERS:
            if pattern.search(name):
                return owner
    return "unknown"
