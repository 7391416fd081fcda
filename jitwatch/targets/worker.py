"""The child process: boots a target on one device and serves the sweep's requests.

Owns the order of things: device, sources, target, warmup, ready, requests,
probes, close. Reads one `Job` and tells its parent how far it is, a JSON object a
line; all else goes to the run directory. Judges nothing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from jitwatch.errors import JitwatchError, RunFileError, TargetError, UsageError
from jitwatch.events import Proof
from jitwatch.prove import Served, Unprovable, prove
from jitwatch.recorder import Recorder
from jitwatch.targets import engine
from jitwatch.targets.callable import (
    Target,
    TargetRequest,
    WatchedTarget,
    load_target,
    target_of,
    where_raised,
)
from jitwatch.targets.devices import Device, open_device

#: Requests served once more on a real GPU with launch callbacks on, as evidence.
PROBES = 10
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Job:
    """All that the child needs to know.

    `params` go to every request. `engine` are the fields of `EngineOptions`, for the target
    `engine`. `prove` asks for lengths from 1 to that one, chosen as they are served.
    """

    run_dir: str
    target: str
    device: str
    lengths: tuple[int, ...]
    warmup_lengths: tuple[int, ...]
    output_tokens: int
    packages: tuple[str, ...]
    path: str
    keys_only: bool = False
    strict_values: bool = False
    winners: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    prove: int | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The job that `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        for name in ("lengths", "warmup_lengths", "packages"):
            data[name] = tuple(data[name])
        return cls(**data)


class _Unproved(Exception):
    """A request failed, so that the proof can't go on."""


