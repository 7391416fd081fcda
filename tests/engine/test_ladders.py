"""The ladder of a model drawn from a seed leaves nothing late, as a proof over all lengths says."""

from __future__ import annotations

import random

import pytest
import transformers

from tests.engine.checkpoints import ARCHITECTURES, CONFIGS, draw_fields
from tests.engine.test_variants import sweep


def write_config(directory, seed):
    """A model drawn from the seed: family, widths, experts and dtype."""
    choose = random.Random(f"ladder {seed}")
    moe = [name for name in ARCHITECTURES if "Moe" in name or "Next" in name]
    architecture = choose.choice(moe)
    num_experts = choose.choice([16, 24, 60, 64, 128])
    fields = draw_fields(architecture, choose.randrange(1000)) | {
        "num_experts": num_experts,
        "num_experts_per_tok": choose.randint(1, 8),
        "max_position_embeddings": 40_000,
        "dtype": choose.choice(["bfloat16", "float16"]),
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
    }
    config = getattr(transformers, CONFIGS[architecture])(**fields)
    config.architectures = [architecture]
    config.save_pretrained(directory)


@pytest.mark.parametrize("seed", range(3))
def test_the_ladder_of_a_drawn_model_leaves_nothing_late(seed, tmp_path):
    write_config(tmp_path / "model", seed)
    options = ["--model", str(tmp_path / "model"), "--engine-arg", "dummy_weights=true"]
    status, report = sweep(tmp_path, *options, "--prove", "8192", lengths=None)
    assert status == 0, report["verdict"]
    assert report["counts"]["late_in_repo_loads"] == 0
    assert 1 < len(report["ladder"]) <= 24
    changes = [boundary["prompt_tokens"] for boundary in report["proof"]["boundaries"]]
    assert set(changes) >= {rung["prompt_tokens"] for rung in report["ladder"][1:]}
