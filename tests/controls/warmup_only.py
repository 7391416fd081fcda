"""JW202: warmup compiles the kernel and never launches it."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit(do_not_specialize=["n"])
def half_kernel(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) / 2, mask=o < n)


class Faulty:
    """`kernel.warmup()` before ready, the first launch after."""

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        half_kernel.warmup(self.x, self.y, 64, BLOCK=256, grid=(1,))

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def forward(self, n):
        half_kernel[(triton.cdiv(n, 256),)](self.x, self.y, n, BLOCK=256)


class Clean(Faulty):
    """Launches it once."""

    def warmup(self):
        self.forward(64)
