"""What only a real driver can answer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jitwatch.sweep import SweepOptions, run_sweep

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.gpu

FUNCTION_AS_CONSTEXPR = """
import torch, triton, triton.language as tl

@triton.jit
def double(x):
    return x * 2

@triton.jit(do_not_specialize=["n"])
def apply_kernel(x, n, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + o, FUNCTION(tl.load(x + o, mask=o < n)), mask=o < n)

X = torch.ones(4096, device="cuda")

class Target:
    def warmup(self):
        self.serve(None)

    def serve(self, request):
        X.fill_(1)
        apply_kernel[(16,)](X, 4096, double, BLOCK=256)
        assert X.sum().item() == 8192
"""


def last_json(command: list[str]) -> dict:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout[done.stdout.index("{") :])


def test_doctor_arms_the_hook_and_passes_its_self_test():
    found = last_json([sys.executable, "-m", "jitwatch", "doctor", "--json"])
    assert found["cupti"]["armed"]
    assert found["self_test"] == {"outcome": "passed", "reason": None}


def test_an_independent_count_of_modules_agrees():
    script = ROOT / "benchmarks" / "compare_counts.py"
    found = last_json([sys.executable, str(script), "--quick"])
    assert found["equal"], found
    assert found["hook"]["modules"] > 10


def test_a_function_as_constexpr_launches_while_armed(tmp_path):
    (tmp_path / "applied.py").write_text(FUNCTION_AS_CONSTEXPR)
    options = SweepOptions(
        target="applied:Target",
        devices=("cuda",),
        lengths=(64, 65),
        run_dir=tmp_path / "run",
        repo=tmp_path,
        path=tmp_path,
    )
    (report,) = run_sweep(options)
    assert (report.verdict.outcome, report.verdict.reasons) == ("pass", ())
    assert report.coverage.self_test == "passed"
    assert report.coverage.probes == 2
    assert report.counts["warmup_variants"] == 1
