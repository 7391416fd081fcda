"""The engine at a real model's widths, as a target whose warmup visits every variant's start."""

from __future__ import annotations

from engine import LLM, SamplingParams
from engine.kernels.grouped_matmul import variant_starts

NUM_LAYERS = 4


class Target:
    """Greedy and sampled requests alternate: no parameter may make a variant."""

    def __init__(self):
        self.llm = LLM("qwen3.6-35b-a3b", device="cuda", layers=NUM_LAYERS, kv_tokens=8192)
        assert self.llm.config.moe is not None

    def warmup(self):
        moe = self.llm.config.moe
        for start in variant_starts(moe.top_k, moe.num_experts):
            self.generate(start, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))

    def generate(self, prompt_tokens, params):
        self.llm.generate([[1] * prompt_tokens], params)

    def serve(self, request):
        sampled = SamplingParams(
            temperature=0.8 * (request.prompt_tokens % 2),
            top_k=request.prompt_tokens % 3,
            top_p=1 - 0.1 * (request.prompt_tokens % 4),
            max_tokens=request.output_tokens,
            ignore_eos=True,
        )
        self.generate(request.prompt_tokens, sampled)


class OneToken(Target):
    """The same with a warmup of one token only."""

    def warmup(self):
        self.generate(1, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
