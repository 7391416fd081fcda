"""Tiny models through the kernels say what transformers says."""

from __future__ import annotations

import pytest

from engine import LLM, SamplingParams
from tests.engine.checkpoints import ARCHITECTURES, all_logits, greedy, write_checkpoint
from tests.engine.test_transformers import logits_of, tokens

# float32 sums in another order than the oracle's, on logits of about 4.
TOLERANCE = 1e-4


@pytest.fixture(params=[0, 1, 2, 3])
def seed(request, device):
    if device == "cpu" and request.param:
        pytest.skip("needs a GPU")
    return request.param


@pytest.fixture(params=ARCHITECTURES)
def pair(request, device, seed, tmp_path):
    """The oracle on the CPU and the engine with its kernels."""
    oracle = write_checkpoint(request.param, seed, tmp_path)
    llm = LLM(tmp_path, device=device, dtype="float32", kernels="fused", kv_tokens=256)
    return oracle, llm


def test_logits_in_chunks_and_decodes(pair, seed, device):
    oracle, llm = pair
    decodes = 2 if device == "cpu" else 32
    chunks = [65, 1, 2, 18] + [1] * decodes
    token_ids = tokens(seed, sum(chunks))
    expected = all_logits(oracle, token_ids)
    assert (logits_of(llm, token_ids, chunks).cpu() - expected).abs().max() <= TOLERANCE


def test_greedy_tokens(pair, seed, device):
    oracle, llm = pair
    count = 4 if device == "cpu" else 64
    prompt = tokens(seed + 200, 23)
    # Twice: a captured decode step must not remember the request before.
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    for _ in range(2 if device == "cuda" else 1):
        [output] = llm.generate([prompt], params)
        assert output.token_ids == greedy(oracle, prompt, count)
