"""Starts the child that serves a job, follows it, and says how it ended.

Owns the pipe between parent and child (`targets/worker.py` has the other end). A
child that hangs is waited for; one that dies, or ends itself, leaves doubts.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jitwatch
from jitwatch.errors import UsageError
from jitwatch.sources.driver import collect_killed
from jitwatch.targets.worker import Job

#: `progress(device, served, total)`, called as requests are served.
Progress = Callable[[str, int, int], None]
#: How often a silent pipe is left to see whether the child still lives.
LOOK_SECONDS = 0.2

#: What failed, by the stage of the child's life.
FAILED = {
    "device": "the device could not be opened",
    "import": "the target could not be imported",
    "warmup": "the target raised in warmup",
    "serve": "the target ended the sweep",
    "probe": "the target ended the probe requests",
    "close": "the target raised in close()",
}


def run_child(job: Job, progress: Progress) -> list[str]:
    """Run one child to its end; returns the doubts that the way it ended leaves.

    Raises:
        UsageError: the target can't be found or used, a package is unknown.
    """
    total = len(job.lengths)
    progress(job.device, 0, total)
    reader, writer = os.pipe()
    run_dir = Path(job.run_dir)
    child = _start(run_dir, writer)
    os.close(writer)
    last: dict[str, Any] = {}
    try:
        assert child.stdin is not None
        child.stdin.write(job.to_json().encode() + b"\n")
        child.stdin.close()
        for message in _messages(reader, child):
            if message["m"] == "served":
                progress(job.device, message["number"], message.get("total") or total)
            last = message
        status = child.wait()
    except BaseException:
        child.kill()
        child.wait()
        raise
    finally:
        os.close(reader)
        collect_killed(run_dir)
    if last.get("m") == "failed" and last["usage"]:
        raise UsageError(last["error"])
    return _how_it_ended(status, last)


def _start(run_dir: Path, writer: int) -> subprocess.Popen[bytes]:
    source = str(Path(jitwatch.__file__).parent.parent)
    search_path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    with (run_dir / "target.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "jitwatch.targets.worker", str(writer)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(writer,),
            env={**os.environ, "PYTHONPATH": search_path},
        )


def _messages(reader: int, child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """The child's messages until its last one, or until it is gone.

    The pipe's end is no sign: a process that the target left behind may hold it open.
    What is no message of ours (a target that writes to every descriptor) is passed over.
    """
    buffer = b""
    while True:
        ready, _, _ = select.select([reader], [], [], LOOK_SECONDS)
        if not ready:
            if child.poll() is not None:
                return
            continue
        data = os.read(reader, 1 << 16)
        if not data:
            return
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            message = _message(line)
            if message is not None:
                yield message
                if message["m"] in ("done", "failed"):
                    return


def _message(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "m" in found else None


def _how_it_ended(status: int, last: dict[str, Any]) -> list[str]:
    """Doubts from the way a child ended; none where all went well."""
    if last.get("m") == "failed":
        return [
            f"{FAILED[last['stage']]}: {last['error']} "
            f"(traceback-{last['stage']}.txt in the run directory)"
        ]
    if status < 0:
        return [f"the target's process was killed by signal {-status}"]
    if status != 0:
        return [f"the target's process exited with status {status} (see target.log)"]
    if last.get("m") != "done":
        return ["the target's process ended itself before the sweep was over (status 0)"]
    return []
