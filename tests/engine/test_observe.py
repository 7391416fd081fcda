"""An observer is told of every forward of a request, and of nothing else."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from engine import LLM, ConfigError, RequestError, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)


class Told:
    def __init__(self):
        self.calls = []

    @contextmanager
    def step(self, phase, requests, tokens):
        self.calls.append((phase, tuple(requests), tokens))
        yield
        self.calls.append("over")

    def first_token(self, request):
        self.calls.append(("first", request))


def served(prompts, request_ids=None, **options):
    told = Told()
    llm = LLM("tiny", device="cpu", kv_tokens=128, observer=told, **options)
    llm.generate(prompts, PARAMS, request_ids)
    return told.calls


def test_a_prompt_and_its_decodes():
    assert served([[1, 2, 3]], ["a"]) == [
        ("prefill", ("a",), 3),
        "over",
        ("first", "a"),
        ("decode", ("a",), 1),
        "over",
        ("decode", ("a",), 1),
        "over",
    ]


def test_each_chunk_is_a_step():
    calls = served([[1] * 20], ["a"], max_prefill_tokens=8)
    assert [call for call in calls if call != "over"][:4] == [
        ("prefill", ("a",), 8),
        ("prefill", ("a",), 8),
        ("prefill", ("a",), 4),
        ("first", "a"),
    ]


def test_requests_are_counted_where_they_have_no_names():
    told = Told()
    llm = LLM("tiny", device="cpu", kv_tokens=128, observer=told)
    llm.generate([[1], [2]], PARAMS)
    llm.generate([3], PARAMS)
    assert [c[1] for c in told.calls if c[0] == "first"] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("request_ids", "text"),
    [
        (["a"], "2 prompts and 1 request_ids; give one each"),
        (["a", "a"], "request_ids has 'a' twice; an id names one request"),
        (["a", 3], "request_ids must be a list of strings"),
        ("ab", "request_ids must be a list of strings"),
        (7, "request_ids must be a list of strings"),
    ],
)
def test_names_that_do_not_fit_are_refused(request_ids, text):
    with pytest.raises(RequestError) as caught:
        served([[1], [2]], request_ids)
    assert str(caught.value) == text


def test_tokens_are_the_same_observed_or_not():
    plain = LLM("tiny", device="cpu", kv_tokens=128).generate([[5, 6, 7]], PARAMS)
    told = LLM("tiny", device="cpu", kv_tokens=128, observer=Told()).generate([[5, 6, 7]], PARAMS)
    assert plain == told


def test_an_observer_that_can_not_be_told_is_refused():
    deaf = Told()
    deaf.first_token = None
    for observer, lacks in ((7, "step and no first_token"), (deaf, "first_token")):
        with pytest.raises(ConfigError, match=f": has no {lacks}; engine.observe.Observer says"):
            LLM("tiny", device="cpu", kv_tokens=128, observer=observer)


@pytest.mark.parametrize(("kv_tokens", "longest"), [(128, 63), (64, 63), (48, 39)])
def test_the_longest_prompt_is_served_and_one_more_is_not(kv_tokens, longest):
    llm = LLM("tiny", device="cpu", kv_tokens=kv_tokens, max_model_len=64)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    assert llm.longest_prompt(9) == longest
    llm.generate([[1] * longest], params)
    with pytest.raises(RequestError):
        llm.generate([[1] * (longest + 1)], params)
