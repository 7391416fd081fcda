"""JW107: long prompts bring int64 indices where warmup had int32."""

import torch
import triton
import triton.language as tl

LONGEST = 4096


@triton.jit(do_not_specialize=["n"])
def gather_kernel(x, index, y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.load(index + o, mask=o < n, other=0)
    tl.store(y + o, tl.load(x + i, mask=o < n), mask=o < n)


class Faulty:
    """int64 above 128 tokens; warmed at 64."""

    def __init__(self):
        self.x = torch.empty(LONGEST, device="cuda")
        self.y = torch.empty(LONGEST, device="cuda")

    def warmup(self):
        self.forward(64)

    def serve(self, request):
        self.forward(request.prompt_tokens)

    def index(self, n):
        return torch.arange(n, device="cuda", dtype=torch.int64 if n > 128 else torch.int32)

    def forward(self, n):
        gather_kernel[(triton.cdiv(n, 256),)](self.x, self.index(n), self.y, n, BLOCK=256)


class Clean(Faulty):
    """int32 always."""

    def index(self, n):
        return super().index(n).to(torch.int32)
