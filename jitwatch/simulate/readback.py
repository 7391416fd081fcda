"""Simulated values on their way to the host.

Owns the handlers of `.item()`, `.tolist()`, `bool()` and their like: a value the host
wrote comes back as it is, one that only a kernel could compute as zero, noted as assumed.
"""

from __future__ import annotations

from typing import Any

import torch

from jitwatch.simulate.assumptions import unknown_branch
from jitwatch.simulate.devices import accelerator_error
from jitwatch.simulate.memory import block_of
from jitwatch.simulate.tensors import Arguments, Handler, Keywords, SimulatedTensors, tensors_in
from jitwatch.simulate.values import twin_of

_Mode = SimulatedTensors


def host_copy(
    mode: _Mode, tensor: torch.Tensor, what: str, *, answer: str = "0", waits: bool = True
) -> torch.Tensor:
    """The tensor's values on the CPU, zeros where only a kernel could compute them.

    `waits`: a real device would be synchronized with, which no capture allows.

    Raises:
        torch.AcceleratorError: it waits, and the thread captures a graph.
        SimulationError: the values are unknown, under strict values.
    """
    if waits and mode.capturing():
        raise accelerator_error("CUDA error: operation not permitted when stream is capturing")
    twin = twin_of(tensor)
    if twin is not None:
        return twin.clone()
    mode.assumptions.assume(what, answer)
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def _scalar(what: str) -> Handler:
    def handle(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        if not args[0].is_meta:
            return func(*args, **kwargs)
        return func(host_copy(mode, args[0], what), *args[1:], **kwargs)

    return handle


def _truth(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    tensor = args[0]
    if not tensor.is_meta:
        return func(*args, **kwargs)
    if twin_of(tensor) is None:
        block = block_of(tensor.untyped_storage())
        derived = block is not None and block.float_derived
        if derived or tensor.is_floating_point() or tensor.is_complex():
            raise unknown_branch()
    return func(host_copy(mode, tensor, "bool()", answer="False"), *args[1:])


def _compare(what: str) -> Handler:
    def handle(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        sides = tensors_in((args, kwargs))
        if not any(one.is_meta for one in sides):
            return func(*args, **kwargs)
        if len(sides) == 2 and what != "in":
            _same_place(func, sides)
            if sides[0].shape != sides[1].shape:
                return func(*(torch.zeros(one.shape, device="cpu") for one in sides), *args[2:])
        twins = [twin_of(one) if one.is_meta else one for one in sides]
        if mode.capturing() or any(one is None for one in twins):
            for side, twin in zip(sides, twins, strict=True):
                if twin is None:
                    host_copy(mode, side, what, answer="False")
            if mode.capturing():
                host_copy(mode, sides[0], what)
            return False
        known = dict(zip(map(id, sides), twins, strict=True))
        return func(*(known.get(id(one), one) for one in args), **kwargs)

    return handle


def _same_place(func: Any, sides: list[torch.Tensor]) -> None:
    if sides[0].is_meta != sides[1].is_meta:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {func.__name__}() got one on "
            "cuda:0 and one on cpu"
        )


def _numpy(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    if not args[0].is_meta:
        return func(*args, **kwargs)
    raise TypeError(
        "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor "
        "to host memory first."
    )


def _format(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    tensor = args[0]
    if not tensor.is_meta:
        return func(*args, **kwargs)
    if tensor.dim() == 0:
        return func(host_copy(mode, tensor, "format()"), *args[1:])
    return format(mode.reenter(repr, (tensor,), {}), *args[1:])


def readback_handlers() -> dict[Any, Handler]:
    """The handlers, by torch function."""
    tensor = torch.Tensor
    return {
        tensor.item: _scalar("item()"),
        tensor.tolist: _scalar("tolist()"),
        tensor.__int__: _scalar("int()"),
        tensor.__float__: _scalar("float()"),
        tensor.__complex__: _scalar("complex()"),
        tensor.__index__: _scalar("an index"),
        tensor.__bool__: _truth,
        tensor.is_nonzero: _truth,
        torch.is_nonzero: _truth,
        torch.equal: _compare("equal()"),
        tensor.equal: _compare("equal()"),
        torch.allclose: _compare("allclose()"),
        tensor.allclose: _compare("allclose()"),
        tensor.__contains__: _compare("in"),
        tensor.numpy: _numpy,
        tensor.__array__: _numpy,
        tensor.__format__: _format,
    }
