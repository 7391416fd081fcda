"""A deterministic program whose module loads two independent hooks must count alike.

`python benchmarks/load_script.py [--quick] [--only SECTION ...] [--out FILE]`. Loads modules in
six ways: torch's lazy ones, cuBLAS per shape, SDPA, Triton variants, inductor and CUDA graph
capture. Knows nothing of who counts. `--quick` leaves out SDPA and inductor, which are slow.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

sys.path.insert(0, str(Path(__file__).resolve().parent))  # runpy doesn't

from output import give_up, publish


@triton.jit  # type: ignore[untyped-decorator]
def scale_kernel(x, n, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    o_x = tl.program_id(0) * block + tl.arange(0, block)
    m_x = o_x < n
    tl.store(x + o_x, 2 * tl.load(x + o_x, mask=m_x), mask=m_x)


def gelu_of_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x + y) * 3


def torch_lazily() -> None:
    x = torch.randn(1024, 512, device="cuda")
    _ = x + x
    torch.softmax(x, dim=-1)
    torch.sort(x, dim=-1)


def cublas_by_shape() -> None:
    weight = torch.randn(512, 768, device="cuda", dtype=torch.bfloat16)
    for rows in (1, 8, 9, 64, 100):
        _ = torch.ones(rows, 512, device="cuda", dtype=torch.bfloat16) @ weight


def triton_variants() -> None:
    x = torch.ones(64, device="cuda")
    for n in (1, 16, 17):  # == 1, % 16 == 0, any other
        scale_kernel[(1,)](x, n, block=32)


def graph_capture() -> None:
    """cuBLAS is warm on the capturing stream before, as capture requires; tanh loads within it."""
    a = torch.ones(64, 64, device="cuda")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            _ = a @ a
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=side):
        torch.tanh(a @ a)
    graph.replay()


def sdpa() -> None:
    q = torch.randn(1, 8, 256, 64, device="cuda", dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def inductor() -> None:
    x = torch.ones(1024, 512, device="cuda")
    torch.compile(gelu_of_sum)(x, x)


QUICK = (torch_lazily, cublas_by_shape, triton_variants, graph_capture)
SECTIONS = {section.__name__: section for section in (*QUICK, sdpa, inductor)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), metavar="SECTION")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        give_up("torch sees no GPU here")
    names = options.only or [s.__name__ for s in (QUICK if options.quick else SECTIONS.values())]
    torch.manual_seed(0)
    for name in names:
        print(f"load_script: {name}", file=sys.stderr, flush=True)  # says where a failure was
        SECTIONS[name]()
        torch.cuda.synchronize()
    publish(
        {"sections": names, "torch": torch.__version__, "triton": triton.__version__}, options.out
    )


if __name__ == "__main__":
    main()
