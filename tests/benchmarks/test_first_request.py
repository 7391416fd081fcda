"""The first-request benchmark: its figures, its processes, and a whole start without a GPU."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
import time
import types

import pytest


@pytest.fixture
def benchmark(load_benchmark):
    """The script as a module."""
    return load_benchmark("first_request")


def figures(first_ms, later_ms, warmup_s=1.0, compiled=(3, 0, 0)):
    """What a child prints, with whole requests that take twice as long as their first token."""

    def times(ttft_ms):
        return {"ttft_ms": ttft_ms, "request_ms": 2 * ttft_ms}

    return {
        "imports_s": 2.0,
        "build_s": 0.5,
        "warmup_s": warmup_s,
        "ready_s": 2.5 + warmup_s,
        "compiled": dict(
            zip(("before_ready", "first_request", "later_requests"), compiled, strict=True)
        ),
        "first": times(first_ms),
        "later": [times(ms) for ms in later_ms],
    }


def test_starts_alternate_and_those_without_warmup_come_last(benchmark):
    assert [str(start) for start in benchmark.plan(2)] == [
        "cold cache, warmup",
        "warm cache, warmup",
        "warm cache, warmup",
        "cold cache, warmup",
        "cold cache, without prefill warmup",
        "warm cache, without prefill warmup",
    ]


def test_a_start_is_compared_with_the_median_of_its_own_later_requests(benchmark):
    starts = [figures(12.0, [4, 6, 100]), figures(10.0, [10, 10, 10]), figures(9.0, [6, 6, 0.1])]
    assert benchmark.compare(starts, "ttft_ms") == {
        "first": 10.0,
        "later": 6.0,
        "ratio": 1.5,
        "ratio_range": [1.0, 2.0],
    }
    assert benchmark.compare(starts, "request_ms")["first"] == 20.0


def test_the_summary_has_medians_and_every_start(benchmark):
    starts = [
        figures(10.0, [10.0], warmup_s=30.0, compiled=(20, 0, 0)),
        figures(10.0, [10.0], warmup_s=10.0, compiled=(21, 1, 0)),
        figures(10.0, [10.0], warmup_s=20.0, compiled=(22, 2, 1)),
    ]
    found = benchmark.summary(starts)
    assert (found["warmup_s"], found["ready_s"]) == (20.0, 22.5)
    assert found["compiled"] == {"before_ready": 21, "first_request": 1, "later_requests": 0}
    assert found["ttft_ms"]["ratio"] == 1.0
    assert found["starts"] == starts


def test_each_kind_of_start_has_its_own_summary(benchmark):
    kinds = [("cold", True), ("warm", True), ("cold", False), ("warm", False), ("cold", True)]
    found = [
        (benchmark.Start(cache, warmed), figures(10.0 * (index + 1), [10.0]))
        for index, (cache, warmed) in enumerate(kinds)
    ]
    result = benchmark.collect(found)
    assert list(result) == ["cold", "warm", "without_prefill_warmup"]
    assert len(result["cold"]["starts"]) == 2
    assert result["cold"]["ttft_ms"]["first"] == 30.0
    assert result["warm"]["ttft_ms"]["first"] == 20.0
    without = result["without_prefill_warmup"]
    assert (without["cold"]["ttft_ms"]["ratio"], without["warm"]["ttft_ms"]["ratio"]) == (3.0, 4.0)


def test_a_start_in_words(benchmark):
    found = figures(6.25, [5.0, 5.5, 6.0], warmup_s=31.04, compiled=(23, 0, 0))
    assert benchmark.line_of(found) == (
        "ready after 33.5 s (imports 2.0, build 0.5, warmup 31.0; 23 compiles); "
        "first token 6.25 ms (0 compiles), later 5.50 ms"
    )


class CompilingEngine:
    """Compiles two kernels for its first request, and notes what it is asked."""

    def __init__(self, cache):
        self.cache, self.asked = cache, []

    def serve(self, token_ids, output_tokens):
        if not self.asked:
            for name in ("one", "two"):
                (self.cache / name).mkdir()
                (self.cache / name / f"{name}.cubin").touch()
                (self.cache / name / f"{name}.json").touch()
        self.asked.append((token_ids, output_tokens))
        return types.SimpleNamespace(first_token_s=0.001 * len(self.asked), request_s=0.5)


def test_later_requests_are_the_first_with_other_tokens(benchmark, tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "old.cubin").touch()
    engine = CompilingEngine(tmp_path)
    found = benchmark.serve_all(engine, tmp_path, already=1)
    assert found["compiled"] == {"before_ready": 0, "first_request": 2, "later_requests": 0}
    assert found["first"] == {"ttft_ms": 1.0, "request_ms": 500.0}
    assert [times["ttft_ms"] for times in found["later"]] == [*range(2, 11)]
    assert {(len(ids), outputs) for ids, outputs in engine.asked} == {(11, 2)}
    assert len({token for ids, _ in engine.asked for token in ids}) == 10 * 11


STUB = """
    import json, os, pathlib, sys
    seen = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
    found = json.loads(os.environ["FIGURES"])
    found["already"] = sorted(path.name for path in seen.glob("*"))
    found["warmup_max_len"] = os.environ.get("ENGINE_WARMUP_MAX_LEN")
    found["child"] = sys.argv[sys.argv.index("--child") + 1]
    found["spawned_s"] = float(sys.argv[sys.argv.index("--spawned-s") + 1])
    found["layers"] = sys.argv[sys.argv.index("--layers") + 1]
    seen.mkdir(exist_ok=True)
    (seen / "kernel").touch()
    if found["layers"] == "666":
        sys.exit("the reason")
    print("noise")
    print(json.dumps(found))
