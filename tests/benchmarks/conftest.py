"""A benchmark as a module: what its script says at the top level, with its neighbours in reach."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from tests.fake_cuda import ROOT


@pytest.fixture
def load_benchmark(monkeypatch):
    """A function that imports benchmarks/NAME.py; after the test nobody finds it any more."""

    def load(name):
        monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
        spec = importlib.util.spec_from_file_location(name, ROOT / f"benchmarks/{name}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return load
