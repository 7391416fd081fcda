"""The gated delta rule over sequences against the reference, and where its inverse is hardest."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels import reference
from engine.kernels.delta_rule import gated_delta_rule
from engine.kernels.delta_rule_chunks import invert_unit_lower
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
    lengths: tuple[int, ...],
    contexts: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    shape: Shape = Shape(),
) -> dict[str, object]:
    """Packed sequences in strided, poisoned memory; slots without a context are NaN, unused too."""
    random = generator(sum(lengths) + len(lengths))
    num_tokens, num_seqs = sum(lengths), len(lengths)
    keys = (num_tokens, shape.num_k_heads, shape.k_dim)
    q, k = (reference.l2_norm(draw(keys, torch.float32, "cpu", random)) for _ in range(2))
    v = draw((num_tokens, shape.num_v_heads, shape.v_dim), dtype, device, random)
    gates = (num_tokens, shape.num_v_heads)
    a, b = draw(gates, dtype, device, random), draw(gates, dtype, device, random)
    state_shape = (num_seqs + 2, shape.num_v_heads, shape.k_dim, shape.v_dim)
    state = poisoned(state_shape, torch.float32, device)
    slots = [num_seqs - index for index in range(num_seqs)]
    for slot, context in zip(slots, contexts, strict=True):
        if context:
            state[slot] = draw(state_shape[1:], torch.float32, device, random)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return {
        "q": strided(q.to(dtype).to(device)),
        "k": strided(k.to(dtype).to(device)),
        "v": strided(v),
        "a": strided(a),
        "b": strided(b),
        "a_log": torch.linspace(-2.0, 2.7, shape.num_v_heads, device=device),
        "dt_bias": torch.linspace(1.0, -3.0, shape.num_v_heads, device=device),
        "state": state,
        "state_indices": torch.tensor(slots, dtype=torch.int32, device=device),
        "cu_seqlens": ends.to(torch.int32).to(device),
        "context_lens": torch.tensor(contexts, dtype=torch.int32, device=device),
        "max_query_len": max(lengths),
    }


def check(arguments: dict[str, object], dtype: torch.dtype, slack: float = 1.0) -> None:
    """Output and states are the reference's, `slack` tolerances wide, and no other slot changed."""
    state, slots = arguments["state"], arguments["state_indices"]
    assert isinstance(state, Tensor)
    assert isinstance(slots, Tensor)
    # The reference goes token by token: a long prompt takes it minutes on a CPU.
    wanted = {
        name: value.to(state.device) if isinstance(value, Tensor) else value
        for name, value in ((name, for_reference(value)) for name, value in arguments.items())
    }
    # Without a copy, the reference would share a CPU tensor that is float32 already.
    wanted["state"] = state.clone()
    expected = reference.gated_delta_rule(**wanted).cpu()
    actual = gated_delta_rule(**arguments)
    assert actual.is_contiguous()
    assert actual.dtype == dtype
    assert_close(expected + (actual.cpu().float() - expected) / slack, expected, dtype, "out")
    used = slots.long().cpu()
    expected, actual = wanted["state"].cpu()[used], state.cpu()[used]
    assert_close(expected + (actual - expected) / slack, expected, dtype, "state")
    unused = torch.ones(state.shape[0], dtype=torch.bool)
    unused[used] = False
    assert state.cpu()[unused].isnan().all()


@pytest.mark.parametrize("context", [0, 100])
def test_matches_the_reference(device, dtype, num_tokens, context):
    check(inputs((num_tokens,), (context,), dtype, device), dtype)


def test_sequences_of_different_lengths(device, dtype):
    check(inputs((65, 1, 17, 64, 3, 130), (0, 7, 64, 0, 0, 1), dtype, device), dtype)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_value_heads_for_a_key_head(device, dtype, group):
    check(inputs((70,), (5,), dtype, device, Shape(2, 2 * group, 16, 16)), dtype)


@pytest.mark.parametrize(("k_dim", "v_dim"), [(24, 40), (8, 8), (40, 24), (16, 80)])
def test_odd_widths(device, dtype, k_dim, v_dim):
    check(inputs((67, 2), (0, 9), dtype, device, Shape(1, 3, k_dim, v_dim)), dtype)


