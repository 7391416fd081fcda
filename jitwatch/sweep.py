"""The sweep: a child process for each device, a run directory, a report.

Owns the parent's side: options and their checks, starting children, what is told
on the way. Imports no torch. Knows nothing of how a report is printed.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jitwatch
from jitwatch.attribution import loaded_variants
from jitwatch.child import Progress, run_child
from jitwatch.errors import RunFileError, UsageError
from jitwatch.log import read_report
from jitwatch.provenance import environment_of
from jitwatch.records import write_meta
from jitwatch.render.json import read_json
from jitwatch.report import Report
from jitwatch.simulate.boards import get_board
from jitwatch.targets.engine import KV_TOKENS, NAME, EngineOptions
from jitwatch.targets.worker import Job
from jitwatch.verdict import spell_lengths

#: What is swept where nothing else is asked for: the lengths of the story.
MIN_LENGTH, MAX_LENGTH = 11, 2560
DEFAULT_BOARD = "sim:h200"


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What to sweep, on which devices, and what fails it. Lengths are prompt tokens.

    `params` go to every request; `engine` is for the target `engine`. With `prove` the lengths
    are chosen while they are served, between 1 and that one.
    """

    target: str
    devices: tuple[str, ...]
    lengths: tuple[int, ...]
    run_dir: Path
    repo: Path
    packages: tuple[str, ...] = ()
    output_tokens: int = 2
    warmup_lengths: tuple[int, ...] = ()
    fail_on: str = "in-repo"
    keys_only: bool = False
    strict_values: bool = False
    winners: str | None = None
    simulated: Path | None = None
    path: Path = Path(".")
    command: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    engine: EngineOptions = field(default_factory=EngineOptions)
    prove: int | None = None


def lengths_between(low: int, high: int, step: int = 1) -> tuple[int, ...]:
    """Every `step`-th length from `low` to `high`, both ends included where they are met.

    Raises:
        UsageError: no length is in the range.
    """
    if low < 1 or step < 1:
        name, value = ("min", low) if low < 1 else ("step", step)
        raise UsageError(f"--{name} {value}: must be 1 or more")
    if low > high:
        raise UsageError(
            f"--min {low} is above --max {high}",
            "no length lies between them",
            f"swap them: --min {high} --max {low}" if high > 0 else "give a --max of 1 or more",
        )
    return tuple(range(low, high + 1, step))


def parse_lengths(text: str, option: str = "--lengths") -> tuple[int, ...]:
    """Lengths given as `11,12,64`, in that order, each once.

    Raises:
        UsageError: a part is not a whole number of 1 or more.
    """
    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or len(part) > 12 or int(part) < 1:
            raise UsageError(
                f"{option} {text}: {part.strip() or 'an empty part'!r} is no length",
                "lengths are whole numbers of 1 or more, separated by commas",
                f"for example {option} 11,64,2560",
            )
        found.append(int(part))
    return tuple(dict.fromkeys(found))


def resolve_devices(text: str) -> tuple[str, ...]:
    """The devices that `auto`, `cuda` or `sim:BOARD` (comma-separated) stand for.

    Raises:
        UsageError: an unknown board or name, or cuda without a GPU.
    """
    devices = []
    for part in (item.strip() for item in text.split(",")):
        if part == "auto":
            part = "cuda" if has_gpu() else DEFAULT_BOARD
        elif part == "cuda":
            if not has_gpu():
                raise UsageError(
                    "--device cuda: there is no GPU here",
                    "the CUDA driver library is missing or finds no device",
                    "use --device sim:h200, or run where there is a GPU",
                )
        elif part.startswith("sim:"):
            part = f"sim:{get_board(part).name}"
        else:
            raise UsageError(
                f"--device {part!r} is no device",
                "a device is auto, cuda or sim:BOARD",
                "for example --device sim:h200",
            )
        devices.append(part)
    return tuple(dict.fromkeys(devices))


def has_gpu() -> bool:
    """Whether the CUDA driver is here and finds a device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return False
    return count.value > 0


def new_run_dir(base: Path) -> Path:
    """A fresh folder under `base/.jitwatch`, which git ignores."""
    home = base / ".jitwatch"
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    run_dir = home / f"{stamp}-{os.getpid()}"
    make_run_dir(run_dir)
    (home / ".gitignore").write_text("*\n")
    return run_dir


def make_run_dir(run_dir: Path) -> None:
    """Create `run_dir`, which must be empty or absent.

    Raises:
        UsageError: it can't be written, or holds something already.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        probe = run_dir / ".writable"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"--run-dir {run_dir}: can't be written",
            f"{type(error).__name__}: {error.strerror}",
            "give a folder of your own: --run-dir DIR",
        ) from error
    if any(run_dir.iterdir()):
        raise UsageError(
            f"--run-dir {run_dir} is not empty",
            "a run never writes over another",
            "give a new folder, or remove this one",
        )


