"""The ladder follows from what each kernel says, and every kernel says something."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from engine import LLM, ConfigError
from engine.kernels import load_operations
from engine.kernels.statements import Shapes, Start
from engine.layers.linear import Linear
from engine.options import LARGEST_SIZE, warmup_limit
from engine.warmup import Rung, library_sizes, make_ladder, warm_up

ROOT = Path(__file__).parents[2]
BIG_MOE = Shapes(torch.bfloat16, num_experts=256, top_k=8)
DENSE = Shapes(torch.bfloat16, num_experts=0, top_k=0)


def kernels_of(path):
    """The functions of a file that are launched: jitted, and named so."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel"):
            yield node.name


def test_every_kernel_says_what_its_variants_are():
    launched = {
        name for path in (ROOT / "engine" / "kernels").glob("*.py") for name in kernels_of(path)
    }
    assert launched == set(load_operations("fused").STATEMENTS)


def test_plain_torch_has_one_rung():
    reference = load_operations("reference")
    assert make_ladder(reference.STATEMENTS, BIG_MOE, 100) == (Rung(1, ()),)


def ladder(shapes, longest=LARGEST_SIZE):
    return make_ladder(load_operations("fused").STATEMENTS, shapes, longest)


def test_the_ladder_of_256_experts():
    experts = "align_kernel, down_kernel, gate_up_kernel"
    first, *others = ladder(BIG_MOE)
    assert first.num_tokens == 1
    plain, tiled = first.reasons
    assert plain.startswith("add_rms_norm_kernel, ")
    assert plain.endswith(": its only variant")
    assert len(plain.split(", ")) == 17
    assert tiled == f"{experts}: tiles of 16 rows"
    assert others == [
        Rung(257, (f"{experts}: tiles of 64 rows",)),
        Rung(2049, (f"{experts}: tiles of 128 rows",)),
    ]


def test_without_experts_nothing_changes_with_the_prompt():
    [rung] = ladder(DENSE)
    assert rung.num_tokens == 1
    assert "gate_up_kernel" not in rung.reasons[0]
    assert "route_kernel" not in rung.reasons[0]


def test_float32_has_one_tile():
    assert [r.num_tokens for r in ladder(Shapes(torch.float32, num_experts=256, top_k=8))] == [1]


def test_a_rung_is_where_each_tile_begins():
    """By trying every token count: the ladder's lengths are those where the tile changes."""
    from engine.kernels.grouped_matmul import tile_for

    for num_experts, top_k in ((4, 3), (5, 1), (60, 4), (128, 8), (256, 8)):
        shapes = Shapes(torch.bfloat16, num_experts, top_k)
        tiles = [tile_for(n * top_k, num_experts, torch.bfloat16) for n in range(1, 20_000)]
        changes = [n for n in range(2, 20_000) if tiles[n - 1] != tiles[n - 2]]
        assert [r.num_tokens for r in ladder(shapes)] == [1, *changes]


@pytest.mark.parametrize(("longest", "rungs"), [(2049, 3), (2048, 2), (257, 2), (256, 1), (0, 0)])
def test_no_rung_is_beyond_the_longest_forward(longest, rungs):
    assert len(ladder(BIG_MOE, longest)) == rungs


def test_a_ladder_joins_kernels_that_change_together():
    statements = {
        "b": lambda shapes: (Start(1, "narrow"), Start(9, "wide")),
        "a": lambda shapes: (Start(1, "narrow"), Start(9, "deep")),
        "c": lambda shapes: (Start(1, "flat"), Start(9, "wide")),
    }
    assert make_ladder(statements, DENSE, 100) == (
        Rung(1, ("a, b: narrow", "c: flat")),
        Rung(9, ("b, c: wide", "a: deep")),
    )


def test_the_sizes_that_cublas_tells_apart():
    assert library_sizes(3) == [1, 2, 3]
    assert library_sizes(42) == [*range(1, 18), 24, 25, 32, 33, 40, 41, 42]


def test_the_environment_caps_the_ladder(monkeypatch):
    monkeypatch.delenv("ENGINE_WARMUP_MAX_LEN", raising=False)
    assert warmup_limit() == LARGEST_SIZE
    monkeypatch.setenv("ENGINE_WARMUP_MAX_LEN", " 80 ")
    assert warmup_limit() == 80


@pytest.mark.parametrize("text", ["", "0", "-1", "80.5", "eighty", "9" * 5000])
def test_a_cap_that_is_no_length_is_refused(monkeypatch, text):
    monkeypatch.setenv("ENGINE_WARMUP_MAX_LEN", text)
    with pytest.raises(ConfigError, match=r"ENGINE_WARMUP_MAX_LEN='.* in the environment: must be"):
        LLM("tiny", device="cpu", kv_tokens=64)


def test_a_cpu_has_nothing_to_warm_up():
    llm = LLM("tiny", device="cpu", kv_tokens=64)
    assert (llm.ladder, llm.warmup_seconds) == ((), 0.0)


def test_every_shape_of_projection_once():
    llm = LLM("tiny", device="cpu", kv_tokens=64)
    decoder = llm.runner.model
    every = {
        tuple(linear.weight.shape)
        for layer in decoder.layers
        for linear in (*layer.mixer.linears(), *layer.mlp.linears())
    }
    shapes = [tuple(linear.weight.shape) for linear in decoder.linears()]
    assert sorted(shapes) == sorted(every)
    assert len(every) > 2


class Rows:
    """Stands for `Linear.__call__`: notes how many rows it was given."""

    def __init__(self, monkeypatch):
        self.rows = []
        plain = Linear.__call__
        monkeypatch.setattr(Linear, "__call__", lambda *a: (self.note(a[1]), plain(*a))[1])

    def note(self, x):
        self.rows.append(x.shape[0])


def test_warmup_runs_each_rung_what_continues_it_and_the_projections(monkeypatch):
    llm = LLM("tiny", device="cpu", kv_tokens=64)
    pages = list(llm.pool.free)
    seen = Rows(monkeypatch)
    warm_up(llm.runner, llm.pool, (Rung(1, ()), Rung(20, ())), longest=64, most=24)
    layers = llm.runner.model.layers
    every_layer = sum(len(layer.mixer.linears() + layer.mlp.linears()) for layer in layers)
    alone = seen.rows[every_layer * 6 :]
    forwards = seen.rows[: every_layer * 6 : every_layer]
    assert forwards == [1, 20, 1, 2, 1, 1]
    assert alone == library_sizes(24) * len(llm.runner.model.linears())
    assert llm.pool.free == pages


def test_a_context_of_one_token_is_not_continued(monkeypatch):
    llm = LLM("tiny", device="cpu", kv_tokens=16, max_model_len=2)
    seen = Rows(monkeypatch)
    warm_up(llm.runner, llm.pool, (Rung(1, ()),), longest=2, most=1)
    assert max(seen.rows) == 1


def test_every_way_to_sample_is_run_on_the_last_logits(monkeypatch):
    llm = LLM("tiny", device="cpu", kv_tokens=64)
    ways = ({"temperature": 0.0}, {"temperature": 0.5, "top_k": 3})
    monkeypatch.setattr(llm.runner.operations, "SAMPLING_VARIANTS", ways)
    drawn = []
    plain = llm.runner.draw
    monkeypatch.setattr(
        llm.runner, "draw", lambda *a: (drawn.append(a[2].top_k.tolist()), plain(*a))[1]
    )
    warm_up(llm.runner, llm.pool, (Rung(1, ()),), longest=64, most=1)
    assert drawn == [[0], [3]] * 3
