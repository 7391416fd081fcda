"""FreeToken's in-process engine, booted with dummy weights and served by prompt length.

Owns the boot arguments and the prompts. Knows nothing of jitwatch. FreeToken warms itself up
while it boots, so there is no `warmup()`.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import tempfile
from pathlib import Path
from typing import Any, Protocol

from freetoken.core import SamplingParams
from freetoken.llm import LLM

from examples.freetoken.make_config import version_parts, write_model

NUM_LAYERS = 8
#: Fixed, because a number taken from free memory would change the variants between boots.
KV_TOKENS = 1 << 22
MAX_RUNNING_REQUESTS = 8
#: Ordinary ids of the vocabulary (248,320), below the special ones.
FIRST_TOKEN_ID, NUM_TOKEN_IDS = 1_000, 200_000


class Request(Protocol):
    """What this target reads of a request."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def output_tokens(self) -> int: ...


def boot_arguments(version: str) -> dict[str, Any]:
    """What `LLM` takes beside the model folder: 0.1.3 renamed one argument."""
    moe = "moe_strategy" if version_parts(version) >= (0, 1, 3) else "moe_backend"
    return {
        "use_dummy_weight": True,
        "max_running_req": MAX_RUNNING_REQUESTS,
        "num_page_override": KV_TOKENS,  # a page holds one token with this attention backend
        "attention_backend": "triton",
        moe: "fused",
    }


class Target:
    """One engine in this process; requests are served one at a time."""

    def __init__(self) -> None:
        version = importlib.metadata.version("freetoken")
        self._folder = tempfile.TemporaryDirectory(prefix="freetoken-model-")
        folder = Path(self._folder.name)
        write_model(folder, num_layers=NUM_LAYERS, freetoken_version=version)
        self.llm = LLM(str(folder), **boot_arguments(version))
        self._served = itertools.count()

    def serve(self, request: Request) -> list[int]:
        """Generate `output_tokens` token ids, greedily."""
        # FreeToken forwards only what its prefix cache does not hold, and what is forwarded decides
        # the variants: a first token of its own keeps every prompt out of that cache.
        start = next(self._served)
        prompt = [
            FIRST_TOKEN_ID + (start + i) % NUM_TOKEN_IDS for i in range(request.prompt_tokens)
        ]
        greedy = SamplingParams(temperature=0.0, max_tokens=request.output_tokens, ignore_eos=True)
        (answer,) = self.llm.generate([prompt], greedy)
        return answer["token_ids"]

    def close(self) -> None:
        self.llm.shutdown()
        self._folder.cleanup()
