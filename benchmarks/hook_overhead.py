"""What the armed hooks cost, the driver's and Triton's: a launch, a matmul, one module load.

`python benchmarks/hook_overhead.py [--quick] [--pairs N] [--out FILE]`. Times rounds without and
with the hook in alternating pairs, whose order alternates too. In one process, by arming and
disarming; where the driver refuses a second subscription (or with --processes), in pairs of
processes; `pairing` says which. Needs a GPU, torch and no profiler in the process.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from output import give_up, last_object, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # not installed: the checkout's

from jitwatch.errors import DriverUnavailable
from jitwatch.recorder import Recorder
from jitwatch.sources.driver import DriverHook
from jitwatch.sources.triton import TritonSource

CHILD_TIMEOUT_S = 240

#: A round: microseconds per call of each work.
Round = dict[str, float]
Pair = dict[str, Round]


@dataclass(frozen=True)
class Work:
    """Something to time: `call` it `repeats` times."""

    call: Callable[[], object]
    repeats: int


@triton.jit  # type: ignore[untyped-decorator]
def touch_kernel(x, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    o_x = tl.arange(0, block)
    tl.store(x + o_x, tl.load(x + o_x) + 1)


def make_works(launches: int, loads: int) -> dict[str, Work]:
    x = torch.zeros(128, device="cuda")
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    compiled = touch_kernel.warmup(x, block=128, grid=(1,))
    return {
        "triton_launch": Work(lambda: touch_kernel[(1,)](x, block=128), launches),
        "matmul_512_bf16": Work(lambda: a @ a, launches),
        "module_load_and_unload": Work(module_load(compiled.asm["cubin"]), loads),
    }


def module_load(cubin: bytes) -> Callable[[], None]:
    cuda = ctypes.CDLL("libcuda.so.1")

    def load_and_unload() -> None:
        module = ctypes.c_void_p()
        status = cuda.cuModuleLoadData(ctypes.byref(module), cubin)
        status = status or cuda.cuModuleUnload(module)
        if status != 0:
            give_up(f"loading or unloading a module returned {status}")

    return load_and_unload


def time_round(works: dict[str, Work]) -> Round:
    """Time each work until the GPU is done with it."""
    times = {}
    for name, work in works.items():
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(work.repeats):
            work.call()
        torch.cuda.synchronize()
        times[name] = (time.perf_counter() - start) / work.repeats * 1e6
    return times


@contextmanager
def armed() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as run:
        hook = DriverHook.arm(Path(run))
        recorder = Recorder(Path(run))
        source = TritonSource(recorder, hook.set_explained)
        if not source.arm().armed:
            give_up("Triton's hooks can't be armed")
        try:
            yield
        finally:
            source.disarm()
            recorder.close()
            hook.disarm()
        counts = hook.counts()
    if counts.drops:
        give_up(f"{counts.drops} records were dropped: use fewer --loads")
    if not counts.loads:
        give_up("the armed hook saw no module load: what it costs then says nothing")


def pairs_in_one_process(works: dict[str, Work], pairs: int) -> tuple[list[Pair], str]:
    """The rounds, and why they are fewer than asked for: arming again was refused."""
    time_round(works)  # the first round loads, compiles and builds
    found: list[Pair] = []
    for index in range(pairs):
        pair: Pair = {}
        for state in order(index):
            try:
                with armed() if state == "on" else nullcontext():
                    pair[state] = time_round(works)
            except DriverUnavailable as error:
                if not found and index == 0:
                    give_up(str(error))
                return found, f"{error.what}: {error.why}"
        found.append(pair)
    return found, ""


def pairs_of_processes(options: argparse.Namespace) -> list[Pair]:
    return [
        {state: run_child(state, options) for state in order(index)}
        for index in range(options.pairs)
    ]


def order(index: int) -> tuple[str, str]:
    return ("off", "on") if index % 2 == 0 else ("on", "off")


def run_child(state: str, options: argparse.Namespace) -> Round:
    command = [sys.executable, __file__, "--child", state]
    command += ["--launches", str(options.launches), "--loads", str(options.loads)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=CHILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        give_up(f"the process with the hook {state} was not done after {CHILD_TIMEOUT_S} s")
    times = last_object(done.stdout)
    if done.returncode != 0 or times is None:
        give_up(f"the process with the hook {state} exited {done.returncode}; see above")
    return times


def child(state: str, works: dict[str, Work]) -> Round:
    """One warm-up and one timed round, both in `state`."""
    try:
        with armed() if state == "on" else nullcontext():
            time_round(works)
            return time_round(works)
    except DriverUnavailable as error:
        give_up(str(error))


def interval(samples: list[float]) -> list[float]:
    """A bootstrap 95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(samples, k=len(samples))) for _ in range(10_000)
    )
    return [round(medians[250], 5), round(medians[9749], 5)]


def summary(pairs: list[Pair], name: str) -> dict[str, Any]:
    """Medians, the speed ratio off/on of each pair (0.99 is 1 % slower), the cost on - off."""
    off = [pair["off"][name] for pair in pairs]
    on = [pair["on"][name] for pair in pairs]
    ratios = [a / b for a, b in zip(off, on, strict=True)]
    costs = [b - a for a, b in zip(off, on, strict=True)]
    return {
        "off_us": round(statistics.median(off), 3),
        "on_us": round(statistics.median(on), 3),
        "speed_ratio": round(statistics.median(ratios), 5),
        "speed_ratio_95": interval(ratios),
        "cost_us": round(statistics.median(costs), 3),
        "cost_us_95": interval(costs),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 pairs, 2,000 launches, 50 loads")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--launches", type=int)
    parser.add_argument("--loads", type=int)
    parser.add_argument("--processes", action="store_true", help="pairs of processes at once")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=("off", "on"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    defaults = (3, 2_000, 50) if options.quick else (11, 20_000, 300)
    for name, default in zip(("pairs", "launches", "loads"), defaults, strict=True):
        if getattr(options, name) is None:
            setattr(options, name, default)
        if getattr(options, name) < 1:
            give_up(f"--{name} {getattr(options, name)}: give at least 1")
    return options


def main() -> None:
    options = parse()
    if not torch.cuda.is_available():
        give_up("torch sees no GPU here")
    works = make_works(options.launches, options.loads)
    if options.child:
        publish(child(options.child, works), None)
        return
    pairing, refused, pairs = "processes", "", list[Pair]()
    if not options.processes:
        pairs, refused = pairs_in_one_process(works, options.pairs)
        pairing = "processes" if refused else "one process"
    if pairing == "processes":
        print(f"hook_overhead: pairs of processes {refused}", file=sys.stderr, flush=True)
        pairs = pairs_of_processes(options)
    result = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "pairing": pairing,
        "arming_again_refused": refused or None,
        "pairs": options.pairs,
        "launches": options.launches,
        "loads": options.loads,
        **{name: summary(pairs, name) for name in works},
    }
    publish(result, options.out)


if __name__ == "__main__":
    main()
