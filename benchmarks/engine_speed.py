"""How fast the engine is beside FreeToken: TTFT by prompt length, decode of one request, launches.

`python benchmarks/engine_speed.py [--freetoken] [--rounds N] [--profile] [--out FILE]`. Both run
8 layers of Qwen3.6-35B-A3B in bfloat16 with made-up weights, each round in a process of its own, in
turn; medians over all rounds. FreeToken runs with --freetoken alone, and must be importable then
(examples/freetoken). Launches are those of the engine, by kind of layer, counted by torch.profiler:
a model with one layer more has that layer's launches more. --profile prints only where the GPU's
time goes. Needs a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from output import give_up, last_object, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # not installed: the checkout's

MODEL = "qwen3.6-35b-a3b"
NUM_LAYERS = 8
PROMPT_TOKENS = (11, 128, 1024, 2048)
DECODE_PROMPT, DECODE_TOKENS = 128, 128
REPEATS = 9
CHILD_TIMEOUT_S = 240

#: Serve one prompt of that many tokens greedily and generate that many.
Generate = Callable[[int, int], object]


def engine_generate(num_layers: int = NUM_LAYERS, **options: Any) -> Generate:
    from engine import LLM, SamplingParams

    llm = LLM(MODEL, device="cuda", layers=num_layers, **options)
    first = itertools.count(5)

    def generate(prompt_tokens: int, output_tokens: int) -> object:
        start = next(first)
        params = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
        return llm.generate([list(range(start, start + prompt_tokens))], params)

    return generate


def freetoken_generate() -> Generate:
    from examples.freetoken.target import Target

    target = Target()

    class Request:
        def __init__(self, prompt_tokens: int, output_tokens: int) -> None:
            self.prompt_tokens, self.output_tokens = prompt_tokens, output_tokens

    return lambda prompt, output: target.serve(Request(prompt, output))


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(generate: Generate) -> dict[str, Any]:
    """Milliseconds to the first token by prompt length, and decoded tokens per second."""
    ttft_ms = {}
    for length in PROMPT_TOKENS:
        for _ in range(3):
            generate(length, 1)
        times = [seconds(lambda length=length: generate(length, 1)) for _ in range(REPEATS)]
        ttft_ms[str(length)] = statistics.median(times) * 1e3
    generate(DECODE_PROMPT, DECODE_TOKENS)
    rates = []
    for _ in range(REPEATS):
        one = seconds(lambda: generate(DECODE_PROMPT, 1))
        many = seconds(lambda: generate(DECODE_PROMPT, 1 + DECODE_TOKENS))
        rates.append(DECODE_TOKENS / (many - one))
    return {"ttft_ms": ttft_ms, "decode_tokens_per_s": statistics.median(rates)}


def kernels_of(work: Callable[[], object]) -> tuple[Counter[str], Counter[str]]:
    """Launches and microseconds of each GPU kernel while `work` runs, copies left out."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        work()
        torch.cuda.synchronize()
    launches: Counter[str] = Counter()
    micros: Counter[str] = Counter()
    for event in recorded.events():
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        if on_gpu and not event.name.startswith(("Memcpy", "Memset")):
            launches[event.name] += 1
            micros[event.name] += event.device_time
    return launches, micros


def count_launches() -> dict[str, Any]:
    """Launches of a prefill and of a decode step by kind of layer, and outside the layers."""
    totals = {}
    for num_layers in (2, 3, 4):
        generate = engine_generate(num_layers, kv_tokens=4096)
        generate(1024, 4)
        prefill = kernels_of(lambda g=generate: g(1024, 1))[0].total()
        # The last of 2 and of 6 tokens is drawn, never forwarded.
        decode = kernels_of(lambda g=generate: g(1024, 5))[0].total() - prefill
        totals[num_layers] = {"prefill": prefill, "decode": decode / 4}
        del generate
        torch.cuda.empty_cache()
    result = {}
    for phase in ("prefill", "decode"):
        two, three, four = (totals[n][phase] for n in (2, 3, 4))
        linear, full = three - two, four - three
        result[phase] = {"linear_layer": linear, "full_layer": full, "rest": two - 2 * linear}
    return result


def print_profile(generate: Generate) -> None:
    for name, work in (
        ("prefill of 2048", lambda: generate(2048, 1)),
        ("prefill of 11", lambda: generate(11, 1)),
        ("32 decodes", lambda: generate(11, 33)),
    ):
        work()
        launches, micros = kernels_of(work)
        print(f"-- {name}: {launches.total()} launches, {micros.total() / 1e3:.2f} ms on the GPU")
        for kernel, spent in micros.most_common(16):
            print(f"{spent:9.0f} us {launches[kernel]:5d}  {kernel[:100]}")


def child(system: str) -> dict[str, Any]:
    """One round of one system, in a process of its own."""
    arguments = [sys.executable, __file__, "--child", system]
    done = subprocess.run(
        arguments, stdout=subprocess.PIPE, text=True, timeout=CHILD_TIMEOUT_S, check=False
    )
    found = last_object(done.stdout)
    if done.returncode or found is None:
        give_up(f"{system} ended with {done.returncode}; its errors are above")
    return found


def medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "ttft_ms": {
            length: round(statistics.median(r["ttft_ms"][length] for r in rounds), 3)
            for length in rounds[0]["ttft_ms"]
        },
        "decode_tokens_per_s": round(
            statistics.median(r["decode_tokens_per_s"] for r in rounds), 1
        ),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--freetoken", action="store_true", help="measure FreeToken in turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--profile", action="store_true", help="only print the GPU's time by kernel"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", choices=("engine", "freetoken"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        give_up("needs a GPU")
    if options.profile:
        print_profile(engine_generate())
        return
    if options.child:
        make = engine_generate if options.child == "engine" else freetoken_generate
        publish(measure(make()), None)
        return
    systems = ["engine", "freetoken"] if options.freetoken else ["engine"]
    rounds: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
    for _ in range(options.rounds):
        for system in systems:
            rounds[system].append(child(system))
    result: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "model": MODEL,
        "layers": NUM_LAYERS,
        "dtype": "bfloat16",
        "launches": count_launches(),
        **{system: medians(found) for system, found in rounds.items()},
    }
    publish(result, options.out)


if __name__ == "__main__":
    main()
