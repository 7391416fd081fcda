"""The L2 norm against the reference, and against itself with the length as a constexpr."""

from __future__ import annotations

import types

import pytest
import torch
import triton
import triton.language as tl

from engine.kernels import l2norm, reference
from engine.kernels.l2norm import l2_norm, l2norm_kernel
from tests.engine.kernels.checks import (
    assert_close,
    draw,
    for_reference,
    generator,
    poisoned,
    strided,
)

EPS = 1e-6


@pytest.fixture(params=[(1, 16), (3, 20), (4, 64), (16, 128)], ids=str)
def heads(request, device):
    if device == "cpu" and request.param[1] > 64:
        pytest.skip("needs a GPU")
    return request.param


def with_constexpr_length(kernel):
    """The same kernel, its body the very same code object, compiled anew for every length."""
    body = kernel.fn
    twin = types.FunctionType(body.__code__, body.__globals__, body.__name__, body.__defaults__)
    twin.__module__, twin.__qualname__ = body.__module__, body.__qualname__
    twin.__annotations__ = {**body.__annotations__, "num_tokens": tl.constexpr}
    return triton.jit(twin)


def launch(kernel, x, out):
    """`l2_norm` of `x` into `out`, which may be longer, by `kernel`; returns what was launched."""
    num_tokens, num_heads, dim = x.shape
    return kernel[(triton.cdiv(num_tokens * num_heads, l2norm.BLOCK_ROWS),)](
        x,
        out,
        num_tokens,
        x.stride(0),
        x.stride(1),
        EPS,
        NUM_HEADS=num_heads,
        DIM=dim,
        BLOCK_ROWS=l2norm.BLOCK_ROWS,
        BLOCK_DIM=triton.next_power_of_2(dim),
        num_warps=l2norm.NUM_WARPS,
    )


def test_l2_norm(device, dtype, num_tokens, heads):
    x = strided(draw((num_tokens, *heads), dtype, device, generator(0)))
    actual = l2_norm(x, EPS)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert_close(actual, reference.l2_norm(for_reference(x), EPS), dtype)


def test_strided_heads(device, dtype):
    x = strided(draw((17, 3, 40), dtype, device, generator(1)))[..., 4:24]
    assert_close(l2_norm(x, EPS), reference.l2_norm(for_reference(x), EPS), dtype)


def test_eps_is_added_to_the_sum(device):
    x = torch.full((1, 1, 4), 2.0, device=device)
    assert_close(l2_norm(x, 9.0), torch.full((1, 1, 4), 2 / 5), torch.float32)


def test_nothing_is_written_past_the_end(device, num_tokens):
    x = draw((num_tokens, 3, 20), torch.float32, device, generator(2))
    out = poisoned((num_tokens + 8, 3, 20), x.dtype, device)
    launch(l2norm_kernel, x, out)
    assert not out[:num_tokens].isnan().any()
    assert out[num_tokens:].isnan().all()


def test_runtime_length_equals_constexpr_length_bitwise(device, dtype, num_tokens, heads):
    x = strided(draw((num_tokens, *heads), dtype, device, generator(3)))
    expected = torch.zeros((num_tokens, *heads), dtype=dtype, device=device)
    launch(with_constexpr_length(l2norm_kernel), x, expected)
    assert torch.equal(l2_norm(x, EPS), expected)
    assert expected.any()


@pytest.mark.gpu
def test_only_the_twin_has_a_variant_for_each_length():
    lengths = (1, 15, 16, 17, 64, 255, 1025)
    for kernel, expected in ((l2norm_kernel, 1), (with_constexpr_length(l2norm_kernel), 7)):
        inputs = [torch.ones((num_tokens, 5, 48), device="cuda") for num_tokens in lengths]
        variants = {launch(kernel, x, torch.empty_like(x)).hash for x in inputs}
        assert len(variants) == expected
