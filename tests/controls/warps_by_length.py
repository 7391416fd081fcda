"""JW104: a heuristic passes more warps above a length."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit(do_not_specialize=["n"])
def add_kernel(x, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) + 1, mask=o < n)


class Faulty:
    """Four warps up to 256 tokens, eight above: warmed at 64."""

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def num_warps(self, n):
        return 4 if n <= 256 else 8

    def forward(self, n):
        warps = self.num_warps(n)
        add_kernel[(triton.cdiv(n, 512),)](self.x, self.y, n, BLOCK=512, num_warps=warps)


class Clean(Faulty):
    """Four warps always."""

    def num_warps(self, n):
        return 4