def test_a_prompt_in_pieces_is_the_whole_prompt(device, dtype):
    whole = inputs((150,), (0,), dtype, device)
    pieces = {**whole, "state": whole["state"].clone()}
    expected = gated_delta_rule(**whole)
    parts = []
    for begin, end in ((0, 50), (50, 51), (51, 150)):
        part = {name: pieces[name][begin:end] for name in ("q", "k", "v", "a", "b")}
        length = torch.tensor([0, end - begin], dtype=torch.int32, device=device)
        context = torch.tensor([begin], dtype=torch.int32, device=device)
        part |= {"cu_seqlens": length, "context_lens": context, "max_query_len": end - begin}
        parts.append(gated_delta_rule(**{**pieces, **part}))
    assert_close(torch.cat(parts), expected.cpu(), dtype, "out")
    slots = whole["state_indices"].long()
    assert_close(pieces["state"][slots], whole["state"][slots].cpu(), dtype, "state")


def with_gates(arguments: dict[str, object], a: float, b: float) -> dict[str, object]:
    """The same with `a` and `b` everywhere."""
    for name, value in (("a", a), ("b", b)):
        gate = arguments[name]
        assert isinstance(gate, Tensor)
        gate.fill_(value)
    return arguments


def nearly_the_same(shape: tuple[int, int, int], sign: int, noise: float) -> Tensor:
    """Unit keys along one line, every second one times `sign`."""
    random = generator(1)
    line = draw((1, *shape[1:]), torch.float32, "cpu", random)
    keys = reference.l2_norm(line + noise * draw(shape, torch.float32, "cpu", random))
    keys[1::2] *= sign
    return keys


@pytest.mark.parametrize("noise", [0.0, 1e-3, 1e-1])
@pytest.mark.parametrize("sign", [1, -1])
def test_keys_that_are_nearly_the_same(device, dtype, sign, noise):
    """Powers of this triangular matrix reach 1e18, while its inverse has no entry above 1."""
    arguments = inputs((190,), (3,), dtype, device)
    arguments["k"].copy_(nearly_the_same(tuple(arguments["k"].shape), sign, noise))
    # Each write takes back the one before, so that in bfloat16 the sum of a chunk's 64 keeps all
    # their roundings and little else.
    slack = 1.0 if dtype == torch.float32 else 3.0
    check(with_gates(arguments, a=-30.0, b=8.0), dtype, slack)


@triton.jit
def inverse_kernel(p_lower, p_out, LEVELS: tl.constexpr, TYPE: tl.constexpr):
    o_i = tl.arange(0, 2**LEVELS)
    o_lower = o_i[:, None] * 2**LEVELS + o_i[None, :]
    tl.store(p_out + o_lower, invert_unit_lower(tl.load(p_lower + o_lower), LEVELS, TYPE))


@pytest.mark.parametrize("levels", [4, 6])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("noise", [0.0, 1e-3, 1e-1, 1e3])
def test_inverse(device, dtype, levels, sign, noise):
    size = 2**levels
    keys = nearly_the_same((size, 1, 32), sign, noise)[:, 0]
    lower = (keys @ keys.T).tril(-1)
    out = poisoned((size, size), torch.float32, device)
    inner = tl.float32 if dtype == torch.float32 else tl.float16
    inverse_kernel[(1,)](lower.to(device), out, LEVELS=levels, TYPE=inner)
    exact = torch.linalg.inv(torch.eye(size, dtype=torch.float64) + lower.double())
    # What a chunk rounds it to afterwards is coarser: bfloat16, 2**-9.
    allowed = 1e-6 if dtype == torch.float32 else 2e-3
    assert (out.cpu().double() - exact).abs().max() <= allowed


def test_decay_that_forgets_all_at_once(device, dtype):
    # The decays of 64 tokens add up to exp(-19000): its inverse is no float.
    check(with_gates(inputs((100,), (3,), dtype, device), a=20.0, b=0.0), dtype)


def test_decay_that_is_almost_none(device, dtype):
    check(with_gates(inputs((130,), (3,), dtype, device), a=-9.0, b=0.0), dtype)


def test_states_without_a_context_are_not_read(device, dtype):
    arguments = inputs((5, 5), (0, 0), dtype, device)
    arguments["state"].fill_(float("nan"))
    check(arguments, dtype)


@pytest.mark.parametrize("lengths", [(1,), (64,), (1025,), (8192,), (700, 1, 65, 3000)])
def test_model(device, dtype, lengths):
    if device == "cpu":
        pytest.skip("needs a GPU")
    check(inputs(lengths, tuple(range(len(lengths))), dtype, device, QWEN), dtype)
