"""JW101 and, on a second run, JW201: warmup never launches one of two kernels."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit(do_not_specialize=["n"])
def double_kernel(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) * 2, mask=o < n)


@triton.jit(do_not_specialize=["n"])
def square_kernel(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(x + o, mask=o < n)
    tl.store(y + o, b * b, mask=o < n)


class Faulty:
    """Squares from 100 tokens on, which warmup at 64 does not reach."""

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def forward(self, n):
        grid = (triton.cdiv(n, 256),)
        double_kernel[grid](self.x, self.y, n, BLOCK=256)
        if n >= 100:
            square_kernel[grid](self.x, self.y, n, BLOCK=256)


class Clean(Faulty):
    """Warms both."""

    def warmup(self):
        self.forward(64)
        self.forward(100)
