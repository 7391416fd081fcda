"""The overhead benchmark's pairing, against the fake libcupti: it needs no GPU to be wrong."""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import types

import pytest

from jitwatch.sources.driver import DriverHook
from tests.fake_cuda import ONE_KERNEL, build_fake, open_fake

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture
def benchmark(load_benchmark, monkeypatch, tmp_path):
    """The script as a module, armed through the fake, with a GPU that is always done."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    path = build_fake(tmp_path / "libcupti.so.13")
    module = load_benchmark("hook_overhead")
    cuda = types.SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(module, "torch", types.SimpleNamespace(cuda=cuda))
    arm = functools.partial(DriverHook.arm, cupti=path)
    monkeypatch.setattr(module, "DriverHook", types.SimpleNamespace(arm=arm))
    module.fake = open_fake(path)
    load = functools.partial(module.fake.fake_cuModuleLoadData, ONE_KERNEL, len(ONE_KERNEL))
    module.works = {"load": module.Work(load, 10)}
    return module


def test_pairs_of_one_process_arm_and_disarm(benchmark):
    pairs, refused = benchmark.pairs_in_one_process(benchmark.works, 3)
    assert refused == ""
    assert [list(pair) for pair in pairs] == [["off", "on"], ["on", "off"], ["off", "on"]]
    result = benchmark.summary(pairs, "load")
    assert result["off_us"] > 0
    assert result["speed_ratio_95"][0] <= result["speed_ratio"] <= result["speed_ratio_95"][1]


def test_a_refused_second_arming_is_told_and_a_refused_first_one_ends_it(benchmark, capsys):
    plain = benchmark.time_round
    rounds = []

    def then_refuse(works):
        rounds.append(1)
        if len(rounds) == 3:  # the warm-up, off, on: then the driver gives no more
            benchmark.fake.fake_set_taken(1)
        return plain(works)

    benchmark.time_round = then_refuse
    pairs, refused = benchmark.pairs_in_one_process(benchmark.works, 3)
    assert len(pairs) == 1
    assert "another tool holds CUPTI's only subscription: cuptiSubscribe returned 39" in refused
    with pytest.raises(SystemExit) as caught:
        benchmark.pairs_in_one_process(benchmark.works, 3)
    assert caught.value.code == 2
    assert "another tool holds CUPTI's only subscription" in capsys.readouterr().err


def test_a_hook_that_saw_nothing_measured_nothing(benchmark, capsys):
    benchmark.works["load"] = benchmark.Work(lambda: None, 10)
    with pytest.raises(SystemExit):
        benchmark.pairs_in_one_process(benchmark.works, 1)
    assert "the armed hook saw no module load" in capsys.readouterr().err


def test_pairs_of_processes_alternate_and_a_failed_one_ends_it(benchmark, monkeypatch, capsys):
    stub = """
        import sys
        state = sys.argv[sys.argv.index("--child") + 1]
        if "--launches" in sys.argv and "666" in sys.argv:
            sys.exit("the reason")
        only = sys.argv[sys.argv.index("--only") + 1:]
        if only != ["module_load_and_unload", "engine_decode"]:
            sys.exit(f"asked for {only}")
        if sys.argv[sys.argv.index("--decode-tokens") + 1] != "7":
            sys.exit("decoded tokens weren't handed on")
        print("noise")
        print('{"load": %d}' % (2 if state == "on" else 1))
    """
    real = benchmark.subprocess.run

    def run(command, **options):
        code = "\n".join(line[8:] for line in stub.splitlines())
        return real([sys.executable, "-c", code, *command[2:]], **options)

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    only = ["module_load_and_unload", "engine_decode"]
    options = argparse.Namespace(pairs=2, launches=5, loads=5, decode_tokens=7, only=only)
    pairs = benchmark.pairs_of_processes(options)
    assert pairs == [{"off": {"load": 1}, "on": {"load": 2}}] * 2
    assert [list(pair) for pair in pairs] == [["off", "on"], ["on", "off"]]
    assert benchmark.summary(pairs, "load")["speed_ratio"] == 0.5
    options.launches = 666
    with pytest.raises(SystemExit):
        benchmark.pairs_of_processes(options)
    assert "the process with the hook off exited 1; see above" in capsys.readouterr().err


def options_of(benchmark, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hook_overhead.py", *arguments])
    return benchmark.parse()


@pytest.mark.parametrize(
    ("arguments", "works"),
    [
        ([], ["triton_launch", "matmul_512_bf16", "module_load_and_unload"]),
        (
            ["--engine"],
            ["triton_launch", "matmul_512_bf16", "module_load_and_unload", "engine_decode"],
        ),
        (["--only", "engine_decode"], ["engine_decode"]),
        (
            ["--only", "module_load_and_unload", "matmul_512_bf16"],
            ["matmul_512_bf16", "module_load_and_unload"],
        ),
        (
            ["--engine", "--only", "triton_launch"],
            ["triton_launch", "engine_decode"],
        ),
    ],
)
def test_the_engine_is_built_only_where_it_is_asked_for(benchmark, monkeypatch, arguments, works):
    assert options_of(benchmark, monkeypatch, *arguments).only == works


def test_sizes_are_small_where_it_is_quick(benchmark, monkeypatch):
    quick = options_of(benchmark, monkeypatch, "--quick", "--pairs", "33")
    assert (quick.pairs, quick.launches, quick.loads, quick.decode_tokens) == (33, 2_000, 50, 64)
    full = options_of(benchmark, monkeypatch)
    assert (full.pairs, full.launches, full.loads, full.decode_tokens) == (11, 20_000, 300, 192)


def test_works_that_load_nothing_are_refused_and_the_hint_helps(benchmark, monkeypatch, capsys):
    with pytest.raises(SystemExit) as caught:
        options_of(benchmark, monkeypatch, "--only", "triton_launch")
    assert caught.value.code == 2
    assert capsys.readouterr().err == (
        "hook_overhead: --only triton_launch: add "
        "module_load_and_unload or engine_decode: a hook that sees no load proves nothing\n"
    )
    mended = ["--only", "triton_launch", "module_load_and_unload"]
    options_of(benchmark, monkeypatch, *mended)
    with pytest.raises(SystemExit):
        options_of(benchmark, monkeypatch, "--decode-tokens", "0")
    assert "--decode-tokens 0: give at least 1" in capsys.readouterr().err


def test_decode_alone_is_measured_under_a_hook_that_saw_a_load(
    benchmark, load_benchmark, monkeypatch
):
    pytest.importorskip("tokenizers")
    timed = load_benchmark("timed_requests")
    times = timed.Times(first_token_s=1.0, request_s=1.192)
    asked = []

    def serve(token_ids, output_tokens):
        asked.append((len(token_ids), output_tokens))
        return times

    engine = types.SimpleNamespace(serve=serve)
    works = {"engine_decode": timed.Decode(engine, benchmark.works["load"].call, 128, 192)}
    pairs, refused = benchmark.pairs_in_one_process(works, 2)
    assert (refused, len(pairs)) == ("", 2)
    assert asked == [(128, 193)] * 5
    options = options_of(benchmark, monkeypatch, "--only", "engine_decode")
    found = benchmark.summaries(pairs, options)
    decode = found.pop("engine_decode")
    assert found == {
        "decode_tokens": 192,
        "prompt_tokens": 128,
        "model": "qwen3.6-35b-a3b",
        "layers": 8,
        "dtype": "bfloat16",
    }
    assert (decode["off_us"], decode["speed_ratio"]) == (1000.0, 1.0)
    assert decode["off_tokens_per_s"] == decode["on_tokens_per_s"] == 1000.0


def test_a_slower_decode_is_a_ratio_below_one(benchmark, monkeypatch):
    pairs = [{"off": {"engine_decode": 990.0}, "on": {"engine_decode": 1000.0}}] * 11
    options = options_of(benchmark, monkeypatch, "--only", "engine_decode")
    decode = benchmark.summaries(pairs, options)["engine_decode"]
    assert (decode["speed_ratio"], decode["speed_ratio_95"]) == (0.99, [0.99, 0.99])
    assert (decode["off_tokens_per_s"], decode["on_tokens_per_s"]) == (1010.1, 1000.0)


def test_without_the_engine_the_result_is_what_it_was(benchmark, monkeypatch):
    works = ["triton_launch", "matmul_512_bf16", "module_load_and_unload"]
    pairs = [{state: dict.fromkeys(works, 1.0) for state in ("off", "on")}]
    found = benchmark.summaries(pairs, options_of(benchmark, monkeypatch))
    assert list(found) == ["launches", "loads", *works]
    figures = ["off_us", "on_us", "speed_ratio", "speed_ratio_95", "cost_us", "cost_us_95"]
    assert list(found["triton_launch"]) == figures
