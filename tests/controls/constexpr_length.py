"""JW103: the length is a constexpr, so each length is a binary."""

import torch
import triton
import triton.language as tl

LONGEST, WIDTH = 512, 64


@triton.jit
def norm_kernel(x, y, T: tl.constexpr, D: tl.constexpr, BT: tl.constexpr):
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o = o_t[:, None] * D + tl.arange(0, D)[None, :]
    mask = (o_t < T)[:, None]
    b = tl.load(x + o, mask=mask, other=0.0)
    tl.store(y + o, b / tl.sqrt(tl.sum(b * b, 1) + 1e-6)[:, None], mask=mask)


@triton.jit(do_not_specialize=["T"])
def norm_runtime_kernel(x, y, T, D: tl.constexpr, BT: tl.constexpr):
    o_t = tl.program_id(0) * BT + tl.arange(0, BT)
    o = o_t[:, None] * D + tl.arange(0, D)[None, :]
    mask = (o_t < T)[:, None]
    b = tl.load(x + o, mask=mask, other=0.0)
    tl.store(y + o, b / tl.sqrt(tl.sum(b * b, 1) + 1e-6)[:, None], mask=mask)


class Faulty:
    """l2norm with its length as a constexpr, warmed at 64."""

    kernel = norm_kernel

    def __init__(self):
        self.x = torch.empty(LONGEST, WIDTH, device="cuda")
        self.y = torch.empty(LONGEST, WIDTH, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def forward(self, n):
        self.kernel[(triton.cdiv(n, 16),)](self.x, self.y, n, D=WIDTH, BT=16)


class Clean(Faulty):
    """The length is a runtime int."""

    kernel = norm_runtime_kernel
