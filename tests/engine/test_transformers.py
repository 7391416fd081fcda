"""The engine says what transformers says, for every architecture, on random tiny checkpoints."""

from __future__ import annotations

import random

import pytest
import torch

from engine import LLM, SamplingParams
from engine.batch import Chunk
from engine.request import Sequence
from tests.engine.checkpoints import (
    ARCHITECTURES,
    VOCAB,
    all_logits,
    greedy,
    write_checkpoint,
)

SEEDS = (0, 1, 2, 3)
DECODES = 32
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request):
    return request.param


@pytest.fixture(scope="module", params=SEEDS)
def pair(request, architecture, tmp_path_factory):
    """The oracle and the engine on one checkpoint."""
    directory = tmp_path_factory.mktemp(architecture)
    oracle = write_checkpoint(architecture, request.param, directory)
    return oracle, LLM(directory, device="cpu", kv_tokens=256), request.param


def tokens(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def logits_of(llm: LLM, token_ids: list[int], chunks: list[int]) -> torch.Tensor:
    """The engine's logits after every token, run in chunks of these sizes."""
    sequence = Sequence(token_ids, len(token_ids), SamplingParams(), 0)
    sequence.pages = llm.pool.take(len(token_ids))
    # The slot's old content must not matter.
    sequence.state_index = 1
    rows = []
    with torch.inference_mode():
        for count in chunks:
            batch = llm.runner.batch([Chunk(sequence, count)])
            assert batch.is_decode == (count == 1 and sequence.num_cached > 0)
            hidden = llm.runner.model.hidden(batch, llm.runner.caches)
            rows.append(hidden @ llm.runner.model.head.T)
            sequence.num_cached += count
    llm.pool.give_back(sequence.pages)
    assert sequence.num_cached == len(token_ids)
    return torch.cat(rows)


@pytest.mark.parametrize("length", [1, 63, 80])
def test_one_shot(pair, length):
    oracle, llm, seed = pair
    token_ids = tokens(seed, length)
    difference = logits_of(llm, token_ids, [length]) - all_logits(oracle, token_ids)
    assert difference.abs().max() <= TOLERANCE


def test_chunks_continuation_and_decodes(pair):
    oracle, llm, seed = pair
    chunks = [17, 1, 2, 40, 5] + [1] * DECODES
    token_ids = tokens(seed + 100, sum(chunks))
    expected = all_logits(oracle, token_ids)
    # Logits of a size that makes 1e-4 a small difference.
    assert expected.abs().max() > 0.5
    assert (logits_of(llm, token_ids, chunks) - expected).abs().max() <= TOLERANCE


def test_greedy_tokens(pair):
    oracle, llm, seed = pair
    prompt = tokens(seed + 200, 23)
    params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
    [output] = llm.generate([prompt], params)
    expected = greedy(oracle, prompt, 64)
    assert output.token_ids == expected
    logprobs = all_logits(oracle, prompt + expected).log_softmax(-1)
    for place, (token, logprob) in enumerate(zip(expected, output.logprobs, strict=True)):
        expected_logprob = logprobs[len(prompt) - 1 + place, token].item()
        assert logprob == pytest.approx(expected_logprob, abs=TOLERANCE)
