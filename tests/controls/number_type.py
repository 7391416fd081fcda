"""JW110: a factor is an int in warmup and a float in some requests."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit(do_not_specialize=["n", "factor"])
def factor_kernel(x, y, n, factor, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) * factor, mask=o < n)


class Faulty:
    """2 up to 128 tokens, 2.5 above; warmed at 64."""

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def factor(self, n):
        return 2 if n <= 128 else 2.5

    def forward(self, n):
        factor = self.factor(n)
        factor_kernel[(triton.cdiv(n, 256),)](self.x, self.y, n, factor, BLOCK=256)


class Clean(Faulty):
    """A float always."""

    def factor(self, n):
        return float(super().factor(n))
