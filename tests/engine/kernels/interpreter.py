"""What Triton's interpreter gets wrong, put right for the length of a test."""

from __future__ import annotations

from typing import Any

import pytest


def repair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make dots of bfloat16 multiply numbers, and tensors loop bounds under every NumPy.

    The interpreter holds bfloat16 as its bits in uint16, and `tl.dot` multiplies those as integers
    (Triton 3.6 to 3.9). Triton before 3.9 makes a loop bound by `int(array)` of an array of one
    element and one dimension, which NumPy 2.4 refuses.
    """
    import numpy as np
    from triton.language import core
    from triton.runtime import interpreter

    multiply = interpreter.InterpreterBuilder.create_dot
    patch_tensor = interpreter._patch_lang_tensor

    def wide(handle: Any) -> Any:
        if handle.dtype.scalar != core.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), core.float32)

    def create_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(builder, wide(a), wide(b), *rest)

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_lang_tensor)
