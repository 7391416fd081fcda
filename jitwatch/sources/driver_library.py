"""The native halves of the driver hook: the object built from driver.c, and the libcupti it takes.

Owns where both are found and how the first is compiled. Arms nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jitwatch.errors import DriverUnavailable

SOURCE = Path(__file__).with_name("driver.c")


def build_library() -> Path:
    """The hook as a shared library: the package build's, else compiled once per user and source.

    Raises:
        DriverUnavailable: there is no C compiler, or it failed.
    """
    prebuilt = SOURCE.with_name("_driver.so")
    if not SOURCE.exists():
        return prebuilt
    source = SOURCE.read_bytes()
    # Not by time: pip writes a wheel's files in any order.
    if prebuilt.exists() and hashlib.sha256(source).hexdigest().encode() in prebuilt.read_bytes():
        return prebuilt
    digest = hashlib.sha256(source + platform.machine().encode()).hexdigest()
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


def load_library() -> ctypes.CDLL:
    """The hook, built where need be, with its functions' types.

    Raises:
        DriverUnavailable: it can't be built or loaded.
    """
    path = build_library()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise DriverUnavailable(
            "the driver hook can't be loaded", str(error), f"delete {path} and try again"
        ) from error
    return declare(library)


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """`library`, an object built from driver.c, with its functions' types."""
    library.jw_arm.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
    library.jw_cupti_version.restype = ctypes.c_uint32
    library.jw_set_step.argtypes = [ctypes.c_int64]
    for name in ("jw_set_step", "jw_set_explained", "jw_set_ready", "jw_counts"):
        getattr(library, name).restype = None
    library.jw_run_stem.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    library.jw_run_stem.restype = None
    library.jw_set_stack.argtypes = [ctypes.c_int, ctypes.c_int]
    library.jw_set_stack.restype = None
    for name in ("jw_error", "jw_record_path"):
        getattr(library, name).argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library


def read_text(function: Any) -> str:
    """What a function of the hook writes into a buffer: `jw_error`, `jw_record_path`."""
    buffer = ctypes.create_string_buffer(4096)
    function(buffer, len(buffer))
    return os.fsdecode(buffer.value)
