"""The driver hook: what it records of calls, modules, lookups and launches."""

from __future__ import annotations

import ctypes
import os
import threading

from jitwatch.sources.driver import DriverHook
from jitwatch.sources.driver_log import CAPACITY, read_records
from tests.fake_cuda import ONE_KERNEL, log_of, only

DEFAULT_SLOW_LOOKUP_NS = 1_000_000


def test_a_load_is_counted_once_and_lies_in_its_call(hook, fake):
    hook.set_step(41)
    assert fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL)) == 0
    hook.set_step(None)
    assert fake.fake_cuModuleUnload(ONE_KERNEL, len(ONE_KERNEL)) == 0
    log = log_of(hook)
    call, load, unload_call, unload = log.records
    assert (log.pid, log.loads, log.dropped, log.torn) == (os.getpid(), 1, 0, 0)
    assert (log.backend, hook.version) == ("cupti 130001", "130001")
    assert [r.type for r in log.records] == [
        "api_call",
        "module_loaded",
        "api_call",
        "module_unload",
    ]
    assert (call.api, call.parent, call.result, call.step) == ("cuModuleLoadData", None, 0, 41)
    assert (load.parent, load.step, load.nbytes) == (call.slot, 41, len(ONE_KERNEL))
    assert (load.kernels, load.num_kernels) == (("add_kernel",), 1)
    assert (unload_call.step, unload.step, unload.parent) == (None, None, unload_call.slot)
    assert load.image_hash == unload.image_hash != 0
    assert call.end_ns is not None
    assert log.start_ns <= call.start_ns <= load.start_ns <= call.end_ns
    assert call.tid == load.tid == threading.get_native_id()
    counts = hook.counts()
    assert (counts.loads, counts.records, counts.drops, counts.launches) == (1, 4, 0, 0)


def test_a_failed_load_keeps_the_drivers_result_and_counts_no_module(hook, fake):
    fake.fake_set_result(209)
    assert fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL)) == 209
    log = log_of(hook)
    assert (log.loads, only(log.records, "api_call").result) == (0, 209)


def test_versions_of_a_call_are_found_by_name_and_strangers_are_not(hook, fake):
    fake.fake_cuModuleLoadData_v2(ONE_KERNEL, len(ONE_KERNEL))
    assert only(log_of(hook).records, "api_call").api == "cuModuleLoadData_v2"
    assert not fake.fake_is_enabled(1, 901)  # cuModuleLoadDataSomethingElse
    assert not fake.fake_is_enabled(1, 362)  # cuLinkCreate
    assert not fake.fake_is_enabled(3, 8)  # MODULE_PROFILED fires on every launch


def test_numbers_stand_in_where_cupti_names_nothing(fake, fake_path, tmp_path):
    fake.fake_set_names_known(0)
    hook = DriverHook.arm(tmp_path, cupti=fake_path)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    hook.disarm()
    records = read_records(tmp_path / f"driver-{os.getpid()}.bin").records
    assert [r.api for r in records] == ["cuModuleLoadData", ""]


