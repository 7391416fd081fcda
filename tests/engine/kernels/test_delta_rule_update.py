"""One token of the gated delta rule for each sequence against the reference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from engine.kernels import reference
from engine.kernels.delta_rule import gated_delta_rule
from engine.kernels.delta_rule_update import gated_delta_rule_update
from tests.engine.kernels.checks import (
    assert_close,
    draw,
    for_reference,
    generator,
    poisoned,
    strided,
)


@dataclass(frozen=True)
class Shape:
    """Heads and their widths, small enough for the interpreter."""

    num_k_heads: int = 1
    num_v_heads: int = 2
    k_dim: int = 32
    v_dim: int = 32


QWEN = Shape(16, 32, 128, 128)


def inputs(
    num_seqs: int, dtype: torch.dtype, device: str, shape: Shape = Shape()
) -> dict[str, object]:
    """One token each in strided, poisoned memory; the slots that no sequence has are NaN."""
    random = generator(num_seqs)
    qk = draw((num_seqs, 2 * shape.num_k_heads, shape.k_dim), dtype, device, random)
    q, k = strided(qk).split(shape.num_k_heads, dim=1)
    v = draw((num_seqs, shape.num_v_heads, shape.v_dim), dtype, device, random)
    gates = (num_seqs, shape.num_v_heads)
    state_shape = (num_seqs + 2, shape.num_v_heads, shape.k_dim, shape.v_dim)
    state = poisoned(state_shape, torch.float32, device)
    slots = torch.randperm(num_seqs + 2, generator=random)[:num_seqs]
    state[slots.to(device)] = draw((num_seqs, *state_shape[1:]), torch.float32, device, random)
    return {
        "q": q,
        "k": k,
        "v": strided(v),
        "a": strided(draw(gates, dtype, device, random)),
        "b": strided(draw(gates, dtype, device, random)),
        "a_log": torch.linspace(-2.0, 2.7, shape.num_v_heads, device=device),
        "dt_bias": torch.linspace(1.0, -3.0, shape.num_v_heads, device=device),
        "state": state,
        "state_indices": slots.to(torch.int32).to(device),
    }


def check(arguments: dict[str, object], dtype: torch.dtype) -> None:
    """Output and states are the reference's, and no other slot was touched."""
    state, slots = arguments["state"], arguments["state_indices"]
    assert isinstance(state, Tensor)
    assert isinstance(slots, Tensor)
    wanted = {name: for_reference(value) for name, value in arguments.items()}
    wanted["state"] = state.detach().cpu().clone()
    expected = reference.gated_delta_rule_update(**wanted)
    actual = gated_delta_rule_update(**arguments)
    assert actual.is_contiguous()
    assert actual.dtype == dtype
    assert_close(actual, expected, dtype, "out")
    used = slots.long().cpu()
    # The state is float32 whatever the inputs are, and so is all that is done to it.
    assert_close(state.cpu()[used], wanted["state"][used], torch.float32, "state")
    unused = torch.ones(state.shape[0], dtype=torch.bool)
    unused[used] = False
    assert state.cpu()[unused].isnan().all()


@pytest.mark.parametrize("num_seqs", [1, 2, 15, 16, 17, 63, 256])
def test_matches_the_reference(device, dtype, num_seqs):
    if device == "cpu" and num_seqs > 17:
        pytest.skip("needs a GPU")
    check(inputs(num_seqs, dtype, device), dtype)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_value_heads_for_a_key_head(device, dtype, group):
    check(inputs(3, dtype, device, Shape(2, 2 * group, 16, 16)), dtype)


@pytest.mark.parametrize(("k_dim", "v_dim"), [(24, 40), (8, 8), (40, 24), (16, 80), (128, 128)])
def test_odd_widths(device, dtype, k_dim, v_dim):
    check(inputs(2, dtype, device, Shape(1, 3, k_dim, v_dim)), dtype)


@pytest.mark.parametrize(("a", "b"), [(-30.0, 8.0), (-9.0, 0.0), (30.0, -8.0), (120.0, -120.0)])
def test_extreme_gates(device, dtype, a, b):
    arguments = inputs(2, dtype, device)
    arguments["a"].fill_(a)
    arguments["b"].fill_(b)
    check(arguments, dtype)


def test_a_key_of_zeros(device, dtype):
    arguments = inputs(2, dtype, device)
    arguments["k"].zero_()
    check(arguments, dtype)


def test_eps(device, dtype):
    arguments = inputs(2, dtype, device)
    check({**arguments, "eps": 3.0}, dtype)


def test_goes_on_where_a_prompt_ended(device, dtype):
    """A token decoded after a prompt gives what a prompt longer by that token gives."""
    num_tokens = 20
    tokens = inputs(num_tokens, dtype, device)
    tokens["state"].fill_(float("nan"))
    normed = {name: reference.l2_norm(tokens[name]) for name in ("q", "k")}
    one = {"state_indices": torch.tensor([1], dtype=torch.int32, device=device)}
    no_context = torch.zeros(1, dtype=torch.int32, device=device)

    def prefill(length: int, state: Tensor) -> Tensor:
        part = {name: value[:length] for name, value in {**tokens, **normed}.items()
                if name in ("q", "k", "v", "a", "b")}  # fmt: skip
        ends = torch.tensor([0, length], dtype=torch.int32, device=device)
        arguments = {**tokens, **part, **one, "state": state, "cu_seqlens": ends}
        return gated_delta_rule(**arguments, context_lens=no_context, max_query_len=length)

    whole, pieces = tokens["state"].clone(), tokens["state"].clone()
    expected = prefill(num_tokens, whole)[-1:]
    prefill(num_tokens - 1, pieces)
    last = {name: tokens[name][-1:] for name in ("q", "k", "v", "a", "b")}
    actual = gated_delta_rule_update(**{**tokens, **last, **one, "state": pieces})
    assert_close(actual, expected.cpu(), dtype, "out")
    assert_close(pieces[1], whole[1].cpu(), dtype, "state")


@pytest.mark.parametrize("num_seqs", [1, 64])
def test_model(device, dtype, num_seqs):
    if device == "cpu":
        pytest.skip("needs a GPU")
    check(inputs(num_seqs, dtype, device, QWEN), dtype)


@pytest.mark.gpu
def test_a_graph_serves_every_slot(device):
    if device == "cpu":
        pytest.skip("needs a GPU")
    arguments = inputs(2, torch.bfloat16, device)
    gated_delta_rule_update(**arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = gated_delta_rule_update(**arguments)
    arguments["state_indices"].copy_(arguments["state_indices"].flip(0))
    wanted = {name: for_reference(value) for name, value in arguments.items()}
    expected = reference.gated_delta_rule_update(**wanted)
    graph.replay()
    assert_close(out, expected, torch.bfloat16)
