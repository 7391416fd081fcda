"""`jitwatch run` on a real driver: it injects the hook, whatever the program is made of."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

from jitwatch.log import read_run
from tests.fake_cuda import ROOT

pytestmark = pytest.mark.gpu


@pytest.fixture
def jitwatch_run(tmp_path):
    def run(code, *options, command=None, name="program.py"):
        (tmp_path / name).write_text(textwrap.dedent(code))
        words = [sys.executable, "-m", "jitwatch", "run", "--run-dir", str(tmp_path / "run")]
        words += ["--json", str(tmp_path / "report.json"), "--repo", str(tmp_path), *options]
        words += ["--", *(command or [sys.executable, name])]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path}
        environment["TRITON_CACHE_DIR"] = str(tmp_path / "cache")
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done, json.loads((tmp_path / "report.json").read_text())

    return run


def test_a_late_triton_variant_is_in_repo_and_a_librarys_is_not(jitwatch_run):
    done, report = jitwatch_run(
        """
        import jitwatch, torch, triton, triton.language as tl

        @triton.jit
        def fill_kernel(x, n, BLOCK: tl.constexpr):
            o = tl.arange(0, BLOCK)
            tl.store(x + o, 1.0, mask=o < n)

        x = torch.empty(64, device="cuda")
        a = torch.randn(512, 512, device="cuda", dtype=torch.bfloat16)
        fill_kernel[(1,)](x, 64, BLOCK=64)
        a @ a
        torch.cuda.synchronize()
        jitwatch.ready()
        with jitwatch.request("one", 5), jitwatch.step("prefill", ["one"], 5):
            fill_kernel[(1,)](x, 5, BLOCK=64)
        with jitwatch.request("two", 3), jitwatch.step("prefill", ["two"], 3):
            a[:3] @ a
            torch.cuda.synchronize()
        """,
        "--fail-on=in-repo",
    )
    assert done.returncode == 1, done.stderr
    ours = [s for s in report["stalls"] if s["origin"] == "in-repo" and s["kind"] == "load"]
    assert [(s["kernel"], s["requests"], s["cause"]["code"]) for s in ours] == [
        ("fill_kernel", ["one"], "JW102")
    ]
    others = [s for s in report["stalls"] if s["origin"] == "cublas"]
    assert others
    assert {tuple(s["requests"]) for s in others} == {("two",)}
    events = {(e["pid"], e["seq"]): e for e in report["events"]}
    stacks = [events[s["pid"], s["event"]]["stack"] for s in others]
    assert all("program.py:18" in " ".join(stack) for stack in stacks), stacks
    assert report["environment"]["gpu"]
    # Nothing but the verdict's own reasons: each Triton load was seen at the driver.
    assert report["doubts"] == []


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_have_records_of_their_own(jitwatch_run, tmp_path, method):
    done, _ = jitwatch_run(
        f"""
        import multiprocessing

        def work(n):
            import torch
            torch.zeros(n, device="cuda").softmax(0)
            torch.cuda.synchronize()

        if __name__ == "__main__":
            context = multiprocessing.get_context({method!r})
            children = [context.Process(target=work, args=(n,)) for n in (3, 4)]
            for child in children:
                child.start()
            for child in children:
                child.join()
        """
    )
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert len({event.pid for event in run.events}) == 2
    assert "used CUDA and was not watched" not in done.stderr


def test_torchrun(jitwatch_run, tmp_path):
    done, _ = jitwatch_run(
        """
        import torch
        torch.zeros(5, device="cuda").softmax(0)
        torch.cuda.synchronize()
        """,
        command=[
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "program.py"),
        ],
    )
    assert done.returncode == 0, done.stderr
    assert len({event.pid for event in read_run(tmp_path / "run").events}) == 2


def test_a_program_without_python(jitwatch_run, tmp_path):
    source = tmp_path / "plain.cu"
    source.write_text(
        """
        #include <cstdio>
        __global__ void plain_kernel(int *x) { *x = 7; }
        int main() {
            int *x, y = 0;
            cudaMalloc(&x, sizeof *x);
            plain_kernel<<<1, 1>>>(x);
            cudaMemcpy(&y, x, sizeof y, cudaMemcpyDeviceToHost);
            printf("%d\\n", y);
            return y == 7 ? 4 : 5;
        }
        """
    )
    binary = tmp_path / "plain"
    subprocess.run(["nvcc", "-o", str(binary), str(source)], check=True)
    done, report = jitwatch_run("", command=[str(binary)])
    assert (done.returncode, done.stdout) == (4, "7\n"), done.stderr
    assert any("plain_kernel" in event["kernel"] for event in report["events"])


def test_arming_late_says_what_it_missed(tmp_path):
    code = """
        import sys, time, torch
        a = torch.randn(64, 64, device="cuda")
        a.softmax(0)
        import jitwatch
        start = time.perf_counter()
        jitwatch.arm(sys.argv[1])
        print(time.perf_counter() - start)
        jitwatch.ready()
        with jitwatch.request("one", 5):
            a @ a
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "run")
    assert any("armed after CUDA was" in text for text in run.coverage.blind_spots)
    assert run.events
    assert all(event.start_ns > run.ready_ns for event in run.events)
    print(f"armed in {float(done.stdout) * 1e3:.1f} ms")