def test_lookups_give_their_slot_back_unless_they_load(hook, fake):
    for _ in range(100):
        fake.fake_cuKernelGetFunction(None, 0)
    assert hook.counts().records == 0
    fake.fake_cuKernelGetFunction(ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuKernelGetFunction(None, 0)
    lookup, load = log_of(hook).records
    assert (lookup.api, load.parent) == ("cuKernelGetFunction", lookup.slot)
    assert lookup.end_ns is not None


def test_a_lookup_that_takes_a_millisecond_is_kept(hook, fake):
    threshold_ns = ctypes.c_int64.in_dll(hook._library, "jw_slow_lookup_ns")
    fake.fake_set_lookup_ms(2)
    fake.fake_cuKernelGetFunction(None, 0)
    assert hook.counts().records == 0  # the fixture's threshold: the near miss
    threshold_ns.value = DEFAULT_SLOW_LOOKUP_NS
    fake.fake_cuKernelGetFunction(None, 0)
    (lookup,) = log_of(hook).records
    assert (lookup.api, lookup.parent, hook.counts().loads) == ("cuKernelGetFunction", None, 0)
    assert lookup.end_ns is not None
    assert lookup.end_ns - lookup.start_ns >= 2_000_000


def test_a_slow_lookup_is_one_of_a_millisecond_unless_told_otherwise(fake_path, tmp_path):
    hook = DriverHook.arm(tmp_path, cupti=fake_path)
    value = ctypes.c_int64.in_dll(hook._library, "jw_slow_lookup_ns").value
    hook.disarm()
    assert value == DEFAULT_SLOW_LOOKUP_NS


def test_nesting_deeper_than_we_keep_loses_no_load(hook, fake):
    fake.fake_nested_load(20, ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    log = log_of(hook)
    assert (log.loads, len(log.records)) == (2, 24)
    assert all(r.end_ns is not None for r in log.records)
    assert [r.parent for r in log.records[:3]] == [None, 0, 1]
    assert log.records[22].parent is None  # the nesting was left completely


def test_launches_are_recorded_only_when_asked_for(hook, fake):
    fake.fake_launch(b"before", None, 0)
    hook.launches(True)
    fake.fake_launch(b"add_kernel", ONE_KERNEL, len(ONE_KERNEL))
    hook.launches(False)
    fake.fake_launch(b"after", None, 0)
    launch, load = log_of(hook).records
    assert (launch.type, launch.kernels, launch.api) == ("launch", ("add_kernel",), "")
    assert load.parent == launch.slot
    assert hook.counts().launches == 1


def test_a_kernel_has_one_launch_record_in_a_session_and_every_launch_counts(hook, fake):
    hook.launches(True)
    for name in (b"a", b"b", b"a"):
        fake.fake_launch_many(CAPACITY, name)
    fake.fake_launch(None, None, 0)
    hook.launches(False)
    hook.launches(True)
    fake.fake_launch_many(5, b"a")
    hook.launches(False)
    log = log_of(hook)
    assert [r.kernels for r in log.records] == [("a",), ("b",), (), ("a",)]
    assert (log.launches, log.dropped) == (3 * CAPACITY + 6, 0)
    assert all(r.end_ns is not None for r in log.records)


def test_a_load_in_a_repeated_launch_has_no_parent(hook, fake):
    hook.launches(True)
    fake.fake_launch(b"a", None, 0)
    fake.fake_launch(b"a", ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    hook.launches(False)
    log = log_of(hook)
    assert [(r.type, r.parent) for r in log.records] == [
        ("launch", None),
        ("module_loaded", None),
        ("api_call", None),
        ("module_loaded", 2),
    ]


def test_more_kernel_names_than_there_is_room_for_are_drops(hook, fake):
    hook.launches(True)
    for number in range(4096 + 3):
        fake.fake_launch(b"kernel_%d" % number, None, 0)
    fake.fake_launch_many(10, b"kernel_0")
    hook.launches(False)
    log = log_of(hook)
    names = {r.kernels for r in log.records}
    assert (len(log.records), len(names), log.dropped, log.launches) == (4096, 4096, 3, 4109)


def test_threads_that_launch_the_same_kernels_record_each_once(hook, fake):
    hook.launches(True)
    names = [b"kernel_%d" % number for number in range(300)]

    def launch_all() -> None:
        for name in names:
            fake.fake_launch_many(20, name)

    workers = [threading.Thread(target=launch_all) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    hook.launches(False)
    log = log_of(hook)
    assert sorted(r.kernels[0].encode() for r in log.records) == sorted(names)
    assert (log.launches, log.dropped, log.torn) == (8 * 300 * 20, 0, 0)


def test_a_full_file_counts_drops_and_never_fails(hook, fake):
    loads = CAPACITY // 2 + 10
    fake.fake_load_many(loads, ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuKernelGetFunction(None, 0)  # nothing is lost: no drop
    fake.fake_cuKernelGetFunction(ONE_KERNEL, len(ONE_KERNEL))  # the lookup and its load
    log = log_of(hook)
    assert log.loads == loads + 1
    assert len(log.records) == CAPACITY
    assert log.dropped == 2 * loads - CAPACITY + 2


def test_the_last_slot_keeps_a_lookup_whose_load_was_dropped(hook, fake):
    fake.fake_cuLibraryLoadData()
    fake.fake_load_many(CAPACITY // 2 - 1, ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuKernelGetFunction(ONE_KERNEL, len(ONE_KERNEL))
    log = log_of(hook)
    assert (len(log.records), log.dropped) == (CAPACITY, 1)
    assert (log.records[-1].api, log.records[-1].end_ns is None) == ("cuKernelGetFunction", False)


def test_sixteen_threads_lose_nothing(hook, fake):
    fake.fake_set_barrier(16)

    def work(step: int) -> None:
        hook.set_step(step)
        fake.fake_load_together(500, b"x", 1)

    threads = [threading.Thread(target=work, args=(step,)) for step in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = log_of(hook)
    by_slot = {r.slot: r for r in log.records}
    loads = [r for r in log.records if r.type == "module_loaded"]
    assert (log.loads, log.dropped, log.torn, len(log.records)) == (8000, 0, 0, 16000)
    for load in loads:
        assert load.parent is not None
        call = by_slot[load.parent]
        assert (call.tid, call.step) == (load.tid, load.step)
    assert sorted({r.step for r in loads}) == list(range(16))
    assert len({load.parent for load in loads}) == 8000
    assert all(r.end_ns is not None for r in log.records)


def test_threads_that_load_and_look_up_share_the_file(hook, fake):
    def look_up() -> None:
        for _ in range(2000):
            fake.fake_cuKernelGetFunction(None, 0)

    workers = [threading.Thread(target=look_up) for _ in range(4)]
    for _ in range(4):
        args = (500, ONE_KERNEL, len(ONE_KERNEL))
        workers.append(threading.Thread(target=fake.fake_load_many, args=args))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log = log_of(hook)
    by_slot = {r.slot: r for r in log.records}
    loads = [r for r in log.records if r.type == "module_loaded"]
    assert (len(loads), log.dropped, log.torn) == (2000, 0, 0)
    assert {by_slot[r.parent].api for r in loads if r.parent is not None} == {"cuModuleLoadData"}
