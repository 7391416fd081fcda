"""The driver hook: the Python stacks of late loads that nothing explains."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from dataclasses import dataclass

from jitwatch.sources.driver_library import build_library
from jitwatch.sources.driver_log import read_records
from tests.fake_cuda import ONE_KERNEL, log_of, only, stacks_of


def load_from_here(fake: ctypes.CDLL) -> None:
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))


def test_a_late_load_names_the_python_line_that_paid(hook, fake):
    load_from_here(fake)  # not ready yet: no stack
    hook.set_ready()
    load_from_here(fake)
    log, stacks = log_of(hook), stacks_of(hook)
    early_call, early, call, load = log.records
    line = load_from_here.__code__.co_firstlineno + 1
    assert list(stacks) == [load.slot]
    assert stacks[load.slot][0] == f"{__file__}:{line} load_from_here"
    assert stacks[load.slot][1].endswith("test_a_late_load_names_the_python_line_that_paid")
    assert (early.stack_ns, early.stack_requested, early_call.stack_ns) == (0, False, 0)
    assert load.stack_requested
    assert call.end_ns is not None
    assert 0 < load.stack_ns == call.stack_ns < call.end_ns - call.start_ns
    assert log.missing_stacks == {}


def test_every_thread_gets_the_stack_of_its_own_loads(hook, fake):
    hook.set_ready()
    threads = [threading.Thread(target=load_from_here, args=(fake,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log, stacks = log_of(hook), stacks_of(hook)
    requested = [r.slot for r in log.records if r.stack_requested]
    assert sorted(stacks) == requested
    assert all(frames[0].endswith(" load_from_here") for frames in stacks.values())
    assert len(requested) + sum(log.missing_stacks.values()) == 8


def test_an_explained_load_gets_no_stack(hook, fake):
    hook.set_ready()
    hook.set_explained(True)
    load_from_here(fake)
    hook.set_explained(False)
    log = log_of(hook)
    assert [r.explained for r in log.records] == [True, True]
    assert (stacks_of(hook), log.missing_stacks) == ({}, {})


def test_a_blocked_signal_is_counted_and_not_raised(hook, fake):
    hook.set_ready()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        load_from_here(fake)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert log_of(hook).missing_stacks == {"signal blocked on the thread": 1}
    assert stacks_of(hook) == {}


def test_a_thread_without_python_is_counted(hook, fake):
    hook.set_ready()
    assert fake.fake_foreign_load(ONE_KERNEL, len(ONE_KERNEL)) == 0
    log = log_of(hook)
    assert only(log.records, "module_loaded").tid != threading.get_native_id()
    assert log.missing_stacks == {"no Python stack on the thread": 1}


def test_a_signal_that_somebody_took_is_not_raised(hook, fake):
    hook.set_ready()
    signal.signal(hook._signal, signal.SIG_DFL)  # raising it would kill us
    load_from_here(fake)
    assert log_of(hook).missing_stacks == {"signal handler replaced": 1}


@dataclass
class Pipe:
    read_end: int
    write_end: int


def test_a_stack_in_progress_is_not_waited_for(fake, fake_path, tmp_path):
    started, release = Pipe(*os.pipe()), Pipe(*os.pipe())
    number = signal.SIGRTMAX - 1
    fake.fake_install_blocking_handler(number, started.write_end, release.read_end)
    library = ctypes.CDLL(str(build_library()))
    stacks = os.open(tmp_path / "stacks", os.O_RDWR | os.O_CREAT)
    path = tmp_path / "records.bin"
    error = library.jw_arm(os.fsencode(fake_path), os.fsencode(path), stacks, number)
    assert error == 0
    library.jw_set_ready(1)
    worker = threading.Thread(target=load_from_here, args=(fake,))
    worker.start()
    assert os.read(started.read_end, 1) == b"x"  # it holds the lock now
    load_from_here(fake)
    os.write(release.write_end, b"x")
    worker.join()
    library.jw_set_ready(0)
    library.jw_disarm()
    log = read_records(path)
    assert log.loads == 2
    assert log.missing_stacks == {
        "another stack was being written": 1,
        "no Python stack on the thread": 1,  # that handler writes none
    }
