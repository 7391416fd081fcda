"""RMS norms against the reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import reference
from engine.kernels.norm import add_rms_norm, gated_rms_norm, rms_norm
from tests.engine.kernels.checks import assert_close, draw, for_reference, generator, strided

EPS = 1e-6


@pytest.fixture(params=[20, 64, 2048, 5120])
def width(request, device):
    if device == "cpu" and request.param > 64:
        pytest.skip("needs a GPU")
    return request.param


@pytest.fixture(params=[(3, 20), (4, 32), (32, 128)], ids=str)
def heads(request, device):
    if device == "cpu" and request.param[1] > 64:
        pytest.skip("needs a GPU")
    return request.param


@pytest.mark.parametrize("plus_one", [False, True])
def test_rms_norm(device, dtype, num_tokens, width, plus_one):
    random = generator(0)
    x = strided(draw((num_tokens, width), dtype, device, random))
    weight = draw((width,), dtype, device, random)
    expected = reference.rms_norm(for_reference(x), for_reference(weight), EPS, plus_one=plus_one)
    actual = rms_norm(x, weight, EPS, plus_one=plus_one)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert_close(actual, expected, dtype)


def test_rms_norm_of_zeros_is_zero(device, dtype):
    x = torch.zeros((2, 20), dtype=dtype, device=device)
    weight = torch.ones(20, dtype=dtype, device=device)
    assert torch.equal(rms_norm(x, weight, EPS), x)


def test_rms_norm_adds_eps_to_the_mean(device):
    x = torch.full((1, 20), 2.0, device=device)
    actual = rms_norm(x, torch.ones(20, device=device), 5.0)
    assert_close(actual, torch.full((1, 20), 2 / 3), torch.float32)


@pytest.mark.parametrize("plus_one", [False, True])
def test_add_rms_norm(device, dtype, num_tokens, width, plus_one):
    random = generator(1)
    x = strided(draw((num_tokens, width), dtype, device, random))
    residual = strided(draw((num_tokens, width), dtype, device, random), before=8, after=8)
    weight = draw((width,), dtype, device, random)
    summed = for_reference(residual.clone())
    expected = reference.add_rms_norm(
        for_reference(x), summed, for_reference(weight), EPS, plus_one=plus_one
    )
    actual = add_rms_norm(x, residual, weight, EPS, plus_one=plus_one)
    assert actual.is_contiguous()
    assert_close(actual, expected, dtype)
    assert_close(residual, summed, dtype, "residual")


def test_add_rms_norm_normalises_the_rounded_sum(device):
    random = generator(3)
    x, residual = (draw((4, 64), torch.bfloat16, device, random) for _ in range(2))
    ones = torch.ones(64, dtype=torch.bfloat16, device=device)
    summed = residual.float() + x.float()
    actual = add_rms_norm(x, residual, ones, EPS)
    assert not torch.equal(residual.float(), summed), "these inputs round nothing"
    assert torch.equal(actual, rms_norm(residual, ones, EPS))


def test_add_rms_norm_leaves_its_surroundings(device, dtype):
    residual = strided(torch.ones((3, 20), dtype=dtype, device=device))
    x = torch.ones((3, 20), dtype=dtype, device=device)
    add_rms_norm(x, residual, torch.ones(20, dtype=dtype, device=device), EPS)
    written = residual._base.isnan().logical_not()
    assert written.sum() == residual.numel()


def test_gated_rms_norm(device, dtype, num_tokens, heads):
    random = generator(2)
    x = strided(draw((num_tokens, *heads), dtype, device, random), before=8, after=8)
    gate = strided(draw((num_tokens, *heads), dtype, device, random))
    weight = draw((heads[1],), dtype, device, random)
    arguments = (x, gate, weight, EPS)
    expected = reference.gated_rms_norm(*map(for_reference, arguments))
    actual = gated_rms_norm(*arguments)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert_close(actual, expected, dtype)


def test_gated_rms_norm_takes_large_gates(device):
    x = torch.ones((1, 1, 4), device=device)
    gate = torch.tensor([[[-1e4, -100.0, 100.0, 1e4]]], device=device)
    actual = gated_rms_norm(x, gate, torch.ones(4, device=device), EPS)
    assert_close(actual, torch.tensor([[[0.0, 0.0, 100.0, 1e4]]]), torch.float32)
