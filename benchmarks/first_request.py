"""What the first request after ready pays, beside the same one later: cold and warm Triton cache.

`python benchmarks/first_request.py [--starts N] [--layers N] [--out FILE]`. Starts the engine N
times on an empty Triton cache in turn with N times on a filled one, each a process of its own:
seconds to ready, then a request of 11 tokens in and 2 out, then nine more with other tokens. Then
once each without the warmup of prefill, which shows what warmup spares the first request. Each
start counts the kernels that came into the cache before ready, with the first request, and with
the nine after it. Needs a GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from output import give_up, last_object, publish

if TYPE_CHECKING:
    from timed_requests import TimedEngine, Times

MODEL, NUM_LAYERS = "qwen3.6-35b-a3b", 8
PROMPT_TOKENS, OUTPUT_TOKENS = 11, 2
LATER_REQUESTS = 9
CHILD_TIMEOUT_S = 240
SECONDS = ("imports_s", "build_s", "warmup_s", "ready_s")
PHASES = ("before_ready", "first_request", "later_requests")
TIMES = ("ttft_ms", "request_ms")

Cache = Literal["cold", "warm"]


@dataclass(frozen=True, slots=True)
class Start:
    """A start to make: on which cache, and whether prefill is warmed up before ready."""

    cache: Cache
    warmed: bool = True

    def __str__(self) -> str:
        return f"{self.cache} cache, {'' if self.warmed else 'without prefill '}warmup"


def plan(starts: int) -> list[Start]:
    """Cold and warm in turn, whose order alternates too, and one each without prefill warmup."""
    orders: tuple[tuple[Cache, Cache], ...] = (("cold", "warm"), ("warm", "cold"))
    warmed = [Start(cache) for index in range(starts) for cache in orders[index % 2]]
    return [*warmed, Start("cold", warmed=False), Start("warm", warmed=False)]


def later_ms(found: dict[str, Any], name: str) -> float:
    """The median of a start's later requests."""
    return statistics.median(float(times[name]) for times in found["later"])


def ratio(found: dict[str, Any], name: str) -> float:
    """How many times as long a start's first request took as its later ones; 1 is as long."""
    return float(found["first"][name]) / later_ms(found, name)


