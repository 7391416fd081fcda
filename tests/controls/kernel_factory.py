"""JW105: the kernel is defined inside a function, anew for each request."""

import functools

import torch
import triton
import triton.language as tl

LONGEST = 4096


def make_kernel():
    @triton.jit(do_not_specialize=["n"])
    def inner_kernel(x, y, n, BLOCK: tl.constexpr):
        o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + o, tl.load(x + o, mask=o < n) - 1, mask=o < n)

    return inner_kernel


class Faulty:
    """Calls the factory for each request."""

    factory = staticmethod(make_kernel)

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def forward(self, n):
        self.factory()[(triton.cdiv(n, 256),)](self.x, self.y, n, BLOCK=256)


class Clean(Faulty):
    """Caches what the factory returns."""

    factory = staticmethod(functools.cache(make_kernel))
