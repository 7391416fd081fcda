"""No request meets a variant that the kernels don't announce, whatever its length.

On the simulated device, where a launch is its key: the same code that runs on the GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Beside every start of a variant, residues mod 16 and powers of two.
EDGES = {n + d for n in (1, 16, 64, 257, 1024, 2048, 2049) for d in (-1, 0, 1)}
LENGTHS = sorted({n for n in EDGES if n > 0} | set(range(100, 116)) | {3, 511, 2560})
EXPERTS = {"gate_up_kernel", "down_kernel", "align_kernel"}
SAMPLED = ["temperature=0.8", "top_k=20", "top_p=0.9", "min_p=0.02"]


def sweep(tmp_path, *options, lengths=LENGTHS, keys_only=True, **environment):
    out = tmp_path / "report.json"
    asked = ["--lengths", ",".join(map(str, lengths))] if lengths else []
    where = ["--device", "sim:h200", *(["--keys-only"] if keys_only else [])]
    where += ["--json", str(out), "--run-dir", str(tmp_path / "run")]
    command = [sys.executable, "-m", "jitwatch", "sweep", *where, *asked, *options]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert out.exists(), done.stderr
    return done.returncode, json.loads(out.read_text())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    status, report = sweep(tmp_path_factory.mktemp("sweep"))
    assert status == 0
    return report


def variants(report):
    """Each variant that was loaded, as text, and its kernel."""
    loads = [e for e in report["events"] if e["kind"] == "load" and e["origin"] == "in-repo"]
    return {json.dumps(e["variant"], sort_keys=True): e["kernel"] for e in loads if e["variant"]}


def late(report):
    return {stall["kernel"] for stall in report["stalls"]}


def test_nothing_loads_late(report):
    assert report["counts"]["requests"] == len(LENGTHS)
    assert report["counts"]["late_in_repo_loads"] == 0
    assert report["stalls"] == []
    assert all(request["launches"] > 0 for request in report["requests"])


def test_a_kernel_has_one_variant_but_where_it_says_otherwise(report):
    found = list(variants(report).values())
    assert {name for name in found if found.count(name) > 1} == EXPERTS
    assert [found.count(name) for name in EXPERTS] == [3] * 3


def test_each_tile_is_used_from_where_it_begins(report):
    """The first at every length: decode replays it, one token at a time."""
    tiles = [use["spans"] for use in report["uses"] if use["variant"]["kernel"] == "align_kernel"]
    assert tiles == [[[1, 2560]], [[257, 2048]], [[2049, 2560]]]


def test_every_kernel_of_the_model_was_launched(report):
    assert set(variants(report).values()) == {
        "add_rms_norm_kernel",
        "align_kernel",
        "attention_kernel",
        "causal_conv1d_kernel",
        "causal_conv1d_update_kernel",
        "attention_combine_kernel",
        "attention_update_kernel",
        "delta_rule_chunk_kernel",
        "delta_rule_state_kernel",
        "delta_rule_update_kernel",
        "down_kernel",
        "gate_up_kernel",
        "gated_rms_norm_kernel",
        "l2norm_kernel",
        "rms_norm_kernel",
        "rope_and_store_kernel",
        "route_kernel",
        "sample_kernel",
        "silu_and_mul_kernel",
        "weighted_sum_kernel",
    }


def test_sampled_requests_meet_the_same_variants(report, tmp_path):
    params = [word for param in SAMPLED for word in ("--param", param)]
    status, sampled = sweep(tmp_path, *params)
    assert status == 0
    assert variants(sampled) == variants(report)


def test_chunks_and_eager_decodes_meet_the_same_variants(report, tmp_path):
    options = ["--engine-arg", "max_prefill_tokens=300", "--engine-arg", "cuda_graphs=false"]
    status, chunked = sweep(tmp_path, *options)
    assert status == 0
    # No chunk has the 2,049 tokens of the widest tile.
    assert set(variants(chunked)) < set(variants(report))
    assert [rung["prompt_tokens"] for rung in chunked["ladder"]] == [1, 257]


def test_a_capped_ladder_fails_beyond_its_cap(tmp_path):
    status, report = sweep(tmp_path, lengths=[11, 256, 257, 2049], ENGINE_WARMUP_MAX_LEN="256")
    assert status == 1
    assert [rung["prompt_tokens"] for rung in report["ladder"]] == [1]
    paid = {q["prompt_tokens"]: q["in_repo_loads"] for q in report["requests"]}
    assert paid == {11: 0, 256: 0, 257: 3, 2049: 3}
    assert late(report) == EXPERTS


def test_without_prefill_warmup_the_first_request_pays(tmp_path):
    status, report = sweep(tmp_path, "--skip-prefill-warmup", lengths=[11, 12])
    assert status == 1
    assert report["ladder"] == []
    first, second = (request["in_repo_loads"] for request in report["requests"])
    # What decode shares with prefill was captured at start.
    assert (first, second) == (5, 0)
    assert {"l2norm_kernel", "attention_kernel"} <= late(report)
    assert "sample_kernel" not in late(report)


def result_of(name, device):
    """The one committed result."""
    [found] = (ROOT / "sweeps" / "results" / name).glob(f"{device}-*.json")
    return json.loads(found.read_text())


@pytest.mark.triton("3.6")
@pytest.mark.parametrize("name", ["engine-greedy", "engine-sampled", "engine-40-layers"])
def test_the_variants_are_those_that_an_h200_met(report, name):
    recorded = result_of(name, "h200")
    assert recorded["verdict"]["outcome"] == "pass"
    assert set(variants(recorded)) == set(variants(report))


@pytest.mark.gpu
@pytest.mark.parametrize("params", [[], SAMPLED])
def test_a_gpu_meets_the_variants_that_are_simulated(params, tmp_path):
    params = [word for param in params for word in ("--param", param)]
    (tmp_path / "sim").mkdir()
    status, simulated = sweep(tmp_path / "sim", *params, TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert status == 0
    like = ["--device", "cuda", "--simulated", str(tmp_path / "sim" / "report.json")]
    status, real = sweep(tmp_path, *params, *like, keys_only=False)
    assert (status, real["verdict"]["reasons"]) == (0, [])
    assert set(variants(real)) == set(variants(simulated))
    assert real["counts"]["late_in_repo_loads"] == 0
    assert all(request["ttft_ms"] > 0 for request in real["requests"])
    assert all(request["phases"] == {"prefill": 1, "decode": 1} for request in real["requests"])


@pytest.mark.gpu
def test_a_gpu_loads_nothing_late_of_anybody(tmp_path):
    status, real = sweep(tmp_path, "--device", "cuda", "--fail-on", "any", keys_only=False)
    assert (status, real["counts"]["late_other_loads"]) == (0, 0), real["verdict"]["reasons"]