def compare(starts: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The first request beside later ones: medians over the starts, and the ratios' range."""
    ratios = [ratio(found, name) for found in starts]
    return {
        "first": round(statistics.median(found["first"][name] for found in starts), 3),
        "later": round(statistics.median(later_ms(found, name) for found in starts), 3),
        "ratio": round(statistics.median(ratios), 4),
        "ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
    }


def summary(starts: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the starts of one kind, with all their figures."""
    compiled = {
        phase: statistics.median(found["compiled"][phase] for found in starts) for phase in PHASES
    }
    return {
        **{name: round(statistics.median(s[name] for s in starts), 3) for name in SECONDS},
        "compiled": compiled,
        **{name: compare(starts, name) for name in TIMES},
        "starts": starts,
    }


def collect(found: list[tuple[Start, dict[str, Any]]]) -> dict[str, Any]:
    """The summary of each kind of start."""

    def of(warmed: bool) -> dict[str, Any]:
        return {
            cache: summary([figures for s, figures in found if s == Start(cache, warmed)])
            for cache in ("cold", "warm")
        }

    return {**of(True), "without_prefill_warmup": of(False)}


def line_of(found: dict[str, Any]) -> str:
    """One start in words, for whoever waits."""
    first, compiled = found["first"], found["compiled"]
    return (
        f"ready after {found['ready_s']:.1f} s (imports {found['imports_s']:.1f}, "
        f"build {found['build_s']:.1f}, warmup {found['warmup_s']:.1f}; "
        f"{compiled['before_ready']} compiles); first token {first['ttft_ms']:.2f} ms "
        f"({compiled['first_request']} compiles), later {later_ms(found, 'ttft_ms'):.2f} ms"
    )


def run_start(start: Start, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One start in a process of its own; its time begins here."""
    env = {**os.environ, "TRITON_CACHE_DIR": str(directory)}
    env.pop("ENGINE_WARMUP_MAX_LEN", None)  # it would leave out a part of the warmup
    command = [sys.executable, __file__, "--model", options.model, "--device", options.device]
    command += ["--layers", str(options.layers), "--child"]
    command += ["warmed" if start.warmed else "unwarmed", "--spawned-s", repr(time.monotonic())]
    try:
        done = subprocess.run(
            command, env=env, stdout=subprocess.PIPE, text=True, timeout=CHILD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        give_up(f"the start ({start}) was not done after {CHILD_TIMEOUT_S} s")
    found = last_object(done.stdout)
    if done.returncode != 0 or found is None:
        give_up(f"the start ({start}) exited {done.returncode}; see above")
    print(f"first_request: {start}: {line_of(found)}", file=sys.stderr, flush=True)
    return found


def run_all(options: argparse.Namespace, scratch: Path) -> list[tuple[Start, dict[str, Any]]]:
    """Fill the warm cache by a start that isn't counted, then make the plan's starts."""
    warm = scratch / "warm"
    print("first_request: this start isn't counted:", file=sys.stderr, flush=True)
    run_start(Start("cold"), warm, options)
    found = []
    for number, start in enumerate(plan(options.starts)):
        directory = warm if start.cache == "warm" else scratch / f"cold-{number}"
        found.append((start, run_start(start, directory, options)))
    return found


def compiled_kernels(cache: Path) -> int:
    """How many kernels for a GPU the Triton cache holds."""
    return sum(1 for _ in cache.rglob("*.cubin"))


def milliseconds(times: Times) -> dict[str, float]:
    return {
        "ttft_ms": round(times.first_token_s * 1e3, 4),
        "request_ms": round(times.request_s * 1e3, 4),
    }


def prompt(number: int) -> list[int]:
    """As many tokens as every request has, others in each."""
    first = 5 + number * PROMPT_TOKENS
    return list(range(first, first + PROMPT_TOKENS))


def serve_all(engine: TimedEngine, cache: Path, already: int) -> dict[str, Any]:
    """The first request and the later ones, and what each compiled; `already` lay in the cache."""
    counts = [already, compiled_kernels(cache)]
    first = engine.serve(prompt(0), OUTPUT_TOKENS)
    counts.append(compiled_kernels(cache))
    later = [engine.serve(prompt(1 + n), OUTPUT_TOKENS) for n in range(LATER_REQUESTS)]
    counts.append(compiled_kernels(cache))
    new = [after - before for before, after in pairwise(counts)]
    return {
        "compiled": dict(zip(PHASES, new, strict=True)),
        "first": milliseconds(first),
        "later": [milliseconds(times) for times in later],
    }


def child(options: argparse.Namespace) -> dict[str, Any]:
    """Build the engine in this process and serve; `spawned_s` is when the parent started it."""
    import torch
    import triton
    from timed_requests import TimedEngine

    if options.device == "cuda" and not torch.cuda.is_available():
        give_up("torch sees no GPU here")
    cache = Path(os.environ["TRITON_CACHE_DIR"])
    already = compiled_kernels(cache)
    # The monotonic clock is one for all processes.
    imported_s = time.monotonic()
    engine = TimedEngine(
        options.model,
        device=options.device,
        layers=options.layers,
        skip_prefill_warmup=options.child == "unwarmed",
    )
    ready_s = time.monotonic()
    warmup_s = engine.llm.warmup_seconds
    served = serve_all(engine, cache, already)
    machine = {
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else None,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "dtype": str(engine.llm.dtype).removeprefix("torch."),
    }
    return {
        "machine": machine,
        "imports_s": round(imported_s - options.spawned_s, 4),
        "build_s": round(ready_s - imported_s - warmup_s, 4),
        "warmup_s": round(warmup_s, 4),
        "ready_s": round(ready_s - options.spawned_s, 4),
        **served,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5, help="of each kind (default 5)")
    parser.add_argument("--layers", type=int, default=NUM_LAYERS)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu only tries this script out"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=("warmed", "unwarmed"), help=argparse.SUPPRESS)
    parser.add_argument("--spawned-s", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("starts", "layers"):
        if getattr(options, name) < 1:
            give_up(f"--{name} {getattr(options, name)}: give at least 1")
    return options


def main() -> None:
    options = parse()
    if options.child:
        publish(child(options), None)
        return
    with tempfile.TemporaryDirectory() as scratch:
        found = run_all(options, Path(scratch))
    machine, *_ = [figures.pop("machine") for _, figures in found]
    result = {
        **machine,
        "model": options.model,
        "layers": options.layers,
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": OUTPUT_TOKENS,
        "later_requests": LATER_REQUESTS,
        "starts_of_each": options.starts,
        **collect(found),
    }
    publish(result, options.out)


if __name__ == "__main__":
    main()
