"""What the reader of a run directory makes of the driver hook's record files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from jitwatch.log import read_run
from jitwatch.recorder import FORMAT
from jitwatch.records import write_meta
from jitwatch.sources.driver_log import (
    CAPACITY,
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    MISSING_STACK_REASONS,
    NO_STEP,
    RECORD_BYTES,
    SELF_TEST_KERNEL,
)

API_CALL, MODULE_LOADED, EXPLAINED = 1, 2, 1


def record(kind: int, name: str, start_ns: int, end_ns: int, parent: int = 0, flags: int = 0):
    """One slot; `parent` is a slot counted from 1, 0 for none."""
    times = struct.pack("<qqqqQQ", start_ns, end_ns, 0, NO_STEP, 8, 0)
    numbers = struct.pack("<IIiIIIII", kind, 0, 0, 7, parent, flags, kind == MODULE_LOADED, 0)
    return (times + numbers + name.encode()).ljust(RECORD_BYTES, b"\0")


def load(kernel: str, start_ns: int, slot: int = 0, flags: int = 0) -> bytes:
    """A call from `start_ns` to 10 ns later, in the given slot, and its module."""
    call = record(API_CALL, "cuModuleLoadData", start_ns, start_ns + 10, 0, flags)
    return call + record(MODULE_LOADED, kernel, start_ns + 5, start_ns + 5, slot + 1, flags)


def write_records(path: Path, pid: int, slots: bytes, dropped: int = 0, missing=()) -> None:
    counts = [len(slots) // RECORD_BYTES, dropped, 0, 0, 0]
    reasons = [dict(missing).get(reason, 0) for reason in MISSING_STACK_REASONS]
    header = struct.pack("<8sIIII", MAGIC, FORMAT_VERSION, pid, CAPACITY, RECORD_BYTES)
    header += struct.pack("<QQQQq8Q", *counts, *reasons, *[0] * (8 - len(reasons)))
    path.write_bytes(header.ljust(HEADER_BYTES, b"\0") + slots)


def write_process(run_dir: Path, pid: int) -> None:
    line = {"r": "process", "format": FORMAT, "pid": pid}
    (run_dir / f"events-{pid}.jsonl").write_text(json.dumps(line) + "\n")


def test_missing_stacks_and_drops_add_up_over_processes(tmp_path):
    write_meta(tmp_path, {})
    busy, blocked = MISSING_STACK_REASONS[1:3]
    for pid, missing in ((41, {busy: 2}), (42, {busy: 3, blocked: 1})):
        write_process(tmp_path, pid)
        write_records(tmp_path / f"driver-{pid}.bin", pid, load("k", pid), 4, missing)
    run = read_run(tmp_path)
    assert run.coverage.missing_stacks == {busy: 5, blocked: 1}
    assert run.coverage.dropped == 8
    assert [(e.pid, e.kernel) for e in run.events] == [(41, "k"), (42, "k")]


def test_a_process_has_its_files_from_before_and_after_an_exec_and_no_one_elses(tmp_path):
    write_meta(tmp_path, {})
    busy = MISSING_STACK_REASONS[1]
    write_process(tmp_path, 4)
    write_records(tmp_path / "driver-4.bin", 4, load("before", 100), 0, {busy: 1})
    write_records(tmp_path / "driver-4-555.bin", 4, load("after", 200), 1, {busy: 1})
    (tmp_path / "driver-4-555.stacks").write_text('#1\n  File "/x.py", line 3 in serve\n')
    write_records(tmp_path / "driver-42.bin", 42, load("stranger", 300))
    run = read_run(tmp_path)
    assert [(e.pid, e.seq, e.kernel, e.start_ns, e.end_ns, e.stack) for e in run.events] == [
        (4, 1, "before", 100, 110, ()),
        (4, 2, "after", 200, 210, ("/x.py:3 serve",)),
        (42, 1, "stranger", 300, 310, ()),
    ]
    assert (run.coverage.dropped, run.coverage.missing_stacks) == (1, {busy: 2})


def test_the_self_tests_module_is_no_event_and_its_namesakes_are(tmp_path):
    write_meta(tmp_path, {})
    write_process(tmp_path, 4)
    slots = load(SELF_TEST_KERNEL, 100, 0, EXPLAINED)
    slots += load(f"{SELF_TEST_KERNEL}_2", 200, 2) + load(f"{SELF_TEST_KERNEL},other", 300, 4)
    write_records(tmp_path / "driver-4.bin", 4, slots)
    kernels = [event.kernel for event in read_run(tmp_path).events]
    assert kernels == [f"{SELF_TEST_KERNEL}_2", f"{SELF_TEST_KERNEL},other"]
