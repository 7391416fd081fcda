"""No request meets a variant that the kernels don't announce, whatever its length.

On the simulated device, where a launch is its key: the same code that runs on the GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from engine.kernels.grouped_matmul import variant_starts

# Beside every start of a variant, residues mod 16 and powers of two.
EDGES = {n + d for n in (*variant_starts(8, 256), 1, 16, 64, 1024, 2048) for d in (-1, 0, 1)}
LENGTHS = sorted({n for n in EDGES if n > 0} | set(range(100, 116)) | {3, 511, 2560})


def sweep(tmp_path, *options):
    out = tmp_path / "report.json"
    target = ["--target", "tests.engine.target:Target", "--device", "sim:h200", "--keys-only"]
    lengths = ["--lengths", ",".join(map(str, LENGTHS))]
    command = [sys.executable, "-m", "jitwatch", "sweep", *target, *lengths, *options]
    where = ["--json", str(out), "--run-dir", str(tmp_path / "run")]
    done = subprocess.run([*command, *where], capture_output=True, text=True, check=False)
    return done, json.loads(out.read_text())


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    done, report = sweep(tmp_path_factory.mktemp("sweep"))
    assert done.returncode == 0, done.stderr
    return report


def kernels(report):
    """The kernel of each variant that was loaded."""
    loads = [e for e in report["events"] if e["kind"] == "load" and e["origin"] == "in-repo"]
    variants = {
        json.dumps(e["variant"], sort_keys=True): e["kernel"] for e in loads if e["variant"]
    }
    return list(variants.values())


def test_nothing_loads_late(report):
    assert report["counts"]["requests"] == len(LENGTHS)
    assert report["counts"]["late_in_repo_loads"] == 0
    assert report["stalls"] == []


def test_a_kernel_has_one_variant_but_where_it_says_otherwise(report):
    found = kernels(report)
    tiled = {"gate_up_kernel", "down_kernel", "align_kernel"}
    assert {name for name in found if found.count(name) > 1} == tiled
    starts = len(variant_starts(8, 256))
    assert [found.count(name) for name in sorted(tiled)] == [starts] * 3


def test_every_kernel_of_the_model_was_launched(report):
    assert set(kernels(report)) == {
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


def test_a_warmup_that_skips_a_start_is_caught(tmp_path):
    done, report = sweep(tmp_path, "--target", "tests.engine.target:OneToken")
    assert done.returncode == 1
    late = {stall["kernel"] for stall in report["stalls"]}
    assert late == {"gate_up_kernel", "down_kernel", "align_kernel"}
