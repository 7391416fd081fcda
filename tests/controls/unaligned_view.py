"""JW108: a view that starts inside a buffer is aligned for some offsets only."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit(do_not_specialize=["n"])
def copy_kernel(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n), mask=o < n)


class Faulty:
    """Reads `x[n:]` of 4-byte elements: aligned where n % 4 == 0; warmed at 64."""

    def __init__(self):
        self.x = torch.empty(2 * LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def offset(self, n):
        return n

    def forward(self, n):
        view = self.x[self.offset(n) :]
        copy_kernel[(triton.cdiv(n, 256),)](view, self.y, n, BLOCK=256)


class Clean(Faulty):
    """Pads the offset to 16 bytes."""

    def offset(self, n):
        return (n + 3) // 4 * 4
