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
from jitwatch.sweep import has_gpu

PACKAGES = ("torch", "triton", "pytest", "cuda-python", "cuda-bindings", "py-spy", "pandas")
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


def examine() -> dict[str, Any]:
    """Look at everything once; the self-test loads a module through the driver hook."""
    return {
        "versions": _versions(),
        "driver": {"gpu": has_gpu(), "module_loading": os.environ.get("CUDA_MODULE_LOADING")},
        **_driver_hook(),
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
        "free_bytes": shutil.disk_usage(existing).free,
        "file_system": _file_system(existing),
    }


def _file_system(path: Path) -> str:
    """The type of the file system that holds `path` (nfs and the like are slow to lock)."""
    best, kind = "", "unknown"
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, place, found = line.split()[:3]
        inside = f"{path.resolve()}/".startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, found
    return kind
