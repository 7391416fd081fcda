"""The driver hook, armed against the fake libcupti and driver of tests/fake_cuda."""

from __future__ import annotations

import ctypes
import shutil

import pytest

from jitwatch.sources.driver import DriverHook
from tests.fake_cuda import build_fake, open_fake

#: No lookup takes this long: a busy machine makes no slow ones.
NEVER_NS = 2**62


@pytest.fixture(scope="session")
def fake_path(tmp_path_factory):
    """A fake CUPTI under the real one's name, so that the search for a mapped one finds it."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return build_fake(tmp_path_factory.mktemp("fake") / "libcupti.so.13")


@pytest.fixture
def fake(fake_path):
    library = open_fake(fake_path)
    yield library
    library.fake_set_taken(0)
    library.fake_set_result(0)
    library.fake_set_names_known(1)
    library.fake_set_lookup_ms(0)


@pytest.fixture
def hook(fake, fake_path, tmp_path):
    armed = DriverHook.arm(tmp_path, cupti=fake_path)
    slow_lookup_ns = ctypes.c_int64.in_dll(armed._library, "jw_slow_lookup_ns")
    default, slow_lookup_ns.value = slow_lookup_ns.value, NEVER_NS
    yield armed
    slow_lookup_ns.value = default
    armed.set_ready(False)
    armed.set_explained(False)
    armed.set_step(None)
    armed.disarm()
