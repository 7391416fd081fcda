"""Native kernels loaded through tvm-ffi: on a device that isn't there they launch nothing.

A function of a loaded module that is given a simulated tensor is left out, its
tensors count as written, and its name is listed once; with CPU tensors alone it
runs as it is. Knows nothing of who built the module.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from jitwatch.simulate.values import kernel_wrote


class NativeModule:
    """A loaded module whose functions leave out what needs a real device."""

    def __init__(self, module: Any, note: Callable[[str], None]) -> None:
        self._module = module
        self._note = note

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        return _function(found, name, self._note) if callable(found) else found

    def __getitem__(self, name: str) -> Any:
        return _function(self._module[name], name, self._note)


def install(note: Callable[[str], None]) -> Callable[[], None]:
    """Wrap `tvm_ffi.load_module`, where tvm-ffi is installed; returns what undoes it.

    `note` is told once for each function that was left out.
    """
    if importlib.util.find_spec("tvm_ffi") is None:
        return lambda: None
    import tvm_ffi

    load = tvm_ffi.load_module
    noted: set[str] = set()

    def note_once(name: str) -> None:
        if name not in noted:
            noted.add(name)
            note(f"native kernel {name} (tvm-ffi) is not launched")

    def load_module(*args: Any, **kwargs: Any) -> NativeModule:
        return NativeModule(load(*args, **kwargs), note_once)

    tvm_ffi.load_module = load_module

    def undo() -> None:
        tvm_ffi.load_module = load

    return undo


def _function(function: Any, name: str, note: Callable[[str], None]) -> Any:
    @functools.wraps(function, assigned=())
    def call(*args: Any, **kwargs: Any) -> Any:
        values = (*args, *kwargs.values())
        simulated = [v for v in values if isinstance(v, torch.Tensor) and v.is_cuda]
        if not simulated:
            return function(*args, **kwargs)
        note(name)
        for tensor in simulated:
            kernel_wrote(tensor)
        return None

    return call
