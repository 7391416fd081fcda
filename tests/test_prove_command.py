"""`jitwatch sweep --prove` as its user meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TARGETS = """
import torch, triton
import triton.language as tl

@triton.jit(do_not_specialize=["n"])
def fill_kernel(y, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(y + o, 7.0, mask=o < n)

y = torch.empty(4096, device="cuda")

def fill(block):
    fill_kernel[(1,)](y, 5, BLOCK=block)

class Wide:
    '''Another block from 777 tokens on, and at no other length.'''
    late = (777, 10**6)
    def warmup(self):
        fill(16)
    def serve(self, request):
        low, high = self.late
        fill(64 if low <= request.prompt_tokens < high else 16)

class Residue(Wide):
    '''Another block where the length is 3 mod 16, from 200 tokens on.'''
    def serve(self, request):
        n = request.prompt_tokens
        fill(64 if n > 200 and n % 16 == 3 else 16)

class Warm(Wide):
    def warmup(self):
        fill(16)
        fill(64)

class Every(Wide):
    def serve(self, request):
        fill_kernel[(1,)](y, 5, BLOCK=16, num_stages=request.prompt_tokens)

class Says(Wide):
    longest = 30
    def attach(self, recorder):
        self.recorder = recorder
    def longest_prompt(self, output_tokens):
        return self.longest
    def serve(self, request):
        with self.recorder.step("prefill", (request.id,), request.prompt_tokens):
            fill(16)

class Says0(Says):
    longest = 0
class SaysNone(Says):
    longest = None
class SaysTrue(Says):
    longest = True
class SaysText(Says):
    longest = "30"

class Raises(Wide):
    def serve(self, request):
        if request.prompt_tokens == 4:
            raise ValueError("not four")
        fill(16)
"""


@pytest.fixture
def prove(tmp_path, monkeypatch):
    """Runs `--prove` on a target; the exit status, the report, and what it said."""
    (tmp_path / "targets.py").write_text(TARGETS)

    def run(target, *options):
        out = tmp_path / "report.json"
        out.unlink(missing_ok=True)
        command = [sys.executable, "-m", "jitwatch", "sweep", "--target", target]
        command += ["--json", str(out), "--device", "sim:h200", "--keys-only", *options]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
        )
        report = json.loads(out.read_text()) if out.exists() else None
        return done.returncode, report, done.stdout + done.stderr

    return run


def test_a_threshold_is_found_by_few_requests(prove):
    status, report, said = prove("targets:Wide", "--prove", "5000")
    assert status == 1
    assert report["proof"]["boundaries"] == [
        {"prompt_tokens": 777, "residues": [], "kernels": ["fill_kernel"]}
    ]
    assert report["proof"]["served"] == report["counts"]["requests"] < 1000
    assert [s["kernel"] for s in report["stalls"] if s["kind"] == "load"] == ["fill_kernel"]
    assert said.startswith("FAIL: ")


def test_a_residue_is_found(prove):
    _, report, _ = prove("targets:Residue", "--prove", "5000")
    [boundary] = report["proof"]["boundaries"]
    assert boundary == {"prompt_tokens": 211, "residues": [3], "kernels": ["fill_kernel"]}


def test_a_warm_target_is_clean_for_all(prove):
    status, report, said = prove("targets:Warm", "--prove", "5000")
    assert status == 0
    served = report["counts"]["requests"]
    first = f"PASS: {served} requests on sim:h200 stand for 1..5,000, 2 variants warm at ready"
    assert said.startswith(first)
    assert "      777  other variants of fill_kernel\n" in said
    # It doesn't say its steps: that a prompt is one step is assumed.
    assert any("does not say its steps" in text for text in report["proof"]["assumptions"])


def test_a_request_that_raises_ends_the_proof(prove):
    status, report, said = prove("targets:Raises", "--prove", "50")
    assert (status, report["proof"], report["verdict"]["outcome"]) == (2, None, "inconclusive")
    assert "the proof for 1..50 was not finished" in said
    assert "ValueError: not four" in said


def test_a_variant_for_each_length_ends_the_proof(prove):
    status, report, _ = prove("targets:Every", "--prove", "262144")
    assert (status, report["proof"]) == (1, None)
    assert report["counts"]["requests"] < 1000
    assert report["verdict"]["reasons"][-1] == (
        "the proof for 1..262,144 was not finished: 501 lengths launched 501 variants: mend what "
        "makes one for each length, then prove"
    )


def test_a_proof_ends_at_the_longest_prompt(prove):
    options = ["--model", "tiny", "--engine-arg", "max_model_len=40", "--prove", "100"]
    status, report, said = prove("engine", "--package", "engine", *options)
    assert status == 0, said
    assert report["proof"]["max_tokens"] == 39
    assert report["proof"]["assumptions"][-1] == (
        "prompts above 39 tokens are refused, as one of 40 was"
    )


def test_a_proof_ends_at_what_the_cache_has_room_for(prove):
    options = ["--model", "tiny", "--kv-tokens", "64", "--output-tokens", "9", "--prove", "100"]
    status, report, said = prove("engine", "--package", "engine", *options)
    assert status == 0, said
    assert report["proof"]["max_tokens"] == 55


@pytest.mark.parametrize(
    ("name", "longest"), [("0", "0"), ("None", "None"), ("True", "True"), ("Text", "'30'")]
)
def test_a_longest_prompt_that_is_none_is_told(prove, name, longest):
    status, report, said = prove(f"targets:Says{name}", "--prove", "50")
    assert (status, report) == (2, None)
    assert f"its longest prompt is {longest} tokens" in said


def test_a_longest_prompt_that_is_too_short_is_no_proof(prove):
    status, report, _ = prove("targets:Says", "--prove", "50")
    assert status == 2
    assert report["verdict"]["reasons"] == [
        "the proof for 1..30 does not hold: 30 tokens are its longest prompt, it says, and it "
        "served one more"
    ]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--prove", "0"], "--prove 0: must be 1 or more"),
        (["--prove", "9", "--max", "20"], "--prove 9: chooses its lengths itself"),
        (["--prove", "9", "--lengths", "3"], "--prove 9: chooses its lengths itself"),
        (["--prove", "9", "--simulated", "run"], "--prove 9 --simulated: one or the other"),
        (["--prove", "x"], "invalid int value"),
    ],
)
def test_a_proof_that_cant_be_had_says_why(prove, options, text):
    status, report, said = prove("targets:Warm", *options)
    assert (status, report) == (2, None)
    assert text in said
