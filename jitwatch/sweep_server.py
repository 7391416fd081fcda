"""`jitwatch sweep --target URL --run-dir RUN`: a server under `jitwatch run`, swept from outside.

Owns the wait for ready and the requests, one at a time. The run directory is the server's: what
its processes load while a request is open is charged to that request.
"""

from __future__ import annotations

import sys
import time
import urllib.error

from jitwatch.child import Progress
from jitwatch.errors import RunFileError, TargetError, UsageError
from jitwatch.log import read_report, read_run
from jitwatch.recorder import Recorder
from jitwatch.report import Report
from jitwatch.sweep import SweepOptions
from jitwatch.targets.callable import TargetRequest
from jitwatch.targets.server import ServerTarget
from jitwatch.targets.worker import describe

#: How long a server may take to be ready, and how often that is looked at.
READY_SECONDS, LOOK_SECONDS = 3600, 0.5


def is_url(target: str) -> bool:
    """Whether a target names a server."""
    return target.startswith(("http://", "https://"))


def sweep_server(options: SweepOptions, progress: Progress | None = None) -> Report:
    """Serve every length and judge; the server runs on.

    Raises:
        UsageError: an option that can't be had, or no run directory of a watched program.
        TargetError: the server can't be reached.
    """
    _check(options)
    _wait_for_ready(options)
    try:
        target = ServerTarget(options.target)
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise TargetError(
            f"--target {options.target}: can't be reached",
            str(error),
            "give the URL that the server under `jitwatch run` listens at",
        ) from error
    known = {request.id for request in read_run(options.run_dir).requests}
    recorder = Recorder(options.run_dir)
    recorder.fact("lengths", list(options.lengths))
    for number, length in enumerate(options.lengths, 1):
        name = f"len{length}"
        name += f".{recorder.pid}" if name in known else ""  # of an earlier sweep
        request = TargetRequest(name, length, options.output_tokens, options.params)
        recorder.request(request.id, length, options.output_tokens)
        failure: str | None = None
        try:
            target.serve(request)
        except Exception as error:
            failure = describe(error)
        recorder.request_end(request.id, error=failure)
        if progress is not None:
            progress(options.target, number, len(options.lengths))
    recorder.close()
    return read_report(options.run_dir, fail_on=options.fail_on)


def _check(options: SweepOptions) -> None:
    given = {
        "--prove": options.prove is not None,
        "--simulated": options.simulated is not None,
        "--keys-only": options.keys_only,
        "--strict-values": options.strict_values,
        "--winners": options.winners is not None,
        "--warmup-lengths": bool(options.warmup_lengths),
        "--package": bool(options.packages),
    }
    for option in (name for name, is_given in given.items() if is_given):
        raise UsageError(
            f"--target {options.target}: takes no {option}",
            "a server is watched where it runs, and decides there what is warm and whose it is",
            f"leave {option} out, or give it to `jitwatch run` where that has it",
        )
    try:
        mode = read_run(options.run_dir).meta.get("mode")
    except RunFileError:
        mode = None
    if mode != "run":
        raise UsageError(
            f"--run-dir {options.run_dir}: no program is watched there",
            "a server is swept in the run directory of its own `jitwatch run`",
            f"start it with jitwatch run --run-dir {options.run_dir} -- CMD, and name that folder",
        )


def _wait_for_ready(options: SweepOptions) -> None:
    give_up = time.monotonic() + READY_SECONDS
    said = False
    while read_run(options.run_dir).ready_ns is None:
        if not said:
            print("jitwatch: waiting until the server is ready", file=sys.stderr, flush=True)
            said = True
        if time.monotonic() > give_up:
            raise UsageError(
                f"--target {options.target}: it was not ready within {READY_SECONDS:,} s",
                "nothing in its run directory says so",
                "give --ready-url or --ready-log to `jitwatch run`, or call jitwatch.ready()",
            )
        time.sleep(LOOK_SECONDS)
