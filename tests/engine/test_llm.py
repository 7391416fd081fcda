"""Requests to the engine: what they give, and what is refused before anything runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from engine import LLM, ConfigError, RequestError, SamplingParams
from tests.engine.checkpoints import write_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def llm():
    return LLM("tiny", device="cpu", kv_tokens=64, max_model_len=48)


def tokens(llm, prompts, params=GREEDY):
    return [output.token_ids for output in llm.generate(prompts, params)]


def test_one_prompt_or_several(llm):
    alone = tokens(llm, [[3, 4, 5]])
    assert len(alone[0]) == 6
    assert tokens(llm, [3, 4, 5]) == alone
    assert tokens(llm, [[3, 4, 5], [9], [3, 4, 5]])[::2] == alone * 2
    assert llm.generate([]) == []


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple, range])
def test_any_integers_are_token_ids(llm, make):
    ids = range(2, 6) if make is range else [2, 3, 4, 5]
    prompt = ids if make is range else make(ids)
    assert tokens(llm, [prompt]) == tokens(llm, [list(ids)])
    assert tokens(llm, prompt) == tokens(llm, [list(ids)])


def test_parameters_for_each_prompt(llm):
    short = SamplingParams(temperature=0, max_tokens=2)
    assert [len(t) for t in tokens(llm, [[1], [1]], [short, GREEDY])] == [2, 6]
    with pytest.raises(
        RequestError, match=r"^2 prompts and 1 sampling parameters; give one for all, or one each$"
    ):
        llm.generate([[1], [1]], [short])


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1], []], "prompt 1 is empty; give it at least one token"),
        ([[1, 512]], "prompt 0: token id 512 at place 1 is outside the vocabulary of 512"),
        ([[-1]], "prompt 0: token id -1 at place 0 is outside the vocabulary of 512"),
        ([[True]], "prompt 0: token id True is not an integer"),
        ([[1.0]], "prompt 0: token id 1.0 is not an integer"),
        ([[None]], "prompt 0: token id None is not an integer"),
        ([[[1]]], "prompt 0: token id [1] is not an integer"),
        ([None], "prompt 0 is a NoneType; give a text or a list of token ids"),
        (7, "prompts is a int; give texts or lists of token ids"),
        (
            [1, [2]],
            "prompts mixes token ids and prompts; put each prompt's ids into a list of their own",
        ),
        (
            "hello",
            "prompt 0 is a text, and the model came without a tokenizer.json; give token ids",
        ),
        (
            [[1] * 48],
            "prompt 0 has 48 tokens; with one to generate that is beyond the context of 48. "
            "Shorten it or raise max_model_len, up to 4096",
        ),
    ],
)
def test_what_cannot_be_served_is_refused(llm, prompts, message):
    free = list(llm.pool.free)
    with pytest.raises(RequestError) as caught:
        llm.generate(prompts, GREEDY)
    assert str(caught.value) == message
    assert llm.pool.free == free


def test_more_tokens_than_pages():
    llm = LLM("tiny", device="cpu", kv_tokens=32)
    params = SamplingParams(temperature=0, max_tokens=20)
    with pytest.raises(RequestError) as caught:
        llm.generate([[1] * 20], params)
    assert str(caught.value) == (
        "prompt 0 needs 3 pages of 16 tokens for its 20 tokens and max_tokens=20; the cache has 2. "
        "Raise kv_tokens or lower max_tokens"
    )
    lowered = SamplingParams(temperature=0, max_tokens=12)
    assert len(llm.generate([[1] * 20], lowered)[0].token_ids) == 12
    raised = LLM("tiny", device="cpu", kv_tokens=40)
    assert len(raised.generate([[1] * 20], params)[0].token_ids) == 20


def test_a_prompt_longer_than_the_cache():
    llm = LLM("tiny", device="cpu", kv_tokens=32)
    with pytest.raises(RequestError) as caught:
        llm.generate([[1] * 32], GREEDY)
    # Lower max_tokens would not help.
    assert str(caught.value) == (
        "prompt 0 needs 3 pages of 16 tokens for its 32 tokens and max_tokens=6; the cache has 2. "
        "Raise kv_tokens or shorten the prompt"
    )
    shorter = SamplingParams(temperature=0, max_tokens=1)
    assert len(llm.generate([[1] * 31], shorter)[0].token_ids) == 1
    raised = LLM("tiny", device="cpu", kv_tokens=48)
    assert len(raised.generate([[1] * 32], GREEDY)[0].token_ids) == 6


def test_a_prompt_longer_than_the_context(llm):
    with pytest.raises(RequestError, match=r"Shorten it or raise max_model_len, up to 4096$"):
        llm.generate([[1] * 48], GREEDY)
    assert len(tokens(llm, [[1] * 47])[0]) == 1
    raised = LLM("tiny", device="cpu", kv_tokens=64, max_model_len=49)
    assert len(tokens(raised, [[1] * 48])[0]) == 1
    whole = LLM("tiny", device="cpu", kv_tokens=64)
    with pytest.raises(RequestError) as caught:
        whole.generate([[1] * 4096], GREEDY)
    assert str(caught.value) == (
        "prompt 0 has 4096 tokens; with one to generate that is beyond the context of 4096. "
        "Shorten it"
    )


def test_nothing_runs_unless_everything_can(llm, monkeypatch):
    served = []
    monkeypatch.setattr(llm, "serve", served.append)
    with pytest.raises(RequestError, match="prompt 2 is empty"):
        llm.generate([[1], [2], []], GREEDY)
    assert served == []
    llm.generate([[1], [2]], GREEDY)
    assert [sequence.token_ids for sequence in served] == [[1], [2]]


def test_why_a_text_ends(llm):
    [whole] = llm.generate([[8, 9]], GREEDY)
    assert whole.finish_reason == "length"
    third = whole.token_ids[2]
    first_time = whole.token_ids.index(third) + 1
    stop = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, stop_token_ids=[third])
    [stopped] = llm.generate([[8, 9]], stop)
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids == whole.token_ids[:first_time]
    assert len(stopped.logprobs) == first_time
    [full] = llm.generate([[8] * 45], SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
    assert (len(full.token_ids), full.finish_reason) == (3, "length")


def test_the_end_token_ends_unless_ignored(llm, monkeypatch):
    [whole] = llm.generate([[8, 9]], GREEDY)
    ended = replace(llm.config, eos_token_ids=(511, whole.token_ids[0]))
    monkeypatch.setattr(llm, "config", ended)
    ends = SamplingParams(temperature=0, max_tokens=6)
    [output] = llm.generate([[8, 9]], ends)
    assert (output.token_ids, output.finish_reason) == (whole.token_ids[:1], "stop")
    assert llm.generate([[8, 9]], GREEDY)[0].token_ids == whole.token_ids


def test_a_seed_decides_and_neighbours_do_not(llm):
    hot = SamplingParams(temperature=2.0, max_tokens=8, ignore_eos=True, seed=5)
    alone = tokens(llm, [[1, 2]], hot)
    assert tokens(llm, [[7, 7], [1, 2]], hot)[1:] == alone
    other = SamplingParams(temperature=2.0, max_tokens=8, ignore_eos=True, seed=6)
    assert tokens(llm, [[1, 2]], other) != alone
    free = SamplingParams(temperature=2.0, max_tokens=8, ignore_eos=True)
    assert tokens(llm, [[1, 2]], free) != tokens(llm, [[1, 2]], free)


def test_the_engines_seed_decides_where_a_request_has_none():
    free = SamplingParams(temperature=2.0, max_tokens=8, ignore_eos=True)
    # The same weights, and the numbers of another seed.
    engines = [LLM("tiny", device="cpu", kv_tokens=64) for _ in range(3)]
    engines[2].random.seed(1)
    first, second, third = (tokens(engine, [[1], [1]], free) for engine in engines)
    assert first == second != third
    assert first[0] != first[1]


@pytest.mark.parametrize("chunk", [1, 7, 16, 32, 33])
def test_chunks_of_a_prompt_change_nothing(llm, chunk):
    chunked = LLM("tiny", device="cpu", kv_tokens=64, max_prefill_tokens=chunk)
    prompt = list(range(5, 38))
    [whole], [parts] = llm.generate([prompt], GREEDY), chunked.generate([prompt], GREEDY)
    assert parts.token_ids == whole.token_ids
    assert parts.logprobs == pytest.approx(whole.logprobs, abs=1e-4)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33])
def test_what_the_caches_held_before_does_not_matter(llm, length, monkeypatch):
    prompt = list(range(4, 4 + length))
    for chunk in (8192, 7):
        monkeypatch.setattr(llm, "max_prefill_tokens", chunk)
        expected = llm.generate([prompt], GREEDY)
        for cache in llm.runner.caches:
            for name in cache.__slots__:
                getattr(cache, name).fill_(float("nan"))
        assert llm.generate([prompt], GREEDY) == expected
        assert all(map(math.isfinite, expected[0].logprobs))


@pytest.mark.parametrize("step", ["prefill", "decode"])
def test_pages_come_back_when_serving_raises(llm, monkeypatch, step):
    free, expected = list(llm.pool.free), tokens(llm, [[1, 2]])

    def broken(*_):
        assert len(llm.pool.free) < len(free)
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(llm.runner, step, broken)
        with pytest.raises(RuntimeError, match="out of luck"):
            llm.generate([[1, 2]], GREEDY)
    assert llm.pool.free == free
    assert tokens(llm, [[1, 2]]) == expected


def test_texts_with_a_tokenizer(tmp_path):
    write_checkpoint("LlamaForCausalLM", 0, tmp_path)
    words = {"a": 3, "b": 4, **{f"w{i}": i for i in range(97) if i not in (3, 4)}}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    # A file may ask for both; a prompt is all of its text and nothing else.
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    llm = LLM(tmp_path, device="cpu", kv_tokens=64)
    [text], [ids] = llm.generate("a b a", GREEDY), llm.generate([[3, 4, 3]], GREEDY)
    assert text.prompt_token_ids == [3, 4, 3]
    assert text.token_ids == ids.token_ids
    assert text.text == tokenizer.decode(text.token_ids)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a tokenizer"):
        LLM(tmp_path, device="cpu", kv_tokens=64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_tokens": 0}, "kv_tokens=0: must be a whole number from 1 to 1073741824"),
        ({"kv_tokens": "many"}, "kv_tokens='many': must be a whole number from 1 to 1073741824"),
        ({"page_size": 24}, "page_size=24: must be a power of two, 16 or more"),
        (
            {"max_prefill_tokens": 0},
            "max_prefill_tokens=0: must be a whole number from 1 to 1073741824",
        ),
        (
            {"max_model_len": 5000},
            "max_model_len=5000: Qwen3_5MoeForCausalLM was made for 4096; "
            "leave it out to have them all",
        ),
        ({"seed": -1}, "seed=-1: must be a whole number from 0 to 2**63 - 1"),
        ({"dtype": "int8"}, "dtype 'int8': the engine runs bfloat16, float16, float32"),
        ({"device": "tpu"}, "device='tpu': must be auto, cpu, cuda or cuda:N"),
        ({"kernels": "fast"}, "kernels='fast': must be auto, fused or reference"),
        (
            {"layers": 9},
            "layers=9: Qwen3_5MoeForCausalLM has 4 layers here; give a number from 1 to 4",
        ),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ConfigError) as caught:
        LLM("tiny", **{"device": "cpu", **options})
    assert str(caught.value) == message


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="torch sees 0 GPUs here; device='cpu' works"):
        LLM("tiny", device="cuda")
    assert LLM("tiny", kv_tokens=16).device == "cpu"


def test_dtypes(llm):
    for dtype in ("bfloat16", torch.bfloat16, "float16"):
        model = LLM("tiny", device="cpu", kv_tokens=64, dtype=dtype)
        assert model.runner.model.embeddings.dtype != torch.float32
        assert len(tokens(model, [[1, 2, 3]])[0]) == 6


@pytest.mark.parametrize("prompts", [b"ab", {1, 2}, {1: 2}, [{1: 2}], [b"ab"], ["\ud800"]])
def test_what_is_no_prompt_is_refused(llm, prompts):
    with pytest.raises(RequestError, match=r"^prompt"):
        llm.generate(prompts)


def test_the_smallest_numbers_still_draw(llm):
    coldest = SamplingParams(temperature=1e-300, top_p=1e-300, max_tokens=6, ignore_eos=True)
    assert tokens(llm, [[3, 4]], coldest) == tokens(llm, [[3, 4]])
