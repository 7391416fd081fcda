"""JW206: an int of 1 leaves the launch signature, which then needs a launcher of its own."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit(do_not_specialize_on_alignment=["n"])
def fill_kernel(y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 7.0, mask=o < n)


@triton.jit(do_not_specialize=["n"])
def fill_any_kernel(y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 7.0, mask=o < n)


class Faulty:
    """Warmed at 64; 1 token is another signature."""

    kernel = fill_kernel

    def __init__(self):
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def forward(self, n):
        self.kernel[(triton.cdiv(n, 256),)](self.y, n, BLOCK=256)


class Clean(Faulty):
    """`n` stays in the signature whatever it is."""

    kernel = fill_any_kernel