"""


@pytest.fixture
def stubbed(benchmark, monkeypatch):
    """The script, whose children leave one file in their cache and say what they were given."""
    real = subprocess.run

    def run(command, **options):
        return real([sys.executable, "-c", textwrap.dedent(STUB), *command[2:]], **options)

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    monkeypatch.setenv("FIGURES", json.dumps(figures(6.0, [5.0])))
    monkeypatch.setenv("ENGINE_WARMUP_MAX_LEN", "3")
    return benchmark


def options_of(**others):
    return argparse.Namespace(
        **{"model": "tiny", "device": "cpu", "layers": 2, "starts": 1, **others}
    )


def test_a_cold_start_has_an_empty_cache_and_a_warm_one_a_filled_one(stubbed, tmp_path, capfd):
    before = time.monotonic()
    found = stubbed.run_all(options_of(starts=2), tmp_path)
    after = time.monotonic()
    assert [start for start, _ in found] == stubbed.plan(2)
    for start, given in found:
        assert given["already"] == (["kernel"] if start.cache == "warm" else [])
        assert given["child"] == ("warmed" if start.warmed else "unwarmed")
        assert given["layers"] == "2"
        assert given["warmup_max_len"] is None
        assert before < given["spawned_s"] < after
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "first_request: this start isn't counted:"
    assert len(lines) == 1 + 1 + len(found)
    assert lines[-1].startswith("first_request: warm cache, without prefill warmup: ready after ")


def test_a_failed_start_ends_it(stubbed, tmp_path, capfd):
    with pytest.raises(SystemExit) as caught:
        stubbed.run_all(options_of(layers=666), tmp_path)
    assert caught.value.code == 2
    err = capfd.readouterr().err
    assert "the reason" in err
    assert "the start (cold cache, warmup) exited 1; see above" in err


def test_a_start_that_hangs_ends_it(benchmark, monkeypatch, tmp_path, capsys):
    def run(command, **options):
        raise subprocess.TimeoutExpired(command, options["timeout"])

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    with pytest.raises(SystemExit):
        benchmark.run_all(options_of(), tmp_path)
    assert "the start (cold cache, warmup) was not done after 240 s" in capsys.readouterr().err


def test_the_result_says_what_was_run_and_where(stubbed, monkeypatch, tmp_path, capsys):
    machine = {"gpu": "a GPU", "torch": "1", "triton": "2", "dtype": "bfloat16"}
    monkeypatch.setenv("FIGURES", json.dumps({**figures(6.0, [5.0]), "machine": machine}))
    out = tmp_path / "first-request.json"
    monkeypatch.setattr(
        sys, "argv", ["first_request.py", "--starts", "1", "--layers", "3", "--out", str(out)]
    )
    stubbed.main()
    result = json.loads(out.read_text())
    command = "python benchmarks/first_request.py --starts 1 --layers 3"
    assert result["environment"]["command"] == command
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert printed == result
    assert {name: result[name] for name in machine} == machine
    assert (result["model"], result["layers"]) == ("qwen3.6-35b-a3b", 3)
    assert result["warm"]["ttft_ms"]["ratio"] == 1.2
    assert all("machine" not in found for found in result["cold"]["starts"])


@pytest.mark.parametrize("name", ["starts", "layers"])
def test_nothing_to_measure_is_said(benchmark, monkeypatch, capsys, name):
    monkeypatch.setattr(sys, "argv", ["first_request.py", f"--{name}", "0"])
    with pytest.raises(SystemExit) as caught:
        benchmark.main()
    assert caught.value.code == 2
    assert f"--{name} 0: give at least 1" in capsys.readouterr().err


def test_a_whole_start_in_plain_torch(benchmark, tmp_path):
    pytest.importorskip("tokenizers")
    pytest.importorskip("triton")
    start = benchmark.Start("cold", warmed=False)
    found = benchmark.run_start(start, tmp_path / "cache", options_of(layers=1))
    assert found["machine"]["gpu"] is None
    assert found["machine"]["dtype"] == "float32"
    parts = (found["imports_s"], found["build_s"], found["warmup_s"])
    assert found["ready_s"] == pytest.approx(sum(parts), abs=0.001)
    assert found["imports_s"] > 0
    assert len(found["later"]) == 9
    assert 0 < found["first"]["ttft_ms"] < found["first"]["request_ms"]
    assert benchmark.summary([found])["ttft_ms"]["ratio"] > 0


def test_compiled_kernels_are_what_triton_writes_into_its_cache(
    benchmark, load_benchmark, monkeypatch, tmp_path
):
    pytest.importorskip("torch")
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = load_benchmark("hook_overhead").touch_kernel
    assert benchmark.compiled_kernels(tmp_path) == 0
    for block, count in ((128, 1), (128, 1), (256, 2)):
        signature = {"x": "*fp32", "block": "constexpr"}
        source = triton.compiler.ASTSource(kernel, signature, {"block": block})
        triton.compile(source, target=GPUTarget("cuda", 90, 32))
        assert benchmark.compiled_kernels(tmp_path) == count
