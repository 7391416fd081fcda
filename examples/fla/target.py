"""Two operations of flash-linear-attention's, called as an engine with linear attention calls them.

Owns the tensors and the two calls. Knows nothing of jitwatch: plain CUDA code, served by length.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from fla.modules.norm.l2norm import l2norm_fwd
from fla.ops.gated_delta_rule import chunk_gated_delta_rule

NUM_KEY_HEADS = 16
NUM_VALUE_HEADS = 32
HEAD_DIM = 128
WARMUP_TOKENS = 64
MAX_TOKENS = 4096


class Request(Protocol):
    """What this target reads of a request."""

    @property
    def prompt_tokens(self) -> int: ...


class Target:
    """The gated delta rule and an l2norm of its values: one request, bf16.

    Heads and their width are those of Qwen3.6-35B-A3B's linear-attention layers.
    """

    def __init__(self) -> None:
        def normal(num_heads: int) -> torch.Tensor:
            shape = (1, MAX_TOKENS, num_heads, HEAD_DIM)
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

        def gate() -> torch.Tensor:
            shape = (1, MAX_TOKENS, NUM_VALUE_HEADS)
            return torch.randn(shape, device="cuda", dtype=torch.bfloat16)

        # Allocated once: with one request in the batch, a slice of the first tokens is contiguous
        # and starts where the whole does, as an engine's own buffers would.
        self.q = normal(NUM_KEY_HEADS)
        self.k = F.normalize(normal(NUM_KEY_HEADS), dim=-1)
        self.v = normal(NUM_VALUE_HEADS)
        self.g = F.logsigmoid(gate())
        self.beta = gate().sigmoid()

    def warmup(self) -> None:
        self.forward(WARMUP_TOKENS)

    def serve(self, request: Request) -> None:
        self.forward(request.prompt_tokens)

    @torch.no_grad()
    def forward(self, num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the delta rule's output and the normalized values.

        Both are `[1, num_tokens, NUM_VALUE_HEADS, HEAD_DIM]`, bf16.

        Raises:
            ValueError: more tokens than were allocated.
        """
        if not 1 <= num_tokens <= MAX_TOKENS:
            raise ValueError(
                f"a prompt of {num_tokens} tokens; this target holds 1 to {MAX_TOKENS} "
                f"(MAX_TOKENS in examples/fla/target.py)"
            )
        v = self.v[:, :num_tokens]
        output, _ = chunk_gated_delta_rule(
            q=self.q[:, :num_tokens],
            k=self.k[:, :num_tokens],
            v=v,
            g=self.g[:, :num_tokens],
            beta=self.beta[:, :num_tokens],
        )
        normalized, _ = l2norm_fwd(v)
        torch.cuda.synchronize()
        return output, normalized
