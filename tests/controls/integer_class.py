"""JW102: an int that follows the length is specialised on 1 and on % 16."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit
def scale_kernel(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) * 3, mask=o < n)


@triton.jit(do_not_specialize=["n"])
def scale_any_kernel(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) * 3, mask=o < n)


class Faulty:
    """Warms 64 only: a multiple of 16."""

    kernel = scale_kernel

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def forward(self, n):
        self.kernel[(triton.cdiv(n, 256),)](self.x, self.y, n, BLOCK=256)


class Clean(Faulty):
    """The same kernel with `n` left unspecialised."""

    kernel = scale_any_kernel
