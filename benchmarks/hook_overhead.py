"""What the armed driver hook costs: `python benchmarks/hook_overhead.py [--out FILE]`.

One process, alternating off/on pairs (the order within a pair alternates too): a bare Triton
launch loop, a matmul loop, and the cost of one recorded module load. Needs a GPU and torch.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import triton
import triton.language as tl

from jitwatch.sources.driver import DriverHook


@triton.jit  # type: ignore[untyped-decorator]
def touch_kernel(x, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    o_x = tl.arange(0, block)
    tl.store(x + o_x, tl.load(x + o_x) + 1)


def timed_us(work: Callable[[], None], repeats: int) -> float:
    """Microseconds per call of `work`, until the GPU is done."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / repeats * 1e6


def measure(work: Callable[[], None], repeats: int, pairs: int) -> dict[str, list[float]]:
    """Time `work` without and with the hook, `pairs` times each."""
    times: dict[str, list[float]] = {"off": [], "on": []}
    timed_us(work, repeats)
    for pair in range(pairs):
        for state in ("off", "on") if pair % 2 == 0 else ("on", "off"):
            if state == "off":
                times["off"].append(timed_us(work, repeats))
                continue
            with tempfile.TemporaryDirectory() as run:
                hook = DriverHook.arm(Path(run))
                times["on"].append(timed_us(work, repeats))
                hook.disarm()
                if hook.counts().drops:
                    raise SystemExit("hook_overhead: records were dropped: use fewer repeats")
    return times


def interval(samples: list[float]) -> list[float]:
    """A bootstrap 95 % interval of the median."""
    draw = random.Random(0)
    medians = sorted(
        statistics.median(draw.choices(samples, k=len(samples))) for _ in range(10_000)
    )
    return [round(medians[250], 5), round(medians[9749], 5)]


def summary(times: dict[str, list[float]]) -> dict[str, object]:
    """Medians and the speed ratio off/on of each pair: 1 is free, 0.99 is 1 % slower."""
    ratios = [off / on for off, on in zip(times["off"], times["on"], strict=True)]
    return {
        "off_us": round(statistics.median(times["off"]), 3),
        "on_us": round(statistics.median(times["on"]), 3),
        "speed_ratio": round(statistics.median(ratios), 5),
        "speed_ratio_95": interval(ratios),
    }


def module_load(cubin: bytes) -> Callable[[], None]:
    cuda = ctypes.CDLL("libcuda.so.1")

    def load_and_unload() -> None:
        module = ctypes.c_void_p()
        status = cuda.cuModuleLoadData(ctypes.byref(module), cubin)
        status = status or cuda.cuModuleUnload(module)
        if status != 0:
            raise SystemExit(f"hook_overhead: loading a module returned {status}")

    return load_and_unload


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--pairs", type=int, default=11)
    options = parser.parse_args()
    x = torch.zeros(128, device="cuda")
    a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
    compiled = touch_kernel.warmup(x, block=128, grid=(1,))
    launch = measure(lambda: touch_kernel[(1,)](x, block=128), 20_000, options.pairs)
    matmul = measure(lambda: a @ a, 20_000, options.pairs)
    load = measure(module_load(compiled.asm["cubin"]), 300, options.pairs)
    differences = [on - off for off, on in zip(load["off"], load["on"], strict=True)]
    result = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "pairs": options.pairs,
        "triton_launch": summary(launch),
        "matmul_512_bf16": summary(matmul),
        "module_load_and_unload": {
            **summary(load),
            "cost_us": round(statistics.median(load["on"]) - statistics.median(load["off"]), 3),
            "cost_us_95": interval(differences),
        },
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
