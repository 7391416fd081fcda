"""Indexing by what may be a simulated tensor, and the functions whose shape is in values.

Owns the handlers of `x[...]`, `x[...] = v`, `masked_select`, `repeat_interleave` and the
backward pass. What is unknown and needed for a shape is an error here.
"""

from __future__ import annotations

from typing import Any

import torch

from jitwatch.simulate.assumptions import unknown_shape
from jitwatch.simulate.readback import host_copy
from jitwatch.simulate.rules import rule_of
from jitwatch.simulate.tensors import (
    Arguments,
    Handler,
    Keywords,
    SimulatedTensors,
    tensors_in,
    without_override,
)
from jitwatch.simulate.values import block_for, forget, know_items, may_be_known, twin_of

_Mode = SimulatedTensors
_MASKS = (torch.bool, torch.uint8)
#: Most of an index is of these, which hold no tensor.
_PLAIN = frozenset((int, type(None), type(...)))


def _getitem(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    tensor, index = args
    if _holds_tensor(index):
        index = _plain_index(mode, tensor, index)
    result = func(tensor, index)
    mode.adopt(func, (tensor, index), {}, rule_of(func), result)
    return result


def _setitem(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> None:
    tensor, index, value = args
    if _holds_tensor(index):
        index = _plain_index(mode, tensor, index, writing=True)
    if not tensor.is_meta:
        if isinstance(value, torch.Tensor) and value.is_meta:
            value = host_copy(mode, value, "a copy to the CPU")
        func(tensor, index, value)
        return
    func(tensor, index, value)
    if not may_be_known(tensor):
        return
    block_for(tensor, mode.memory)
    host_index, host_value = _on_host(index), _on_host(value)
    if host_index is None:
        forget(tensor)
    elif host_value is None:
        _forget_items(tensor, index)
    else:
        know_items(tensor, host_index[0], host_value[0])


def _forget_items(tensor: torch.Tensor, index: Any) -> None:
    part = tensor[index]
    shares = part.untyped_storage()._cdata == tensor.untyped_storage()._cdata
    forget(part if shares else tensor)


def _on_host(value: Any) -> tuple[Any] | None:
    """The value with twins for simulated tensors, in a tuple; None where one is unknown."""
    if isinstance(value, torch.Tensor) and value.is_meta:
        twin = twin_of(value)
        return None if twin is None else (twin,)
    if type(value) in (tuple, list):
        parts = [_on_host(one) for one in value]
        if any(one is None for one in parts):
            return None
        return (type(value)(one[0] for one in parts if one is not None),)
    return (value,)


def _holds_tensor(index: Any) -> bool:
    if type(index) in _PLAIN:
        return False
    if isinstance(index, torch.Tensor):
        return True
    if isinstance(index, slice):
        return any(_holds_tensor(one) for one in (index.start, index.stop, index.step))
    if isinstance(index, list) and _is_mask(index):
        return True
    return isinstance(index, tuple | list) and any(_holds_tensor(one) for one in index)


def _is_mask(index: list[Any]) -> bool:
    return any(isinstance(one, bool) for one in index)


def _plain_index(mode: _Mode, tensor: torch.Tensor, index: Any, *, writing: bool = False) -> Any:
    """The index without simulated masks and numbers, which torch could not read.

    Raises:
        RuntimeError: a CPU tensor indexed by a CUDA one, as torch has it.
        SimulationError: a mask or a bound that only a kernel could compute.
    """
    if not tensor.is_meta and any(one.is_meta and one.dim() for one in tensors_in(index)):
        raise RuntimeError(
            "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
        )
    parts: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        parts.extend(_plain_part(mode, part, writing))
    return tuple(parts) if isinstance(index, tuple) or len(parts) > 1 else parts[0]


def _plain_part(mode: _Mode, part: Any, writing: bool) -> list[Any]:
    if isinstance(part, slice):
        return [slice(*(_bound(mode, one) for one in (part.start, part.stop, part.step)))]
    if isinstance(part, list) and _is_mask(part):
        return [torch.tensor(part, device="cpu")]  # which torch would move to the device first
    if not isinstance(part, torch.Tensor) or not part.is_meta:
        return [part]
    if part.dtype in _MASKS:
        twin = twin_of(part)
        if twin is not None and part.dim():
            return list(mode.upload(twin.nonzero().unbind(1)))
        if twin is not None:
            return [bool(twin)]
        if writing:
            return [part]  # where it writes is unknown, but no shape depends on that
        raise unknown_shape("indexing with a mask")
    if part.dim() == 0:
        return [int(host_copy(mode, part, "an index"))]
    return [part]


def _bound(mode: _Mode, bound: Any) -> Any:
    if not isinstance(bound, torch.Tensor) or not bound.is_meta:
        return bound
    if twin_of(bound) is None:
        raise unknown_shape("a slice")
    return int(host_copy(mode, bound, "a slice"))


def _masked_select(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    tensor, mask = (*args, *kwargs.values())[:2]
    if not tensor.is_meta or not mask.is_meta:
        return mode.run(func, args, kwargs)
    tensor, mask = torch.broadcast_tensors(tensor, mask)
    return _getitem(mode, torch.Tensor.__getitem__, (tensor, mask), {})


def _repeat_interleave(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0])
    given = kwargs.get("output_size") is not None
    if given or not isinstance(repeats, torch.Tensor) or not repeats.is_meta:
        return mode.run(func, args, kwargs)
    twin = twin_of(repeats)
    if twin is None:
        raise unknown_shape("repeat_interleave() without output_size")
    tensor = args[0] if args else kwargs["input"]
    dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
    length = tensor.numel() if dim is None else tensor.size(dim)
    total = int(twin.sum()) * (length if twin.numel() == 1 and tensor is not repeats else 1)
    return mode.run(func, args, {**kwargs, "output_size": total})


def _python(function: Any) -> Handler:
    body = without_override(function)

    def handle(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        return mode.reenter(body, args, kwargs)

    return handle


def indexing_handlers() -> dict[Any, Handler]:
    """The handlers, by torch function."""
    tensor = torch.Tensor
    return {
        tensor.__getitem__: _getitem,
        tensor.__setitem__: _setitem,
        torch.masked_select: _masked_select,
        tensor.masked_select: _masked_select,
        torch.repeat_interleave: _repeat_interleave,
        tensor.repeat_interleave: _repeat_interleave,
        # Their bodies run user code, which must see the device.
        tensor.backward: _python(tensor.backward),
        torch.autograd.backward: _python(torch.autograd.backward),
        torch.autograd.grad: _python(torch.autograd.grad),
    }
