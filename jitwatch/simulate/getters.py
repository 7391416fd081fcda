"""What simulated tensors say of themselves.

Owns the handlers of the functions that only look at a tensor. Reads no values.
"""

from __future__ import annotations

from typing import Any

import torch

from jitwatch.simulate.devices import CUDA
from jitwatch.simulate.memory import ATTRIBUTE, Block
from jitwatch.simulate.rules import plain_getters
from jitwatch.simulate.tensors import (
    Arguments,
    Handler,
    Keywords,
    SimulatedTensors,
    only_looks,
)

_Mode = SimulatedTensors


def _device(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> torch.device:
    return CUDA if args[0].is_meta else func(*args)


def _is_cuda(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> bool:
    return bool(args[0].is_meta)


def _is_meta(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> bool:
    return False


def _get_device(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> int:
    return 0 if args[0].is_meta else func(*args)


def _data_ptr(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> int:
    tensor = args[0]
    offset: int = func(tensor)
    if not tensor.is_meta:
        return offset
    if not tensor.numel():
        return 0
    storage = tensor.untyped_storage()
    # Of every tensor of every launch: block_of's own call would show.
    block: Block = getattr(storage, ATTRIBUTE, None) or mode.memory.take(storage)
    return block.address + offset


def _type(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    tensor = args[0]
    if len(args) > 1 or kwargs or not tensor.is_meta:
        return mode.run(func, args, kwargs)
    name: str = torch.empty(0, dtype=tensor.dtype, device="cpu").type()
    return name.replace("torch.", "torch.cuda.")


def _repr(mode: _Mode, func: Any, args: Arguments, kwargs: Keywords) -> str:
    text: str = func(*args, **kwargs)
    return text.replace("device='meta'", f"device='{CUDA}'")


def getter_handlers() -> dict[Any, Handler]:
    """The handlers, by torch function."""
    tensor = torch.Tensor
    handlers: dict[Any, Handler] = dict.fromkeys(plain_getters(), only_looks)
    handlers |= {
        tensor.device.__get__: _device,
        tensor.is_cuda.__get__: _is_cuda,
        tensor.is_meta.__get__: _is_meta,
        tensor.get_device: _get_device,
        torch.get_device: _get_device,
        tensor.data_ptr: _data_ptr,
        tensor.type: _type,
        tensor.__repr__: _repr,
    }
    return handlers
