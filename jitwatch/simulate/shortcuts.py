"""Functions that a forward calls hundreds of times, answered without torch's way to the answer.

Owns the short way of `torch.empty` and `empty_like` on the device and of `linear` over
matrices: what they return has no values, and its shape is told at once. All else about
them, errors included, goes the long way, through the handlers given to `shortcut_handlers`
or the mode's `run`.
"""

from __future__ import annotations

from typing import Any

import torch

from jitwatch.simulate.devices import META, real_device
from jitwatch.simulate.tensors import Arguments, Handler, Keywords, SimulatedTensors

_Mode = SimulatedTensors

#: No values are followed of these, and a GPU multiplies matrices of them.
_FLOATS = frozenset((torch.bfloat16, torch.float16, torch.float32, torch.float64))
#: Subclasses of these may have a `linear` of their own.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def _empty(long_way: Handler) -> Handler:
    def handle(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        given = 1 if "dtype" in kwargs else 0
        if len(kwargs) != given + 1 or real_device(kwargs.get("device")) is not META:
            return long_way(mode, func, args, kwargs)
        try:
            result = func(*args, **{**kwargs, "device": META})
        except RuntimeError:
            return long_way(mode, func, args, kwargs)
        mode.count(result)
        return result

    return handle


def _linear(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    shape = None if kwargs else _product(*args)
    if shape is None:
        return mode.run(func, args, kwargs)
    return _made(mode, shape, (max(shape[1], 1), 1), args[0].dtype)


def _empty_like(long_way: Handler) -> Handler:
    def handle(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        source: Any = args[0] if len(args) == 1 and not kwargs else None
        if _is_followed() or not (_is_floating(source) and source.is_contiguous()):
            return long_way(mode, func, args, kwargs)
        return _made(mode, source.size(), source.stride(), source.dtype)

    return handle


def _made(mode: _Mode, shape: Any, stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    # Where the strides are known this takes half of torch.empty's time.
    result = torch.empty_strided(shape, stride, dtype=dtype, device=META)
    mode.count(result)
    return result


def _product(x: Any = None, weight: Any = None, bias: Any = None, *rest: Any) -> Any:
    """The shape of `x @ weight.T + bias`; None where torch itself must answer.

    That is where an operand is wrong or unusual, a gradient is needed, or something else
    than the mode (a dispatch mode, functorch, a tracer) follows what is called.
    """
    if _is_followed() or rest or not (_is_matrix(x) and _is_matrix(weight)):
        return None
    dtype, (rows, width), (columns, weight_width) = x.dtype, x.shape, weight.shape
    if dtype not in _FLOATS or weight.dtype is not dtype or weight_width != width:
        return None
    needs_gradient = x.requires_grad or weight.requires_grad
    if bias is not None:
        if not _is_strided(bias) or bias.dtype is not dtype or bias.shape != (columns,):
            return None
        needs_gradient = needs_gradient or bias.requires_grad
    return None if needs_gradient and torch.is_grad_enabled() else (rows, columns)


def _is_matrix(value: Any) -> bool:
    return _is_strided(value) and value.dim() == 2


def _is_floating(value: Any) -> bool:
    # What integers were computed from is followed further.
    return _is_strided(value) and value.dtype in _FLOATS


def _is_strided(value: Any) -> bool:
    return type(value) in _PLAIN and value.is_meta and value.layout is torch.strided


def _is_followed() -> bool:
    # Asked before anything else, as a function mode beneath would see the questions too.
    return bool(
        torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


def shortcut_handlers(others: dict[Any, Handler]) -> dict[Any, Handler]:
    """The handlers, by torch function; the long way is the one in `others`."""
    return {
        torch.empty: _empty(others[torch.empty]),
        torch.empty_like: _empty_like(others[torch.empty_like]),
        torch.nn.functional.linear: _linear,
    }
