"""What can be seen on this machine and what can't: versions, hooks, caches, a self-test.

Owns the examination; each part says what to do where it finds something missing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import jitwatch
from jitwatch.errors import DriverUnavailable
from jitwatch.sources.driver import SHARED_MEMORY
from jitwatch.sources.driver_library import build_library
from jitwatch.sources.driver_log import FILE_BYTES
from jitwatch.sweep import has_gpu

PACKAGES = ("torch", "triton", "pytest", "cuda-python", "cuda-bindings", "py-spy", "pandas")
#: How the types of file systems begin that lie on another machine: slow to lock, slow to list.
NETWORK = (
    *("nfs", "cifs", "smb", "lustre", "beegfs", "ceph", "gpfs", "9p", "afs", "glusterfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.juicefs"),
)
MOUNTS = Path("/proc/mounts")
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def examine() -> dict[str, Any]:
    """Look at everything once; the self-test loads a module through the driver hook."""
    return {
        "versions": _versions(),
        "driver": {"gpu": has_gpu(), "module_loading": os.environ.get("CUDA_MODULE_LOADING")},
        **_driver_hook(),
        "recording": _recording(),
        "ptrace": _ptrace(),
        "triton_cache": _triton_cache(),
    }


def render(found: dict[str, Any]) -> str:
    """The findings as a table: a line each, `part  finding`."""
    lines = []
    for part, finding in found.items():
        for name, value in finding.items():
            lines.append(f"{part:<13} {name:<15} {'-' if value is None else value}")
    return "\n".join(lines)


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "jitwatch": jitwatch.__version__,
        "python": platform.python_version(),
    }
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _driver_hook() -> dict[str, Any]:
    """CUPTI's state, and the self-test through cuda-python, in this process."""
    from jitwatch.sources.driver import DriverHook

    if not has_gpu():
        reason = "no GPU here: sweeps run on the simulated device (--device sim:h200)"
        return {
            "cupti": {"armed": False, "reason": reason},
            "self_test": {"outcome": "skipped", "reason": reason},
        }
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401  # brings the CUPTI that the process should share
    with tempfile.TemporaryDirectory() as folder:
        try:
            hook = DriverHook.arm(Path(folder))
        except DriverUnavailable as error:
            return {
                "cupti": {"armed": False, "reason": str(error)},
                "self_test": {"outcome": "failed", "reason": error.what},
            }
        said = hook.self_test()
        version, path = hook.version, str(hook.path)
        hook.disarm()
    outcome, _, reason = said.partition(": ")
    if outcome not in ("passed", "skipped"):
        outcome, reason = "failed", said
    return {
        "cupti": {"armed": True, "version": version, "path": path},
        "self_test": {"outcome": outcome, "reason": reason or None},
    }


def _recording() -> dict[str, Any]:
    """What `jitwatch run` needs: the hook's object, room for its files, nobody else injected."""
    try:
        library, reason = str(build_library()), None
    except DriverUnavailable as error:
        library, reason = None, f"{error.what}: {error.why}"
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        free = 0
    too_small = f"below {FILE_BYTES:,} B a process: records go to the run directory's disk"
    return {
        "library": library,
        "library_reason": reason,
        "shared_memory_free_bytes": free,
        "shared_memory_note": None if free >= FILE_BYTES else too_small,
        "injection": os.environ.get("CUDA_INJECTION64_PATH"),
    }


def _ptrace() -> dict[str, Any]:
    """Whether py-spy could look into another process of ours."""
    try:
        scope = int(YAMA.read_text())
    except (OSError, ValueError):
        scope = 0
    allowed = scope == 0 or os.geteuid() == 0
    fix = None if allowed else "run as root, or: sysctl kernel.yama.ptrace_scope=0"
    return {"yama_scope": scope, "allowed": allowed, "fix": fix}


def _triton_cache() -> dict[str, Any]:
    """Where Triton keeps its binaries, and whether it can write there."""
    home = os.environ.get("TRITON_HOME") or str(Path.home())
    path = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home) / ".triton" / "cache")
    existing = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    return {
        "path": str(path),
        "exists": path.is_dir(),
        "writable": os.access(existing, os.W_OK),
        "size_bytes": _size(path),
        "free_bytes": shutil.disk_usage(existing).free,
        "file_system": (kind := _file_system(existing)),
        "network": kind.startswith(NETWORK),
    }


def _size(folder: Path) -> int:
    """Bytes of all files in it; what disappears meanwhile counts for nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(parent, name)).st_size
    return total


def _file_system(path: Path) -> str:
    """The type of the file system that holds `path` (nfs and the like are slow to lock)."""
    best, kind = "", "unknown"
    try:
        mounts = MOUNTS.read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, place, found = line.split()[:3]
        inside = f"{path.resolve()}/".startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, found
    return kind
