"""Records what the controls do on a device: `python -m tests.controls.record --device cuda`.

Each control runs in fresh processes on a fresh Triton cache. The output is what
`tests/test_controls.py` holds the simulated device against.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jitwatch
from jitwatch.provenance import without_outputs
from tests.controls import CONTROLS, Control
from tests.controls.summary import summarize

ROOT = Path(__file__).parent.parent.parent


def sweep(control: Control, target: str, device: str, cache: Path, run_dir: Path) -> Any:
    """One control's report; `cache` is its Triton cache."""
    command = [sys.executable, "-m", "jitwatch", "sweep", "--target", target]
    command += ["--lengths", ",".join(map(str, control.lengths)), "--device", device]
    command += ["--run-dir", str(run_dir)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    try:
        return jitwatch.load(run_dir)[0]
    except jitwatch.errors.JitwatchError:
        sys.exit(f"{target}: {done.stdout}{done.stderr}")


def record(name: str, side: str, device: str) -> tuple[str, Any, Any]:
    """The summary and the environment of one side of one control."""
    control = CONTROLS[name]
    target = control.faulty if side == "faulty" else control.clean
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if control.second_run:
            sweep(control, target, device, home / "cache", home / "first")
        report = sweep(control, target, device, home / "cache", home / "run")
        print(f"{name}/{side}: {report.verdict.outcome} {list(report.verdict.reasons)}", flush=True)
        return f"{name}/{side}", summarize(report), dict(report.environment)


def main() -> None:
    """Run every control on one device and write the summaries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    work = [(name, side, arguments.device) for name in CONTROLS for side in ("faulty", "clean")]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        found = list(pool.map(lambda item: record(*item), work))
    environment = {
        **found[0][2],
        "command": shlex.join(
            ["python", "-m", "tests.controls.record", *without_outputs(sys.argv[1:])]
        ),
    }
    data = {"environment": environment, "controls": {name: item for name, item, _ in found}}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
