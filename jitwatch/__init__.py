"""jitwatch proves that no inference request pays for a JIT compile or a CUDA module load.

`load` reads a run directory back as reports. `ready`, `step` and `request` are what a program
under `jitwatch run` says of itself, `arm` watches one that was not started so; where nobody
watches they do nothing. The rest is the command line, and the pytest plugin, `pytest --jitwatch`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jitwatch.live import arm, ready, request, step

if TYPE_CHECKING:
    from pathlib import Path

    from jitwatch.report import Report

__version__ = "0.1.0"
__all__ = ["__version__", "arm", "load", "ready", "request", "step"]


def load(run_dir: str | Path) -> list[Report]:
    """The reports of a run directory, one for each device.

    Raises:
        RunFileError: it is no run directory, or can't be read.
    """
    from pathlib import Path

    from jitwatch.log import read_report, run_dirs

    return [read_report(folder) for folder in run_dirs(Path(run_dir))]
