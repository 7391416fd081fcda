"""The CUDA implementations of custom operators registered from Python.

A custom operator called with meta tensors would run its fake implementation; the CUDA one
is what launches kernels. Owns the record of those functions, kept from `install` on; of
`torch.library.custom_op` also earlier ones are found. Operators written in C++ and
implementations that take a dispatch key set are not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload

#: Dispatch keys whose kernel a CUDA tensor would reach, the most specific first.
_KEYS = ("CUDA", "CompositeExplicitAutograd", "CompositeImplicitAutograd")

_implementations: dict[str, dict[str, Callable[..., Any]]] = {}


def remember_registrations(impl: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `torch.library.Library.impl` so that the functions given to it are remembered."""

    @functools.wraps(impl)
    def remembering(
        self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *args: Any, **kwargs: Any
    ) -> Any:
        result = impl(self, op_name, fn, dispatch_key, *args, **kwargs)
        key = dispatch_key or self.dispatch_key or "CompositeImplicitAutograd"
        if key in _KEYS and not (args or kwargs.get("with_keyset")):
            name = op_name._name if isinstance(op_name, OpOverload) else str(op_name)
            _implementations.setdefault(_qualified(self.ns, name), {})[key] = fn
        return result

    return remembering


def cuda_implementation(func: Any) -> Callable[..., Any] | None:
    """The Python function that a CUDA tensor would reach in this operator, if it is known."""
    if isinstance(func, OpOverload):
        name = func._name
    else:
        overloads = func.overloads()
        if len(overloads) != 1:
            return None  # which overload is meant is for the dispatcher to say
        name = getattr(func, overloads[0])._name
    registered = _implementations.get(name.removesuffix(".default"), {})
    for key in _KEYS:
        if key in registered:
            return registered[key]
    definition = OPDEFS.get(name.removesuffix(".default"))
    if definition is None:
        return None
    functions: dict[str | None, Callable[..., Any]] = definition._backend_fns
    return functions.get("cuda") or functions.get(None)


def _qualified(namespace: str, name: str) -> str:
    name = name if "::" in name else f"{namespace}::{name}"
    return name.removesuffix(".default")


def forget_registrations() -> None:
    """Drop the record."""
    _implementations.clear()
