"""The engine's operations: `reference` in plain torch, `fused` as Triton kernels, same names."""

from __future__ import annotations

import importlib
from types import ModuleType


def load_operations(name: str) -> ModuleType:
    """The module `reference` or `fused`; a CPU run doesn't import triton."""
    return importlib.import_module(f"engine.kernels.{name}")
