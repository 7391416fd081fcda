"""What the armed hooks cost, the driver's and Triton's together.

`python benchmarks/hook_overhead.py [--quick] [--engine] [--only WORK ...] [--pairs N] [--out F]`.
Times a Triton launch, a matmul, and the load and unload of a module. --engine adds the engine's
decode: 8 layers of Qwen3.6-35B-A3B in bfloat16 with made-up weights, one request, from its first
token to its last. --only times the works that it names and no other. A pair is a round without and
a round with both hooks, and every other pair begins with the latter. One process arms and disarms
them; where they can't be armed again (or with --processes), each round has a process of its own.
`pairing` says which. Needs a GPU, torch, triton and no profiler in the process.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
LAUNCHES = ("triton_launch", "matmul_512_bf16")
LOADS = "module_load_and_unload"
DECODE = "engine_decode"
NAMES = (*LAUNCHES, LOADS, DECODE)
STATES = ("off", "on")
MODEL, NUM_LAYERS, PROMPT_TOKENS = "qwen3.6-35b-a3b", 8, 128

#: What --quick and the options set, with and without --quick.
SIZES = {"launches": (2_000, 20_000), "loads": (50, 300), "decode_tokens": (64, 192)}
PAIRS = (3, 11)

#: A round: microseconds per call of each work, or per decoded token.
Round = dict[str, float]
Pair = dict[str, Round]


class Timed(Protocol):
    """A work of a round."""

    def micros(self) -> float:
        """Do it once and return the microseconds per call, or per token."""


@dataclass(frozen=True)
class Work:
    """Something to time: `call` it `repeats` times, until the GPU is done with it."""

    call: Callable[[], object]
    repeats: int

    def micros(self) -> float:
        """Per call."""
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(self.repeats):
            self.call()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) / self.repeats * 1e6


@triton.jit  # type: ignore[untyped-decorator]
def touch_kernel(x, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    o_x = tl.arange(0, block)
    tl.store(x + o_x, tl.load(x + o_x) + 1)


def make_works(options: argparse.Namespace) -> dict[str, Timed]:
    """The works asked for, in the order of NAMES."""
    x = torch.zeros(128, device="cuda")
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    compiled = touch_kernel.warmup(x, block=128, grid=(1,))
    load = module_load(compiled.asm["cubin"])
    works: dict[str, Timed] = {
        "triton_launch": Work(lambda: touch_kernel[(1,)](x, block=128), options.launches),
        "matmul_512_bf16": Work(lambda: a @ a, options.launches),
        LOADS: Work(load, options.loads),
    }
    if DECODE in options.only:
        works[DECODE] = decode_work(load, options.decode_tokens)
    return {name: work for name, work in works.items() if name in options.only}


def decode_work(load: Callable[[], object], decoded_tokens: int) -> Timed:
    """The engine, built and warmed up with no hook armed."""
    from timed_requests import Decode, TimedEngine

    engine = TimedEngine(MODEL, device="cuda", dtype="bfloat16", layers=NUM_LAYERS)
    return Decode(engine, load, PROMPT_TOKENS, decoded_tokens)


def module_load(cubin: bytes) -> Callable[[], None]:
    cuda = ctypes.CDLL("libcuda.so.1")

    def load_and_unload() -> None:
        module = ctypes.c_void_p()
        status = cuda.cuModuleLoadData(ctypes.byref(module), cubin)
        status = status or cuda.cuModuleUnload(module)
        if status != 0:
            give_up(f"loading or unloading a module returned {status}")

    return load_and_unload


def time_round(works: Mapping[str, Timed]) -> Round:
    """Time each work once."""
    return {name: work.micros() for name, work in works.items()}


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


def pairs_in_one_process(works: Mapping[str, Timed], pairs: int) -> tuple[list[Pair], str]:
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
    for name in SIZES:
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    command += ["--only", *options.only]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=CHILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        give_up(f"the process with the hook {state} was not done after {CHILD_TIMEOUT_S} s")
    times = last_object(done.stdout)
    if done.returncode != 0 or times is None:
        give_up(f"the process with the hook {state} exited {done.returncode}; see above")
    return times


def child(state: str, works: Mapping[str, Timed]) -> Round:
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


def tokens_per_s(figures: Mapping[str, Any]) -> dict[str, float]:
    """A decode's medians as a rate."""
    return {f"{state}_tokens_per_s": round(1e6 / figures[f"{state}_us"], 1) for state in STATES}


def summaries(pairs: list[Pair], options: argparse.Namespace) -> dict[str, Any]:
    """What was measured of each work, and how much of it a round was."""
    found: dict[str, Any] = {name: summary(pairs, name) for name in options.only}
    sizes: dict[str, Any] = {}
    if set(LAUNCHES) & set(found):
        sizes["launches"] = options.launches
    if LOADS in found:
        sizes["loads"] = options.loads
    if DECODE in found:
        found[DECODE] |= tokens_per_s(found[DECODE])
        sizes |= {
            "decode_tokens": options.decode_tokens,
            "prompt_tokens": PROMPT_TOKENS,
            "model": MODEL,
            "layers": NUM_LAYERS,
            "dtype": "bfloat16",
        }
    return {**sizes, **found}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    quick = "3 pairs, 2,000 launches, 50 loads, 64 decoded tokens"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--engine", action="store_true", help=f"add {DECODE}")
    parser.add_argument("--only", nargs="+", choices=NAMES, metavar="WORK", help=", ".join(NAMES))
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--launches", type=int)
    parser.add_argument("--loads", type=int)
    parser.add_argument("--decode-tokens", type=int)
    parser.add_argument("--processes", action="store_true", help="a process for each round")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=STATES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, (quick_size, full_size) in {"pairs": PAIRS, **SIZES}.items():
        if getattr(options, name) is None:
            setattr(options, name, quick_size if options.quick else full_size)
        if getattr(options, name) < 1:
            option = name.replace("_", "-")
            give_up(f"--{option} {getattr(options, name)}: give at least 1")
    asked = {*(options.only or NAMES[:-1]), *[DECODE] * options.engine}
    options.only = [name for name in NAMES if name in asked]
    if not asked & {LOADS, DECODE}:
        given = " ".join(options.only)
        give_up(f"--only {given}: add {LOADS} or {DECODE}: a hook that sees no load proves nothing")
    return options


def main() -> None:
    options = parse()
    if not torch.cuda.is_available():
        give_up("torch sees no GPU here")
    works = make_works(options)
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
        **summaries(pairs, options),
    }
    publish(result, options.out)


if __name__ == "__main__":
    main()
