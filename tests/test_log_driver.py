"""What the reader of a run directory makes of the driver hook's record files."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from jitwatch.follow import Follower
from jitwatch.log import read_report, read_run
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


def test_where_one_process_has_no_driver_hook_its_compilers_hook_counts(tmp_path):
    write_meta(tmp_path, {"device": "cuda", "mode": "run", "repo": "/repo"})
    write_records(tmp_path / "driver-41.bin", 41, load("k", 2_000))
    (tmp_path / "driver-42.failed").write_text("this process already has a subscriber")
    recorder = {"r": "begin", "tid": 7, "step": None, "source": "triton", "kernel": "k"}
    for pid in (41, 42):
        lines = [
            {"r": "process", "format": FORMAT, "pid": pid},
            {"r": "source", "name": "triton", "armed": True, "version": "3.6.0", "reason": ""},
            {"r": "ready", "t": 1_000},
            {
                **recorder,
                "seq": 1,
                "t": 1_999,
                "kind": "load",
                "parent": None,
                "file": "/repo/k.py",
            },
            {"r": "end", "seq": 1, "t": 2_030},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"events-{pid}.jsonl").write_text(text)
    coverage = read_run(tmp_path).coverage
    assert (coverage.load_source, coverage.hook_pids) == ("driver", (42,))
    report = read_report(tmp_path)
    assert {s.event.pid: s.event.source for s in report.stalls} == {41: "driver", 42: "triton"}
    assert report.counts["late_in_repo_loads"] == 2
    assert report.doubts == (
        "the driver hook was not armed in process 42 (this process already has a subscriber): "
        "other loads than Triton's are unseen there",
    )


def test_a_load_is_told_when_its_call_is_over(tmp_path):
    write_process(tmp_path, 7)
    events = tmp_path / "events-7.jsonl"
    events.write_text(events.read_text() + json.dumps({"r": "ready", "t": 1}) + "\n")
    path, follower = tmp_path / "driver-7.bin", Follower(tmp_path)
    opened = record(API_CALL, "cuModuleLoadData", 100, 0)
    within = record(MODULE_LOADED, "slow", 150, 150, 3)
    write_records(path, 7, load("first", 50) + opened + within)
    assert list(follower.lines()) == ["jitwatch: late load: no request, first, 0.0 ms"]
    closed = record(API_CALL, "cuModuleLoadData", 100, 2_000_100)
    explained = load("ours", 3_000_000, 4, EXPLAINED)
    write_records(path, 7, load("first", 50) + closed + within + explained)
    assert list(follower.lines()) == ["jitwatch: late load: no request, slow, 2.0 ms"]
    assert list(follower.lines()) == []
