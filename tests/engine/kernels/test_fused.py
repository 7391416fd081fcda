"""Both sets of operations answer to the same names in the same way."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

from engine.kernels import load_operations

# Parts of the reference that are not operations.
PARTS = {"rotate", "kept_tokens"}


def operations(module):
    found = dict(inspect.getmembers(module, inspect.isfunction))
    return {
        name: inspect.signature(function)
        for name, function in found.items()
        if not name.startswith("_") and function.__module__.startswith("engine.kernels")
    }


def test_the_same_operations_with_the_same_signatures():
    reference, fused = load_operations("reference"), load_operations("fused")
    assert set(fused.__all__) == set(operations(fused)) | {"SAMPLING_VARIANTS", "STATEMENTS"}
    expected = {
        name: signature
        for name, signature in operations(reference).items()
        if name not in PARTS and getattr(reference, name).__module__ == reference.__name__
    }
    assert operations(fused) == expected


def test_a_cpu_run_imports_no_triton():
    program = (
        "import sys, engine; engine.LLM('tiny', device='cpu', kv_tokens=64).generate([1]);"
        "print('triton' in sys.modules)"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True
    )
    assert run.stdout.strip() == "False", run.stderr
