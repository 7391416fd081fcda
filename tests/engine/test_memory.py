"""Out of memory, in the engine's words."""

from __future__ import annotations

import pytest
import torch

from engine import LLM, ConfigError, RequestError, SamplingParams
from engine.memory import enough_memory

# What torch's allocators say: of a GPU, of a CPU, of a size that is no number of bytes any more.
FAILURES = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 TiB."),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to …"),
    RuntimeError("Storage size calculation overflowed with sizes=[4611686018427387904]"),
    MemoryError(),
]


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", FAILURES)
def test_no_room(error):
    with pytest.raises(ConfigError, match=r"^too large$"), enough_memory(ConfigError("too large")):
        failing(error)()


@pytest.mark.parametrize("error", [RuntimeError("size mismatch"), ValueError("can't allocate")])
def test_other_errors_stay(error):
    with pytest.raises(type(error), match=str(error)), enough_memory(ConfigError("too large")):
        failing(error)()


def test_no_room_for_a_cache(monkeypatch):
    monkeypatch.setattr("engine.runner.make_kv_layer", failing(FAILURES[0]))
    with pytest.raises(ConfigError) as caught:
        LLM("tiny", device="cpu", kv_tokens=64)
    assert str(caught.value) == (
        "the weights of 'tiny' and a cache of kv_tokens=64 don't fit into the memory of cpu; "
        "lower kv_tokens, or keep fewer layers with layers=N"
    )
    # Only the fourth layer of this model has such a cache.
    assert len(LLM("tiny", device="cpu", kv_tokens=64, layers=3).config.layers) == 3


def test_no_room_for_a_prompt(monkeypatch):
    llm = LLM("tiny", device="cpu", kv_tokens=64)
    free = list(llm.pool.free)
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    prefill = llm.runner.prefill

    def too_much(sequence, chunk_tokens):
        if chunk_tokens > 2:
            raise FAILURES[0]
        return prefill(sequence, chunk_tokens)

    monkeypatch.setattr(llm.runner, "prefill", too_much)
    with pytest.raises(RequestError) as caught:
        llm.generate([1, 2, 3], params)
    assert str(caught.value) == (
        "cpu ran out of memory for a prompt of 3 tokens in chunks of 8192; "
        "lower max_prefill_tokens or kv_tokens"
    )
    assert llm.pool.free == free
    llm.max_prefill_tokens = 2
    assert len(llm.generate([1, 2, 3], params)[0].token_ids) == 2
