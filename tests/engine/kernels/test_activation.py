"""The SwiGLU activation against the reference."""

from __future__ import annotations

import pytest
import torch

from engine.kernels import reference
from engine.kernels.activation import silu_and_mul
from tests.engine.kernels.checks import assert_close, draw, for_reference, generator, strided


@pytest.mark.parametrize("width", [20, 64, 512, 1100, 14336])
def test_silu_and_mul(device, dtype, num_tokens, width):
    if device == "cpu" and width > 64 and (width > 1100 or num_tokens > 16):
        pytest.skip("needs a GPU")
    x = strided(draw((num_tokens, 2 * width), dtype, device, generator(0)))
    actual = silu_and_mul(x)
    assert actual.dtype == dtype
    assert actual.is_contiguous()
    assert_close(actual, reference.silu_and_mul(for_reference(x)), dtype)


def test_large_gates(device):
    x = torch.tensor([[-1e4, -100.0, 100.0, 1e4, 2.0, 2.0, 2.0, 2.0]], device=device)
    assert_close(silu_and_mul(x), torch.tensor([[0.0, 0.0, 200.0, 2e4]]), torch.float32)
