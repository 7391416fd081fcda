"""What kernel tests share: inputs that show a wrong read, and the comparison with the reference."""

from __future__ import annotations

import os

import torch
from torch import Tensor

TOKENS = (1, 15, 16, 17, 63, 64, 65, 255, 1025)
INTERPRETED_TOKENS = (1, 15, 16, 17, 63, 64, 65)

# max|Δ| / max|reference|: float32 with input_precision="ieee", and bfloat16.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Memory full of NaN: whatever is read of it and not written first shows in the result."""
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def strided(values: Tensor, before: int = 16, after: int = 24) -> Tensor:
    """The same values as a view into a wider, NaN-filled tensor: tokens strided, tail poisoned.

    `values: [num_tokens, …]` is put at column `before` of `[num_tokens + 1, before + … + after]`.
    """
    rows, width = values.shape[0], values[0].numel()
    wide = poisoned((rows + 1, before + width + after), values.dtype, str(values.device))
    view = wide[:rows, before : before + width]
    view.copy_(values.reshape(rows, width))
    return view.unflatten(1, values.shape[1:]) if values.dim() > 1 else view[:, 0]


def for_reference(value: object) -> object:
    """A copy of `value` as the reference takes it: on the CPU, floats in float32, contiguous."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu().clone(memory_format=torch.contiguous_format)
    return value.float() if value.is_floating_point() else value


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype, what: str = "") -> None:
    """`max|Δ| / max|expected|` within the tolerance of `dtype`; a NaN is never close."""
    assert actual.shape == expected.shape, f"{what} {actual.shape} != {expected.shape}"
    difference = (actual.detach().cpu().float() - expected.float()).abs().max().item()
    largest = expected.float().abs().max().item()
    assert difference <= TOLERANCE[dtype] * largest, (
        f"{what} max|Δ| {difference:.3g} over max|reference| {largest:.3g} "
        f"= {difference / largest if largest else float('inf'):.3g}, allowed {TOLERANCE[dtype]}"
    )


def generator(seed: int) -> torch.Generator:
    """The CPU generator that a test draws its inputs from."""
    return torch.Generator().manual_seed(seed)


def draw(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, random: torch.Generator
) -> Tensor:
    """Normal values, drawn on the CPU so that both devices see the same."""
    return torch.randn(shape, generator=random).to(dtype).to(device)


def interpreting() -> bool:
    """Whether kernels run in Triton's interpreter here."""
    return os.environ.get("TRITON_INTERPRET") == "1"
