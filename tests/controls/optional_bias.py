"""JW109: long prompts bring a bias where warmup passed None."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit(do_not_specialize=["n"])
def bias_kernel(x, bias, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(x + o, mask=o < n)
    if bias is not None:
        b += tl.load(bias + o, mask=o < n)
    tl.store(y + o, b, mask=o < n)


class Faulty:
    """A bias above 128 tokens; warmed at 64 without."""

    warmup_lengths = (64,)

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.bias = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        for length in self.warmup_lengths:
            self.forward(length)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def forward(self, n):
        bias = self.bias if n > 128 else None
        bias_kernel[(triton.cdiv(n, 256),)](self.x, bias, self.y, n, BLOCK=256)


class Clean(Faulty):
    """Warms with and without."""

    warmup_lengths = (64, 129)
