"""The driver hook: arming, what stands in its way, disarming, the self-test."""

from __future__ import annotations

import ctypes
import os
import sys
import types
from pathlib import Path

import pytest

from jitwatch.errors import DriverUnavailable
from jitwatch.sources import driver
from jitwatch.sources.driver import DriverHook
from jitwatch.sources.driver_log import read_records
from tests.fake_cuda import ONE_KERNEL, log_of


def test_a_taken_subscription_says_so_and_leaves_no_file(fake, fake_path, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    monkeypatch.delitem(sys.modules, "triton.profiler", raising=False)
    monkeypatch.setattr(driver, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    fake.fake_set_taken(1)
    with pytest.raises(DriverUnavailable) as caught:
        DriverHook.arm(tmp_path / "run", cupti=fake_path)
    assert str(caught.value) == (
        "the driver hook can't be armed: another tool holds CUPTI's only subscription\n"
        "  why: cuptiSubscribe returned 39 (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED): this "
        "process already has a subscriber; torch.profiler keeps it from its first use to the end "
        "of the process\n"
        "  fix: run without that tool; after torch.profiler, start a new process"
    )
    assert list((tmp_path / "shm").iterdir()) == []
    assert list((tmp_path / "run").iterdir()) == []
    fake.fake_set_taken(0)
    DriverHook.arm(tmp_path / "run", cupti=fake_path).disarm()  # the fix works


def test_a_library_that_is_no_cupti_is_named(tmp_path):
    with pytest.raises(DriverUnavailable, match=r"libm\.so\.6 has no cuptiSubscribe"):
        DriverHook.arm(tmp_path, cupti=Path("libm.so.6"))
    with pytest.raises(DriverUnavailable, match=r"nowhere\.so: cannot open shared object file"):
        DriverHook.arm(tmp_path, cupti=Path("/nowhere.so"))


def test_without_shared_memory_the_run_directory_is_used(fake_path, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "SHARED_MEMORY", tmp_path / "absent")
    hook = DriverHook.arm(tmp_path, cupti=fake_path)
    assert hook.record_path.parent == tmp_path
    hook.disarm()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"driver-{os.getpid()}.bin",
        f"driver-{os.getpid()}.stacks",
    ]


def test_the_files_leave_shared_memory_and_collecting_again_adds(hook, fake):
    shared = [hook.record_path, hook.stack_path]
    assert all(path.parent == driver.SHARED_MEMORY and path.exists() for path in shared)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    assert log_of(hook).loads == 1
    assert not any(path.exists() for path in shared)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    hook.disarm()
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    assert read_records(hook.collect()).loads == hook.counts().loads == 2


def test_arming_again_after_disarming_starts_a_new_file(hook, fake, fake_path, tmp_path):
    hook.set_step(3)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    hook.disarm()
    again = DriverHook.arm(tmp_path / "again", cupti=fake_path)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    records = log_of(again).records
    again.disarm()
    assert [r.parent for r in records] == [None, 0]


def test_arming_again_for_the_same_run_keeps_what_was_recorded(hook, fake, fake_path, tmp_path):
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    hook.disarm()
    again = DriverHook.arm(tmp_path, cupti=fake_path)
    fake.fake_load_many(2, ONE_KERNEL, len(ONE_KERNEL))
    again.disarm()
    assert (log_of(hook).loads, log_of(again).loads) == (1, 2)
    assert hook.collect().name == f"driver-{os.getpid()}.bin"
    assert again.collect().name.startswith(f"driver-{os.getpid()}-")


def test_a_call_cut_off_by_disarming_is_no_parent_afterwards(hook, fake, fake_path, tmp_path):
    fake.fake_begin_library_load()
    hook.disarm()
    again = DriverHook.arm(tmp_path / "again", cupti=fake_path)
    fake.fake_load_many(2, ONE_KERNEL, len(ONE_KERNEL))
    records = log_of(again).records
    again.disarm()
    assert [r.parent for r in records] == [None, 0, None, 2]


class FakeCudaBindings(types.ModuleType):
    """cuda.bindings.driver over the fake driver; `loads` modules for one call."""

    def __init__(self, fake: ctypes.CDLL, loads: int = 1, failing: str = "") -> None:
        super().__init__("cuda.bindings.driver")
        self.fake, self.loads, self.failing = fake, loads, failing

    def __getattr__(self, name: str):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: object) -> tuple[int, object]:
            if name == "cuModuleLoadData":
                self.fake.fake_load_many(self.loads, *[arguments[0], len(arguments[0])])
            return (100 if name == self.failing else 0), 1

        return call


@pytest.mark.parametrize(
    ("loads", "failing", "loads_seen", "outcome"),
    [
        (1, "", 1, "passed"),
        (0, "", 0, "one module was loaded, the hook saw 0"),
        (2, "", 2, "one module was loaded, the hook saw 2"),
        (1, "cuInit", 0, "cuInit returned 100 in the driver hook's self-test"),
    ],
)
def test_the_self_test_loads_one_module_and_sees_one(
    hook, fake, monkeypatch, loads, failing, loads_seen, outcome
):
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = FakeCudaBindings(fake, loads, failing)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings.driver)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    assert hook.self_test() == outcome
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    explained = [r.explained for r in log_of(hook).records if r.type == "module_loaded"]
    assert explained == [False, *[True] * loads_seen, False]


def test_the_self_test_is_skipped_without_cuda_python(hook, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert hook.self_test().startswith("skipped: cuda-python can't be imported (")
