"""The target `engine`: its options, its steps in a run, and what is said where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jitwatch.errors import TargetError, UsageError
from jitwatch.targets.engine import (
    EngineOptions,
    EngineTarget,
    find_engine,
    options_for,
    parse_arguments,
)

ROOT = Path(__file__).parents[2]
SIM = ["--device", "sim:h200", "--keys-only", "--model", "tiny"]


def sweep(tmp_path, *options, cwd=ROOT, **environment):
    out, run = tmp_path / "report.json", tmp_path / "run"
    command = [sys.executable, "-m", "jitwatch", "sweep", *options]
    command += ["--json", str(out), "--run-dir", str(run)]
    where = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=where)
    return done, json.loads(out.read_text()) if out.exists() else None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=3", 3),
        ("a=0.5", 0.5),
        ("a=true", True),
        ("a=False", False),
        ("a=null", None),
        ("a=bfloat16", "bfloat16"),
        ("a=[1, 2]", [1, 2]),
        ("a=x=y", "x=y"),
        ("a=", ""),
    ],
)
def test_an_argument_is_a_literal_or_else_text(text, value):
    assert parse_arguments([text], "--engine-arg", "seed=1") == {"a": value}


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        (["a"], "--engine-arg a: no name=value"),
        (["=3"], "--engine-arg =3: no name=value"),
        (["a b=3"], "--engine-arg a b=3: no name=value"),
        (["a=1", "a=2"], "--engine-arg a=2: given twice"),
    ],
)
def test_what_is_no_argument_is_refused(pairs, text):
    with pytest.raises(UsageError) as caught:
        parse_arguments(pairs, "--engine-arg", "seed=1")
    assert str(caught.value).startswith(text)


def test_the_example_is_the_options_own():
    with pytest.raises(UsageError) as caught:
        parse_arguments(["a"], "--param", "temperature=0.8")
    assert caught.value.fix == "for example --param temperature=0.8"


@pytest.mark.parametrize("value", ["{1}", "b'x'", "1j", "1e999", "(1, 2)", "{1: 2}", "[{3}]"])
def test_what_json_can_not_hold_is_refused(value):
    with pytest.raises(UsageError, match="is no value that can be passed on"):
        parse_arguments([f"a={value}"], "--param", "temperature=0.8")


@pytest.mark.parametrize(
    ("pair", "why"),
    [
        ("model=tiny", "it has an option of its own, --model"),
        ("layers=1", "it has an option of its own, --layers"),
        ("device=cpu", "it has an option of its own, --device"),
        ("observer=null", "jitwatch itself is the observer"),
        ("dtype=float16", "it is given as an option as well"),
    ],
)
def test_an_argument_with_an_option_of_its_own_is_not_passed_on(pair, why):
    with pytest.raises(UsageError) as caught:
        options_for("engine", {"dtype": "float32"}, [pair])
    assert caught.value.why == why


def test_options_become_the_engines():
    given = {"layers": 2, "skip_prefill_warmup": True}
    assert options_for("engine", given, ["seed=3"]) == EngineOptions(
        layers=2, arguments={"seed": 3, "skip_prefill_warmup": True}
    )
    assert options_for("a:b", {}, []) == EngineOptions()


def test_each_request_has_its_steps_and_launches(tmp_path):
    done, report = sweep(
        tmp_path, *SIM, "--lengths", "5,40", "--engine-arg", "max_prefill_tokens=16"
    )
    assert done.returncode == 0, done.stderr
    short, long = report["requests"]
    assert short["phases"] == {"prefill": 1, "decode": 1}
    assert long["phases"] == {"prefill": 3, "decode": 1}
    assert [
        (step["phase"], step["tokens"]) for step in report["steps"] if step["requests"] == ["len40"]
    ] == [("prefill", 16), ("prefill", 16), ("prefill", 8), ("decode", 1)]
    assert 0 < short["launches"] < long["launches"]
    assert short["ttft_ms"] is None  # nothing ran
    assert report["ladder"][0]["prompt_tokens"] == 1
    assert "warmup_seconds" not in report["environment"]
    assert report["counts"]["warmup_variants"] == len(report["uses"]) > 10


def test_a_graphs_kernels_are_used_by_each_decode(tmp_path):
    _, report = sweep(tmp_path, *SIM, "--lengths", "5,6")
    decode = [
        use for use in report["uses"] if use["variant"]["kernel"] == "attention_update_kernel"
    ]
    assert [use["spans"] for use in decode] == [[[5, 6]]]


def test_parameters_reach_the_requests(tmp_path):
    done, report = sweep(tmp_path, *SIM, "--lengths", "5", "--param", "top_k=-1")
    assert done.returncode == 2
    assert "top_k=-1: must be" in report["requests"][0]["error"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--layers", "99"], "--target engine: layers=99: "),
        (["--model", "nonsense"], "--target engine: 'nonsense' is neither a preset"),
        (
            ["--engine-arg", "colour=red"],
            "--engine-arg colour=red: engine.LLM takes no such argument\n"
            "  why: it takes dtype, dummy_weights, seed, kv_tokens, ",
        ),
        (
            ["--param", "heat=1"],
            "--param heat=1: engine.SamplingParams takes no such argument\n"
            "  why: it takes temperature, ",
        ),
        (["--param", "max_tokens=9"], "--param max_tokens=9: engine.SamplingParams takes no such"),
        (["--engine-arg", "page_size=3"], "--target engine: page_size=3: must be a power of two"),
        (["--kv-tokens", "0"], "--target engine: kv_tokens=0"),
        (["--dtype", "int8"], "--target engine: dtype 'int8'"),
    ],
)
def test_what_the_engine_refuses_is_bad_usage(tmp_path, options, text):
    done, report = sweep(tmp_path, *SIM, "--lengths", "5", *options)
    assert (done.returncode, report) == (2, None)
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_the_engines_options_are_for_the_engine(tmp_path):
    target = ["--target", "tests.controls.integer_class:Clean"]
    for option in (["--layers", "2"], ["--engine-arg", "seed=1"], ["--skip-prefill-warmup"]):
        done, _ = sweep(tmp_path, "--lengths", "5", "--device", "sim:h200", *target, *option)
        assert done.returncode == 2
        assert "takes no option of the engine's" in done.stderr


def test_a_cap_that_is_no_length_is_told(tmp_path):
    done, _ = sweep(tmp_path, *SIM, "--lengths", "5", ENGINE_WARMUP_MAX_LEN="many")
    assert done.returncode == 2
    assert "ENGINE_WARMUP_MAX_LEN='many' in the environment" in done.stderr


def test_a_folder_without_the_engine_says_so(tmp_path):
    done, _ = sweep(tmp_path, *SIM, "--lengths", "5", cwd=tmp_path, PYTHONPATH=no_engine(tmp_path))
    assert done.returncode == 2
    assert "--target engine: there is no engine here" in done.stderr
    assert "--target module:attr" in done.stderr


def no_engine(tmp_path):
    """A search path with jitwatch and without the engine beside it."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "jitwatch").symlink_to(ROOT / "jitwatch")
    return str(site)


def test_somebody_elses_engine_is_not_taken_for_ours(tmp_path, monkeypatch):
    (tmp_path / "engine.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "engine", raising=False)
    with pytest.raises(TargetError, match="the package 'engine' here is not jitwatch's"):
        find_engine()
    monkeypatch.delitem(sys.modules, "engine", raising=False)


def test_the_cache_has_room_for_the_longest_request():
    from jitwatch.sweep import SweepOptions, engine_options

    def room(length, kv_tokens=None):
        engine = EngineOptions(kv_tokens=kv_tokens)
        options = SweepOptions("engine", (), (length,), Path(), Path(), engine=engine)
        return engine_options(options).kv_tokens

    assert (room(2560), room(100_000), room(100_000, 64)) == (65_536, 100_002, 64)


def test_a_default_engine_is_the_storys():
    assert EngineTarget().options == EngineOptions("qwen3.6-35b-a3b", None, "auto", None, {})
