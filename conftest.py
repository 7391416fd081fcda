"""What every test run here shares: pytester, the skips by machine, the count of tests not run.

A test that needs a GPU is marked `gpu`, one that needs a certain Triton `triton("3.6")`. Where
the machine has neither they are skipped, and the last lines of the run say how many and why, so
that a green run without a GPU isn't taken for one with it.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable

import pytest

pytest_plugins = ["pytester"]

ASK_TORCH = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def has_gpu() -> bool:
    """Whether torch sees a GPU here, asked in a process of its own.

    Importing torch or starting CUDA in this process would break the tests that fork or that
    check what an import pulls in.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    asked = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, check=False)
    return asked.returncode == 0


def triton_version() -> str:
    """The installed Triton's version, or `none`."""
    try:
        return importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def is_version(installed: str, wanted: str) -> bool:
    """Whether `installed` is a release of `wanted`: 3.6.0 is of 3.6, 3.60 is not."""
    return f"{installed}.".startswith(f"{wanted}.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and not has_gpu():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))
    installed = triton_version()
    for item in items:
        for marker in item.iter_markers("triton"):
            wanted = marker.args[0]
            if not is_version(installed, wanted):
                item.add_marker(pytest.mark.skip(reason=f"needs triton {wanted}"))


def not_run_line(reasons: Iterable[str]) -> str | None:
    """`3 tests not run here: 2 need a GPU, 1 needs triton 3.6`, most frequent first.

    A reason that doesn't say what the test needs is quoted as it is.
    """
    counted = sorted(Counter(reasons).items(), key=lambda pair: (-pair[1], pair[0]))
    if not counted:
        return None
    total = sum(count for _, count in counted)
    parts = []
    for reason, count in counted:
        need = reason.removeprefix("needs ")
        if need == reason:
            parts.append(f"{count}: {reason}")
        else:
            parts.append(f"{count} {'needs' if count == 1 else 'need'} {need}")
    return f"{total} test{'' if total == 1 else 's'} not run here: {', '.join(parts)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = []
    for report in terminalreporter.stats.get("skipped", []):
        # An expected failure is reported as skipped, without a reason of this shape: it did run.
        if isinstance(report.longrepr, tuple):
            reasons.append(report.longrepr[2].removeprefix("Skipped: "))
    line = not_run_line(reasons)
    if line is not None:
        terminalreporter.write_line(line)
