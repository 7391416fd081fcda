"""A deterministic program whose module loads two independent hooks must count alike.

Loads modules in every way we know: torch's lazy ones, cuBLAS per shape, SDPA, Triton
variants, inductor and CUDA graph capture. Knows nothing of who counts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def scale_kernel(x, n, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    o_x = tl.program_id(0) * block + tl.arange(0, block)
    m_x = o_x < n
    tl.store(x + o_x, 2 * tl.load(x + o_x, mask=m_x), mask=m_x)


@torch.compile  # type: ignore[untyped-decorator]
def gelu_of_sum(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x + y) * 3


def main() -> None:
    torch.manual_seed(0)
    device = torch.device("cuda")
    x = torch.randn(1024, 512, device=device)
    _ = x + x
    torch.softmax(x, dim=-1)
    torch.sort(x, dim=-1)
    weight = torch.randn(512, 768, device=device, dtype=torch.bfloat16)
    for rows in (1, 8, 9, 64, 100):
        _ = torch.ones(rows, 512, device=device, dtype=torch.bfloat16) @ weight
    q = torch.randn(1, 8, 256, 64, device=device, dtype=torch.bfloat16)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    flat = x.flatten()
    for n in (1, 16, 17):  # == 1, % 16 == 0, any other
        scale_kernel[(1,)](flat, n, block=32)
    gelu_of_sum(x, x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.tanh(x)
    graph.replay()
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
