"""Strides of `*_like` results as a real device gives them.

torch's meta implementations normalise the strides of dimensions of size 1 where the
CPU's and CUDA's keep the source's, and a kernel may have a stride as a constexpr.
Owns that correction alone.
"""

from __future__ import annotations

from typing import Any

import torch

from jitwatch.simulate.tensors import Arguments, Handler, Keywords, SimulatedTensors

_LIKE = "empty_like zeros_like ones_like full_like rand_like randn_like randint_like"


def like_handlers(others: dict[Any, Handler]) -> dict[Any, Handler]:
    """Handlers by torch function, each around the one in `others` where there is one."""
    functions = [getattr(torch, name) for name in _LIKE.split()]
    return {function: _keeping(others.get(function)) for function in functions}


def _keeping(inner: Handler | None) -> Handler:
    def handler(mode: SimulatedTensors, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        result = inner(mode, func, args, kwargs) if inner else mode.run(func, args, kwargs)
        source = args[0] if args else kwargs.get("input")
        preserves = kwargs.get("memory_format") in (None, torch.preserve_format)
        if preserves and source is not None and result.is_meta:
            with torch._C.DisableTorchFunction():
                _keep(source, result)
        return result

    return handler


def _keep(source: torch.Tensor, result: torch.Tensor) -> None:
    if source.layout != torch.strided or source.stride() == result.stride():
        return
    if torch.ops.aten.is_non_overlapping_and_dense.default(source):
        result.as_strided_(source.size(), source.stride())
