"""The stopwatch around the engine, by a clock that is set and an engine that isn't there."""

from __future__ import annotations

import types

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")


@pytest.fixture
def timed(load_benchmark, monkeypatch):
    """The module, on a clock that stands still unless `timed.now` is moved."""
    module = load_benchmark("timed_requests")
    module.now = 100.0
    monkeypatch.setattr(module, "time", types.SimpleNamespace(perf_counter=lambda: module.now))
    return module


@pytest.fixture
def engine(timed, monkeypatch):
    """A TimedEngine: 3 s to the first token, 0.5 s for each of the others."""

    class SlowLLM:
        def __init__(self, model, *, observer, layers):
            self.model, self.observer, self.layers = model, observer, layers
            self.asked = []

        def generate(self, prompts, params):
            self.asked.append((prompts, params))
            timed.now += 3
            self.observer.first_token("0")
            for _ in range(params.max_tokens - 1):
                with self.observer.step("decode", ("0",), 1):
                    timed.now += 0.5

    monkeypatch.setattr(timed, "LLM", SlowLLM)
    return timed.TimedEngine("a model", layers=2)


def test_a_request_is_timed_to_its_first_token_and_to_its_end(timed, engine):
    assert (engine.llm.model, engine.llm.layers) == ("a model", 2)
    assert engine.serve([7, 8], 3) == timed.Times(first_token_s=3.0, request_s=4.0)
    [(prompts, params)] = engine.llm.asked
    assert prompts == [[7, 8]]
    assert (params.temperature, params.max_tokens, params.ignore_eos) == (0, 3, True)


def test_one_token_is_the_first(timed, engine):
    assert engine.serve([7], 1) == timed.Times(first_token_s=3.0, request_s=3.0)


def test_a_decode_leaves_the_prefill_and_the_load_out(timed, engine):
    loads = []

    def load():
        loads.append(timed.now)
        timed.now += 50

    work = timed.Decode(engine, load, prompt_tokens=4, decoded_tokens=8)
    assert work.micros() == pytest.approx(500_000)
    assert work.micros() == pytest.approx(500_000)
    assert loads == [100.0, 157.0]
    first, second = engine.llm.asked
    assert first[0] == second[0] == [[5, 6, 7, 8]]
    assert first[1].max_tokens == 9


def test_the_engine_tells_its_observer(load_benchmark):
    """The real one, in plain torch: the first token comes before the end."""
    timed = load_benchmark("timed_requests")
    engine = timed.TimedEngine("tiny", device="cpu", layers=1, kv_tokens=64)
    times = engine.serve([1, 2, 3], 4)
    assert 0 < times.first_token_s < times.request_s
