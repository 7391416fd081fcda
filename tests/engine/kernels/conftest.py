"""Where kernel tests run: on the GPU, or in Triton's interpreter with `TRITON_INTERPRET=1`.

The interpreter must be chosen before triton is imported, so those tests are a pytest run of their
own (`make test` does both).
"""

from __future__ import annotations

import pytest

from tests.engine.kernels.checks import INTERPRETED_TOKENS, TOKENS, interpreting
from tests.engine.kernels.interpreter import repair


@pytest.fixture(autouse=True)
def sound_interpreter(monkeypatch):
    """Triton's interpreter without its faults, where tests run in it."""
    if interpreting():
        repair(monkeypatch)


@pytest.fixture(params=[pytest.param("cuda", marks=pytest.mark.gpu), "interpreter"])
def device(request):
    """The torch device to put a kernel's arguments on."""
    if request.param == "cuda":
        if interpreting():
            pytest.skip("needs a run without TRITON_INTERPRET=1")
        return "cuda"
    if not interpreting():
        pytest.skip("needs TRITON_INTERPRET=1")
    return "cpu"


@pytest.fixture(params=TOKENS)
def num_tokens(request, device):
    """Token counts at and beside every tile edge; the long ones on a GPU only."""
    if device == "cpu" and request.param not in INTERPRETED_TOKENS:
        pytest.skip("needs a GPU")
    return request.param


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request):
    import torch

    return getattr(torch, request.param)
