"""Tensors on their way between the host and the simulated device.

Owns the handlers of `.to`, `.cuda`, `.cpu`, `copy_`, the factories that take data, pinned
memory and `.data = `. What is read back is readback.py's.
"""

from __future__ import annotations

from typing import Any

import torch

from jitwatch.simulate.devices import META, real_device
from jitwatch.simulate.readback import host_copy
from jitwatch.simulate.tensors import (
    Arguments,
    Handler,
    Keywords,
    SimulatedTensors,
    real_keywords,
    tensors_in,
)
from jitwatch.simulate.values import block_for, know, may_be_known, twin_of

_Mode = SimulatedTensors
_CPU = torch.device("cpu")
_PINNED = "_jitwatch_pinned"


def _to(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    kwargs = real_keywords(kwargs)
    if len(args) > 1 and not isinstance(args[1], torch.Tensor | torch.dtype | bool):
        args = (args[0], real_device(args[1]), *args[2:])
    target = kwargs.get("device", kwargs.get("other"))
    if len(args) > 1 and isinstance(args[1], torch.device | torch.Tensor | str):
        target = args[1]
    if isinstance(target, torch.Tensor):
        target = target.device
    tensor = args[0]
    if target is None or torch.device(target).type == tensor.device.type:
        return mode.run(func, args, kwargs)
    if tensor.is_meta:
        waits = not (kwargs.get("non_blocking") or True in args[2:])
        return func(host_copy(mode, tensor, "a copy to the CPU", waits=waits), *args[1:], **kwargs)
    return _to_device(mode, func, args, kwargs)


def _to_device(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    result = func(*args, **kwargs)
    if result.is_meta:
        block_for(result, mode.memory)
        if may_be_known(result):
            know(result, args[0].to(_CPU, result.dtype))
    return result


def _cuda(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    device = args[1] if len(args) > 1 else kwargs.get("device")
    real_device("cuda" if device is None else device)
    rest = {name: value for name, value in kwargs.items() if name != "device"}
    return _to(mode, torch.Tensor.to, (args[0], META), rest)


def _cpu(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    if not args[0].is_meta:
        return func(*args, **kwargs)
    return host_copy(mode, args[0], "a copy to the CPU")


def _copy(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    target = args[0]
    source = args[1] if len(args) > 1 else kwargs.get("src")
    if target.is_meta or not isinstance(source, torch.Tensor) or not source.is_meta:
        return mode.run(func, args, kwargs)
    waits = not (kwargs.get("non_blocking") or True in args[2:])
    return target.copy_(host_copy(mode, source, "a copy to the CPU", waits=waits))


def _from_data(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """`torch.tensor` and its like: data may be a simulated tensor, or hold some."""
    data = args[0] if args else kwargs.get("data", kwargs.get("obj"))
    kwargs = real_keywords(kwargs)
    if isinstance(data, torch.Tensor):
        device = kwargs.get("device")
        if data.is_meta and device is not None and torch.device(device).type != "meta":
            read = host_copy(mode, data, "a copy to the CPU")
            return func(read, *args[1:], **kwargs)
        if not data.is_meta and device == META:
            return _to_device(mode, func, args, kwargs)
    elif any(one.is_meta for one in tensors_in(data)):
        args = (_read_items(mode, data), *args[1:])
        kwargs = {name: value for name, value in kwargs.items() if name not in ("data", "obj")}
    return mode.run(func, args, kwargs)


def _read_items(mode: _Mode, data: Any) -> Any:
    if isinstance(data, torch.Tensor):
        return host_copy(mode, data, "a number in new data") if data.is_meta else data
    if isinstance(data, tuple | list):
        return [_read_items(mode, one) for one in data]
    return data


def _parse_to(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    if args and not isinstance(args[0], torch.Tensor | torch.dtype | bool):
        args = (real_device(args[0]), *args[1:])
    return func(*args, **real_keywords(kwargs))


def _set_data(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """`param.data = moved`: torch refuses to change the CPU's kind of tensor into meta's."""
    tensor, value = args
    if tensor.is_meta == value.is_meta:
        return func(*args, **kwargs)
    moved = torch.Tensor._make_subclass(torch.Tensor, value.detach(), tensor.requires_grad)
    if tensor.grad is not None:
        moved.grad = torch.empty_like(tensor.grad, device=value.device)
    return torch._C._swap_tensor_impl(tensor, moved)


def _shallow_copy(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> bool:
    """CPU and CUDA tensors are compatible, so that Module.to keeps its parameters."""
    return bool(func(*args)) or args[0].is_meta != args[1].is_meta


def _deepcopy(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    result = func(*args, **kwargs)
    twin = twin_of(args[0]) if args[0].is_meta else None
    if twin is not None and result is not args[0]:
        block_for(result, mode.memory)
        know(result, twin)
    return result


def _pin_memory(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> torch.Tensor:
    tensor: torch.Tensor = args[0]
    if tensor.is_meta:
        kind = _cuda_type(tensor)
        raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")
    setattr(tensor.untyped_storage(), _PINNED, True)
    return tensor


def _cuda_type(tensor: torch.Tensor) -> str:
    name: str = torch.empty(0, dtype=tensor.dtype, device=_CPU).type()
    return name.replace("torch.", "torch.cuda.")


def _is_pinned(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> bool:
    return hasattr(args[0].untyped_storage(), _PINNED)


def _pinned_factory(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    pinned = kwargs.get("pin_memory")
    result = mode.run(func, args, kwargs)
    if pinned and not result.is_meta:
        setattr(result.untyped_storage(), _PINNED, True)
    return result


_FROM_DATA = ("tensor", "as_tensor", "asarray")
_PINNABLE = "empty zeros ones full rand randn randint arange empty_strided empty_like zeros_like"


def transfer_handlers() -> dict[Any, Handler]:
    """The handlers, by torch function."""
    tensor = torch.Tensor
    handlers: dict[Any, Handler] = {getattr(torch, name): _from_data for name in _FROM_DATA}
    handlers |= {getattr(torch, name): _pinned_factory for name in _PINNABLE.split()}
    handlers |= {
        tensor.to: _to,
        tensor.cuda: _cuda,
        tensor.cpu: _cpu,
        tensor.copy_: _copy,
        tensor.data.__set__: _set_data,
        tensor.pin_memory: _pin_memory,
        tensor.is_pinned: _is_pinned,
        tensor.__deepcopy__: _deepcopy,
        torch._C._nn._parse_to: _parse_to,
        torch._has_compatible_shallow_copy_type: _shallow_copy,
    }
    return handlers
