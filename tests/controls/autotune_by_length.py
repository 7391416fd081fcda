"""JW106: the tuning key holds a bucket of the length."""

import torch
import triton
import triton.language as tl

LONGEST = 4096
CONFIGS = [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})]


@triton.autotune(configs=CONFIGS, key=["NB"])
@triton.jit(do_not_specialize=["n"])
def tuned_kernel(x, y, n, NB: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(x + o, mask=o < n) * 5 + NB, mask=o < n)


class Faulty:
    """NB = cdiv(n, 128) becomes 2 at 129 tokens; warmed at 64."""

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def bucket(self, n):
        return triton.cdiv(n, 128)

    def forward(self, n):
        def grid(meta):
            return (triton.cdiv(n, meta["BLOCK"]),)

        tuned_kernel[grid](self.x, self.y, n, self.bucket(n))


class Clean(Faulty):
    """One bucket."""

    def bucket(self, n):
        return 1
