"""The overhead benchmark's pairing, against the fake libcupti: it needs no GPU to be wrong."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import shutil
import sys
import types

import pytest

from jitwatch.sources.driver import DriverHook
from tests.fake_cuda import ONE_KERNEL, ROOT, build_fake, open_fake

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture
def benchmark(monkeypatch, tmp_path):
    """The script as a module, armed through the fake, with a GPU that is always done."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    path = build_fake(tmp_path / "libcupti.so.13")
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    spec = importlib.util.spec_from_file_location(
        "hook_overhead", ROOT / "benchmarks/hook_overhead.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hook_overhead", module)
    spec.loader.exec_module(module)
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
        print("noise")
        print('{"load": %d}' % (2 if state == "on" else 1))
    """
    real = benchmark.subprocess.run

    def run(command, **options):
        code = "\n".join(line[8:] for line in stub.splitlines())
        return real([sys.executable, "-c", code, *command[2:]], **options)

    monkeypatch.setattr(benchmark.subprocess, "run", run)
    options = argparse.Namespace(pairs=2, launches=5, loads=5)
    pairs = benchmark.pairs_of_processes(options)
    assert pairs == [{"off": {"load": 1}, "on": {"load": 2}}] * 2
    assert [list(pair) for pair in pairs] == [["off", "on"], ["on", "off"]]
    assert benchmark.summary(pairs, "load")["speed_ratio"] == 0.5
    options.launches = 666
    with pytest.raises(SystemExit):
        benchmark.pairs_of_processes(options)
    assert "the process with the hook off exited 1; see above" in capsys.readouterr().err