class Worker:
    """One child's life. `tell` sends a message to the parent."""

    def __init__(self, job: Job, tell: Callable[..., None]) -> None:
        self.job = job
        self.tell = tell
        self.recorder = Recorder(Path(job.run_dir))
        self.device: Device | None = None

    def run(self) -> int:
        """Serve the whole job; what was recorded so far is kept whatever happens."""
        sys.path.insert(0, self.job.path)
        target: Target | None = None
        stage = "device"
        try:
            self.device = open_device(self.job, self.recorder)
            self.recorder.fact("blind_spot", "processes that the target starts are not watched")
            stage = "import"
            self._find_packages()
            target = self._load_target()
            stage = "warmup"
            self._warmup(target)
            self.device.ready()
            self.recorder.ready()
            self.tell("ready")
            stage = "serve"
            if self.job.prove is None:
                self._serve_all(target)
            else:
                self._prove(target, self.job.prove)
            self.recorder.fact("served_until_ns", self.recorder.clock())
            stage = "probe"
            self._probe(target)
            stage = "close"
            if target.close is not None:
                target.close()
        except BaseException as error:
            self._fail(stage, error)
            return 2
        finally:
            if self.device is not None:
                self.device.close()
            self.recorder.fact("peak_memory_bytes", peak_memory_bytes())
            self.recorder.close()
        self.tell("done")
        return 0

    def _find_packages(self) -> None:
        folders = {}
        for name in self.job.packages:
            try:
                spec = importlib.util.find_spec(name)
            except (ImportError, ValueError):
                spec = None
            if spec is None or spec.origin in ("built-in", "frozen"):
                raise UsageError(
                    f"--package {name}: no such package",
                    "it can't be imported from here",
                    "give the name that is imported (fla for fla-core), or install it",
                )
            places = spec.submodule_search_locations or [spec.origin or ""]
            folders[name] = [os.path.realpath(place) for place in places]
        self.recorder.fact("packages", folders)

    def _load_target(self) -> Target:
        if self.job.target == engine.NAME:
            options = engine.EngineOptions(**self.job.engine)
            target = target_of(engine.EngineTarget(options, self.job.params), engine.NAME)
        else:
            target = load_target(self.job.target)
        if target.watched is not None:
            target.watched.attach(self.recorder)
            self.recorder.fact("says_steps", True)
        return target

    def _warmup(self, target: Target) -> None:
        if target.warmup is not None:
            target.warmup()
        for length in self.job.warmup_lengths:
            target.serve(self._request("warmup", length))

    def _serve_all(self, target: Target) -> None:
        for number, length in enumerate(self.job.lengths, 1):
            self._serve(target, self._request("len", length))
            self.tell("served", number=number)

    def _prove(self, target: Target, max_tokens: int) -> None:
        """Serve the lengths that say for all up to `max_tokens` which variants they launch."""
        assert self.device is not None

        def serve(length: int) -> Served:
            self.recorder.longest_step = 0
            used, failure = self._serve(target, self._request("len", length))
            if failure is not None or used is None:
                raise _Unproved
            longest = self.recorder.longest_step if target.watched is not None else None
            return Served(used, longest)

        def told(served: int, planned: int | None) -> None:
            self.tell("served", number=served, total=planned)

        watched = target.watched
        longest = max_tokens if watched is None else self._longest_prompt(watched)
        try:
            proof = prove(serve, min(longest, max_tokens), self.device.kernel_of, told)
        except _Unproved:  # the request's error says why
            return
        except Unprovable as error:
            self.recorder.fact("unproved", str(error))
            return
        if longest < max_tokens:
            proof = self._with_refusal(proof, target, longest)
        self.recorder.fact("proof", asdict(proof))

    def _longest_prompt(self, watched: WatchedTarget) -> int:
        longest: object = watched.longest_prompt(self.job.output_tokens)
        if type(longest) is not int or longest < 1:
            raise TargetError(
                f"--target {self.job.target}: its longest prompt is {longest!r} tokens",
                f"longest_prompt({self.job.output_tokens}) said so, and a proof serves prompts "
                "from 1 token on",
                "raise what limits it (--kv-tokens, max_model_len), or lower --output-tokens",
            )
        return longest

    def _with_refusal(self, proof: Proof, target: Target, longest: int) -> Proof:
        """Try a prompt above the longest: that it is refused is part of the proof."""
        try:
            self._call(target, self._request("beyond", longest + 1))
            text = f"{longest:,} tokens are its longest prompt, it says, and it served one more"
            self.recorder.fact("unproved", text)
        except Exception:
            refused = f"prompts above {longest:,} tokens are refused, as one of {longest + 1:,} was"
            proof = replace(proof, assumptions=(*proof.assumptions, refused))
        return proof

    def _request(self, name: str, length: int) -> TargetRequest:
        return TargetRequest(f"{name}{length}", length, self.job.output_tokens, self.job.params)

    def _serve(
        self, target: Target, request: TargetRequest
    ) -> tuple[frozenset[int] | None, str | None]:
        """Serve one request; what it launched, where that is known, and how it failed."""
        assert self.device is not None
        recorder = self.recorder
        recorder.request(request.id, request.prompt_tokens, request.output_tokens)
        before, failure = self.device.launches(), None
        self.device.take_used()
        try:
            self._call(target, request)
        except Exception as error:
            failure = describe(error)
            self._keep_traceback(f"request-{request.id}")
        after = self.device.launches()
        launches = after - before if before is not None and after is not None else None
        used = self.device.take_used()
        recorder.request_end(request.id, error=failure, launches=launches, used=used)
        return used, failure

    def _call(self, target: Target, request: TargetRequest) -> None:
        """Have it served: in a step, where the target doesn't say its own."""
        step = self.recorder.step("mixed", (request.id,), request.prompt_tokens)
        with nullcontext() if target.watched is not None else step:
            target.serve(request)

    def _probe(self, target: Target) -> None:
        """Serve a few lengths again where launches can be counted only with callbacks on."""
        assert self.device is not None
        if self.device.launches() is not None:
            return
        lengths = self.job.lengths
        chosen = sorted({lengths[i * (len(lengths) - 1) // 9] for i in range(PROBES)})
        counted = {}
        with self.device.counting_launches() as count:
            for length in chosen:
                before = count()
                try:
                    self._call(target, self._request("probe", length))
                except Exception:
                    self._keep_traceback(f"probe-{length}")
                    continue
                counted[f"len{length}"] = count() - before
        self.recorder.fact("probes", len(counted))
        self.recorder.fact("probe_launches", sum(counted.values()))
        self.recorder.fact("launches_by_request", counted)

    def _fail(self, stage: str, error: BaseException) -> None:
        self._keep_traceback(stage)
        text = str(error) if isinstance(error, JitwatchError) else describe(error)
        usage = isinstance(error, (UsageError, TargetError, RunFileError))
        self.recorder.fact("failed", {"stage": stage, "error": text})
        self.tell("failed", stage=stage, error=text, usage=usage)

    def _keep_traceback(self, name: str) -> None:
        path = Path(self.job.run_dir) / f"traceback-{name}.txt"
        try:
            path.write_text(traceback.format_exc(), errors="backslashreplace")
        except Exception:  # an exception whose own text raises, a full disk
            self.recorder.dropped += 1


def peak_memory_bytes() -> int:
    """The most memory that this process had resident; unlike rusage, none of its parent's."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # KiB on Linux


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however it ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def describe(error: BaseException) -> str:
    """Type, message and place of an exception, on one line."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its text can't be had)"
    place = where_raised(error)
    text = f"{type(error).__name__}: {message}" + (f" ({place})" if place else "")
    return text.encode(errors="backslashreplace").decode()


def main() -> int:
    """Read a job from stdin, serve it, tell the parent on the descriptor given."""
    die_with_parent()
    job = Job.from_json(sys.stdin.readline())
    number = int(sys.argv[1])
    os.set_inheritable(number, False)
    channel: TextIO = os.fdopen(number, "w", buffering=1)

    def tell(message: str, **more: object) -> None:
        try:
            channel.write(json.dumps({"m": message, **more}) + "\n")
        except OSError:
            sys.exit(2)  # the parent is gone

    return Worker(job, tell).run()


if __name__ == "__main__":
    sys.exit(main())