def run_sweep(options: SweepOptions, progress: Progress | None = None) -> list[Report]:
    """Sweep the target on each device, one after the other; a report for each.

    What a child could not do is in its report's verdict.

    Raises:
        UsageError: the target can't be found or used, a package is unknown.
    """
    check_prove(options)
    simulated = simulated_variants(options)
    make_run_dir(options.run_dir)
    reports = []
    for device in options.devices:
        run_dir = options.run_dir
        if len(options.devices) > 1:
            run_dir = options.run_dir / device.replace(":", "-")
            run_dir.mkdir()
        meta = {**_meta(options, device), "simulated": simulated}
        write_meta(run_dir, meta)
        started = time.monotonic()
        doubts = run_child(_job(options, device, run_dir), progress or (lambda *_: None))
        meta["environment"]["wall_seconds"] = round(time.monotonic() - started, 1)
        try:
            write_meta(run_dir, {**meta, "doubts": doubts})
        except OSError as error:
            raise RunFileError(
                f"the run directory {run_dir} can't be written any more",
                f"{type(error).__name__}: {error.strerror}",
                "leave it alone while a sweep runs",
            ) from error
        reports.append(read_report(run_dir))
    return reports


def check_prove(options: SweepOptions) -> None:
    """Raise a UsageError for a proof that can't be had."""
    if options.prove is None:
        return
    if options.prove < 1:
        raise UsageError(f"--prove {options.prove}: must be 1 or more", "it is a prompt's length")
    if options.simulated is not None:
        raise UsageError(
            f"--prove {options.prove} --simulated: one or the other",
            "--simulated compares a GPU's run with a simulated one, and a proof is simulated",
            "leave --simulated out",
        )
    if not all(device.startswith("sim:") for device in options.devices):
        raise UsageError(
            f"--prove {options.prove}: needs a simulated device",
            "on a GPU nothing says which kernels a request launched",
            "use --device sim:h200, and sweep the GPU over --lengths of your choice",
        )


def simulated_variants(options: SweepOptions) -> list[dict[str, Any]] | None:
    """The in-repo variants of the simulated run that `options.simulated` names, as plain data.

    Raises:
        UsageError: that run is of other lengths, or of a real device.
        RunFileError: it can't be read.
    """
    if options.simulated is None:
        return None
    name = f"--simulated {options.simulated}"
    (report, *more) = read_reports(options.simulated)
    there = sorted(row.request.prompt_tokens for row in report.requests)
    here = sorted(options.lengths)
    if more or not report.device.startswith("sim:"):
        raise UsageError(
            f"{name}: not the run of one simulated device",
            f"it holds {len(more) + 1} runs, the first on {report.device}",
            "make it with --device sim:BOARD, for the board of this GPU",
        )
    if there != here:
        raise UsageError(
            f"{name}: it served other lengths",
            f"{spell_lengths(there)} there, {spell_lengths(here)} here",
            "sweep both over the same lengths",
        )
    return [asdict(variant) for variant in loaded_variants(report.events, report.coverage)]


def read_reports(path: Path) -> list[Report]:
    """The reports of a run directory, or of the JSON that a sweep wrote of one.

    Raises:
        RunFileError: it is neither.
    """
    if path.is_file():
        return read_json(path.read_text(errors="replace"), str(path))
    return jitwatch.load(path)


def engine_options(options: SweepOptions) -> EngineOptions:
    """The engine's options, with room for the longest request where none is asked for."""
    if options.engine.kv_tokens is not None:
        return options.engine
    longest = max((*options.lengths, *options.warmup_lengths, options.prove or 1))
    return replace(options.engine, kv_tokens=max(KV_TOKENS, longest + options.output_tokens))


def _job(options: SweepOptions, device: str, run_dir: Path) -> Job:
    return Job(
        run_dir=str(run_dir.resolve()),
        target=options.target,
        device=device,
        lengths=options.lengths,
        warmup_lengths=options.warmup_lengths,
        output_tokens=options.output_tokens,
        packages=options.packages,
        path=str(options.path.resolve()),
        keys_only=options.keys_only,
        strict_values=options.strict_values,
        winners=options.winners,
        params=dict(options.params),
        engine=asdict(engine_options(options)) if options.target == NAME else {},
        prove=options.prove,
    )


def _meta(options: SweepOptions, device: str) -> dict[str, Any]:
    return {
        "device": device,
        "devices": list(options.devices),
        "target": options.target,
        "lengths": list(options.lengths),
        "warmup_lengths": list(options.warmup_lengths),
        "output_tokens": options.output_tokens,
        "params": dict(options.params),
        "engine": asdict(engine_options(options)) if options.target == NAME else None,
        "prove": options.prove,
        "repo": str(options.repo.resolve()),
        "packages": list(options.packages),
        "fail_on": options.fail_on,
        "keys_only": options.keys_only,
        "environment": environment_of(options.repo, options.command),
    }
