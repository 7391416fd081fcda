"""What the recorder writes is what the reader gives back, and damage is noticed, never fatal."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import threading

import pytest

import jitwatch
from jitwatch.errors import JitwatchError, RunFileError
from jitwatch.events import SCHEMA, TUNED, Boundary, Rung, SourceState
from jitwatch.log import read_report, read_run, run_dirs
from jitwatch.recorder import FORMAT, Recorder
from jitwatch.records import write_meta
from jitwatch.render.json import render_json
from jitwatch.render.terminal import render_text
from jitwatch.render.variant_map import render_map
from jitwatch.report import Report
from tests.samples import variant
from tests.test_log_driver import load, write_records

META = {"device": "sim:h200", "repo": "/repo", "lengths": [64]}


@pytest.fixture
def recorder(tmp_path):
    """A recorder whose clock counts 1, 2, 3, …"""
    write_meta(tmp_path, META)
    return Recorder(tmp_path, clock=itertools.count(1).__next__)


def lines(recorder):
    text = (recorder.run_dir / f"events-{os.getpid()}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines() if line]


def test_a_round_trip(recorder):
    made = variant("i32", constants={"BLOCK": TUNED}, tuned={"BLOCK": "128"})
    recorder.source(SourceState("driver", True, "simulated h200"))
    recorder.fact("served_until_ns", 10**9)
    recorder.ready()
    recorder.request("len64", 64, 2)
    with recorder.step("mixed", ("len64",), 64) as step:
        outer = recorder.begin("autotune", "triton", "k", variant=made, file="/f.py", line=3)
        inner = recorder.begin("compile", "triton", "k", stack=("/f.py:9 f",), nbytes=4, detail="d")
        recorder.end(inner, kind="disk_hit")
        recorder.end(outer, detail="done", nbytes=9)
    recorder.request_end("len64", launches=5)
    recorder.close()
    run = read_run(recorder.run_dir)
    tuned, hit = run.events
    assert (tuned.seq, tuned.pid, tuned.kind, tuned.source) == (
        1,
        os.getpid(),
        "autotune",
        "triton",
    )
    assert (tuned.variant, tuned.variant.tuned) == (made, (("BLOCK", "128"),))
    assert (tuned.file, tuned.line, tuned.detail, tuned.nbytes) == ("/f.py", 3, "done", 9)
    assert (tuned.parent, tuned.step, tuned.tid) == (None, step, threading.get_native_id())
    assert (hit.kind, hit.parent, hit.stack, hit.detail) == ("disk_hit", 1, ("/f.py:9 f",), "d")
    assert hit.nbytes == 4
    assert tuned.start_ns < hit.start_ns < hit.end_ns < tuned.end_ns
    (marked,) = run.steps
    assert (marked.phase, marked.requests, marked.tokens) == ("mixed", ("len64",), 64)
    assert marked.start_ns < tuned.start_ns < tuned.end_ns < marked.end_ns
    (request,) = run.requests
    assert (request.id, request.prompt_tokens, request.output_tokens) == ("len64", 64, 2)
    assert (request.launches, request.error) == (5, None)
    assert run.ready_ns < request.arrival_ns < request.end_ns
    assert run.coverage.sources == (SourceState("driver", True, "simulated h200"),)
    assert (run.coverage.load_source, run.coverage.dropped) == ("driver", 0)
    assert run.facts["served_until_ns"] == 10**9


def test_begin_is_on_disk_before_the_work_and_without_an_end_stays_open(recorder):
    recorder.begin("compile", "triton", "k")
    assert lines(recorder)[-1]["r"] == "begin"
    (event,) = read_run(recorder.run_dir).events
    assert event.end_ns is None
    assert event.duration_ns == 0


def test_a_discarded_event_is_none(recorder):
    recorder.discard(recorder.begin("compile", "triton", "k"))
    after = recorder.begin("load", "triton", "k")
    (event,) = read_run(recorder.run_dir).events
    assert (event.seq, event.parent) == (after, None)


def test_an_event_gone_on_with_is_one_and_what_follows_is_inside(recorder):
    outer = recorder.begin("autotune", "triton", "k")
    recorder.end(outer)
    recorder.reenter(outer)
    recorder.end(recorder.begin("load", "triton", "k"))
    recorder.end(outer)
    tuned, loaded = read_run(recorder.run_dir).events
    assert loaded.parent == tuned.seq
    assert tuned.end_ns > loaded.end_ns


def test_what_an_exception_leaves_open_is_closed_with_its_step(recorder):
    def serve():
        with recorder.step("mixed", ("len64",), 64):
            recorder.begin("compile", "triton", "k")
            recorder.begin("load", "driver", "k")
            raise ValueError("host")

    with pytest.raises(ValueError, match="host"):
        serve()
    after = recorder.begin("load", "triton", "k")
    events = {event.seq: event for event in read_run(recorder.run_dir).events}
    assert [events[seq].detail for seq in (1, 2)] == ["raised", "raised"]
    assert all(events[seq].end_ns for seq in (1, 2))
    assert (events[after].parent, events[after].step) == (None, None)


def test_ending_an_outer_event_closes_what_is_nested_in_it(recorder):
    outer = recorder.begin("autotune", "triton", "k")
    inner = recorder.begin("load", "driver", "k")
    recorder.end(outer, detail="over")
    closed = {event.seq: event.detail for event in read_run(recorder.run_dir).events}
    assert closed == {outer: "over", inner: "raised"}


def test_an_inner_step_gives_the_outer_one_back_and_tells_of_both(recorder):
    told = []
    recorder.on_step.append(told.append)
    with recorder.step("prefill", ("a",), 1) as outer:
        with recorder.step("decode", ("b",), 1) as inner:
            assert recorder.current_step == inner
        assert recorder.current_step == outer
    assert recorder.current_step is None
    assert told == [outer, inner, outer, None]


def test_threads_have_their_own_steps_and_parents(recorder):
    outer = recorder.begin("compile", "triton", "k")
    thread = threading.Thread(target=recorder.begin, args=("load", "triton", "k"))
    with recorder.step("mixed", ("len64",), 64):
        thread.start()
        thread.join()
    other = read_run(recorder.run_dir).events[1]
    assert (other.parent, other.step) == (None, None)
    assert outer == 1


def test_a_forked_child_writes_nothing_into_its_parents_file(recorder):
    before = lines(recorder)
    child = os.fork()
    if child == 0:
        with recorder.step("mixed", ("len64",), 64):
            recorder.end(recorder.begin("load", "triton", "k"))
        recorder.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert lines(recorder) == before
    recorder.ready()
    assert len(lines(recorder)) == len(before) + 1


def test_a_write_that_fails_is_told_by_the_next_that_works(recorder, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        recorder.ready()
        recorder.begin("load", "triton", "k")
    recorder.fact("probes", 1)
    recorder.fact("probes", 2)
    assert recorder.dropped == 2
    assert [line["r"] for line in lines(recorder)[1:]] == ["lost", "fact", "fact"]
    assert read_run(recorder.run_dir).coverage.dropped == 2


def test_a_short_write_is_counted_and_the_next_line_is_whole(recorder, monkeypatch):
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:9]))
        recorder.begin("load", "triton", "k")
    recorder.ready()
    run = read_run(recorder.run_dir)
    assert run.ready_ns is not None
    assert run.coverage.dropped == 2  # told by the recorder, and torn in the file


def test_what_json_cannot_say_is_written_as_text_or_counted_never_raised(recorder):
    recorder.fact("blind_spot", object)
    recorder.fact("blind_spot", {("a", "tuple"): 1})
    assert recorder.dropped == 1
    assert read_run(recorder.run_dir).coverage.blind_spots == ("<class 'object'>",)


# -- damage and foreign files ------------------------------------------------------


PROOF = {
    "max_tokens": 64,
    "chunk_tokens": None,
    "served": 1,
    "boundaries": [{"prompt_tokens": 17, "residues": [], "kernels": ["k"]}],
    "assumptions": ["none"],
}


def served(folder):
    """A small run with all kinds of lines, driver records and a stack; its report passes."""
    write_meta(folder, META | {"environment": {"commit": None}, "doubts": []})
    pid = os.getpid()
    recorder = Recorder(folder, clock=itertools.count(1).__next__)
    recorder.source(SourceState("driver", True, "CUPTI 13"))
    recorder.fact("packages", {"fla": ["/repo/fla"]})
    recorder.fact("environment", {"gpu": "simulated"})
    recorder.fact("winners", [])
    write_records(folder / f"driver-{pid}.bin", pid, load("k", 2))
    (folder / f"driver-{pid}.stacks").write_text('#1\n  File "/repo/x.py", line 3 in serve\n')
    recorder.end(recorder.begin("compile", "triton", "k", variant=variant(), file="/repo/f.py"))
    hook = recorder.begin("load", "triton", "k", variant=variant(), file="/repo/f.py")
    recorder.end(recorder.begin("load", "driver", "k"))
    recorder.end(hook)
    while recorder.clock() < 50:
        pass
    recorder.ready()
    recorder.request("len64", 64, 2)
    with recorder.step("prefill", ("len64",), 64):
        pass
    recorder.first_token("len64")
    recorder.request_end("len64", launches=3, used=[3])
    recorder.fact("says_steps", True)
    recorder.fact("ladder", [{"prompt_tokens": 1, "reasons": ["k: its only variant"]}])
    recorder.fact("proof", PROOF)
    recorder.fact("warmup_seconds", 0.5)
    recorder.fact("peak_memory_bytes", 1 << 20)
    recorder.fact("served_until_ns", recorder.clock())
    recorder.fact("launches_by_request", {"len64": 3})
    recorder.close()
    return folder / f"events-{pid}.jsonl"


def test_a_whole_run_passes(tmp_path):
    served(tmp_path)
    report = read_report(tmp_path)
    assert (report.verdict.outcome, report.verdict.reasons) == ("pass", ())


def test_what_the_target_says_comes_back(tmp_path):
    path = served(tmp_path)
    [use] = read_report(tmp_path).uses
    assert (use.variant, use.origin, use.spans) == (variant(), "in-repo", ((64, 64),))
    report = read_report(tmp_path)
    assert report.ladder == (Rung(1, ("k: its only variant",)),)
    assert report.proof.boundaries == (Boundary(17, (), ("k",)),)
    assert report.environment["peak_memory_bytes"] == 1 << 20
    # A simulated device has no times.
    assert (report.requests[0].ttft_ms, "warmup_seconds" in report.environment) == (None, False)
    meta = json.loads((tmp_path / "meta.json").read_text())
    (tmp_path / "meta.json").write_text(json.dumps({**meta, "device": "cuda"}))
    report = read_report(tmp_path)
    assert report.environment["warmup_seconds"] == 0.5
    assert 0 < report.requests[0].ttft_ms < report.requests[0].serve_ms
    # Without its step the request can't be judged.
    kept = [line for line in path.read_text().splitlines() if '"step' not in line.split(",")[0]]
    path.write_text("\n".join(kept))
    assert "1 request without a step, first len64" in " ".join(read_report(tmp_path).doubts)


def test_a_run_that_was_killed_before_its_close_is_no_pass(tmp_path):
    path = served(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    assert '"close"' in lines[-1]
    path.write_text("".join(lines[:-1]))
    assert read_report(tmp_path).doubts == (
        "the target's process was killed: what it had still to say is unknown",
    )
    # One that served nothing may end as it likes.
    path.write_text("".join(lines))
    (tmp_path / "events-1.jsonl").write_text('{"r": "process", "format": 1, "pid": 1}\n')
    assert read_report(tmp_path).verdict.outcome == "pass"


def test_a_torn_last_line_is_counted_and_the_rest_is_read(tmp_path):
    path = served(tmp_path)
    whole = read_run(tmp_path)
    path.write_bytes(path.read_bytes() + b'{"r": "begin", "seq": 9, "ki')
    torn = read_run(tmp_path)
    assert torn.coverage.dropped == 1
    assert (torn.events, torn.requests) == (whole.events, whole.requests)
    assert read_report(tmp_path).verdict.reasons == (
        "1 record lost: a late load may be among them",
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"r": "ready"', '"r": "re@dy"'),
        ('"kind": "compile"', '"kind": "compild"'),
        ('"phase": "prefill"', '"phase": "prefilk"'),
        ('"used": [3]', '"used": "3"'),
        ('"r": "first_token"', '"r": "first_tokeo"'),
        ('"name": "says_steps", "value": true', '"name": "says_steps", "value": 1'),
        ('"prompt_tokens": 64', '"prompt_tokens": "64"'),
        ('"prompt_tokens": 64', '"prompt_tokens": 0'),
        ('"prompt_tokens": 64', '"prompt_tokens": 6400000000'),
        ('"launches": 3', '"launches": "3"'),
        ('"armed": true', '"armed": 1'),
        ('"name": "served_until_ns", "value": ', '"name": "served_until_ns", "value": 0.'),
        ('{"fla": ["/repo/fla"]}', '{"fla": "/repo/fla"}'),
        ('"end", "seq": 1', '"end", "seq": 11'),
    ],
)
def test_a_damaged_line_is_no_pass(tmp_path, before, after):
    path = served(tmp_path)
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    report = read_report(tmp_path)
    assert report.verdict.outcome == "inconclusive"
    assert report.coverage.dropped


def test_a_lost_first_line_leaves_the_driver_records_to_their_process(tmp_path):
    path = served(tmp_path)
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    kinds = [event.kind for event in read_run(tmp_path).events]
    assert kinds == ["compile", "load", "load", "load"]


def test_lengths_without_a_record_are_no_pass(tmp_path):
    served(tmp_path)
    write_meta(tmp_path, META | {"lengths": [64, 65, 66, 1]})
    assert read_report(tmp_path).verdict.reasons == ("3 of 4 lengths not served: 65..66, 1",)


def error_of(folder):
    with pytest.raises(RunFileError) as caught:
        read_report(folder)
    return str(caught.value).replace(str(folder), "RUN")


def test_a_newer_schema_is_refused(tmp_path):
    served(tmp_path)
    (tmp_path / "meta.json").write_text(json.dumps({"schema": SCHEMA + 1, "device": 3}))
    assert error_of(tmp_path) == (
        f"RUN/meta.json has schema {SCHEMA + 1}\n"
        f"  why: this jitwatch reads up to {SCHEMA}\n"
        "  fix: read it with the jitwatch that wrote it, or a newer one"
    )


def test_a_newer_line_format_is_refused(tmp_path):
    path = served(tmp_path)
    path.write_text(json.dumps({"r": "process", "format": FORMAT + 1}) + "\n")
    assert error_of(tmp_path) == (
        f"RUN/events-{os.getpid()}.jsonl has format {FORMAT + 1}\n"
        f"  why: this jitwatch reads up to {FORMAT}\n"
        "  fix: read it with the jitwatch that wrote it, or a newer one"
    )


def test_meta_that_is_no_json_or_names_no_device_is_refused(tmp_path):
    (tmp_path / "meta.json").write_text("{")
    assert error_of(tmp_path).startswith("RUN/meta.json can't be read\n  why: JSONDecodeError")
    write_meta(tmp_path, {})
    assert error_of(tmp_path).startswith("RUN/meta.json names no device\n")


def test_a_folder_that_is_no_run_directory_is_refused(tmp_path):
    with pytest.raises(RunFileError) as caught:
        jitwatch.load(tmp_path / "nope")
    assert str(caught.value) == (
        f"{tmp_path}/nope is no run directory\n"
        "  why: neither it nor a folder in it holds meta.json\n"
        "  fix: give the folder that `jitwatch sweep --run-dir DIR` wrote"
    )


def test_several_devices_come_in_the_order_asked_for(tmp_path):
    devices = ["sim:l4", "sim:a100", "sim:h200"]
    for device in devices:
        folder = tmp_path / device.replace(":", "-")
        folder.mkdir()
        write_meta(folder, {"device": device, "devices": devices})
    assert [folder.name for folder in run_dirs(tmp_path)] == ["sim-l4", "sim-a100", "sim-h200"]


def damage(data: bytes, chance: random.Random) -> bytes:
    if not data or chance.random() < 0.3:
        return data[: chance.randrange(len(data) + 1)]
    flipped = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


def test_no_damage_gives_anything_but_a_report_or_an_error_of_ours(tmp_path):
    served(tmp_path)
    whole = {path: path.read_bytes() for path in sorted(tmp_path.iterdir())}
    passes = 0
    for seed in range(300):
        chance = random.Random(seed)
        path = chance.choice(list(whole))
        path.write_bytes(damage(whole[path], chance))
        try:
            (report,) = jitwatch.load(tmp_path)
        except JitwatchError:
            continue
        finally:
            path.write_bytes(whole[path])
        assert isinstance(report, Report), seed
        assert render_text(report), seed
        assert render_json([report]), seed
        if report.requests:
            assert render_map(report), seed
        passes += report.verdict.outcome == "pass"
    assert passes  # damage to a stack or a name changes no verdict


def test_tasks_of_one_thread_have_steps_of_their_own(tmp_path):
    recorder = Recorder(tmp_path)
    told = []
    recorder.on_step.append(told.append)

    async def serve(name, before, inside):
        await asyncio.sleep(before)
        with recorder.step("decode", (name,), 1) as step:
            await asyncio.sleep(inside)
            assert recorder.current_step == step
            late = asyncio.create_task(afterwards(step))
            assert await asyncio.to_thread(lambda: recorder.current_step) == step
        assert recorder.current_step is None
        await late

    async def afterwards(step):
        assert recorder.current_step == step  # it began in the step
        await asyncio.sleep(0.2)
        assert recorder.current_step is None  # which is over

    async def both():
        await asyncio.gather(serve("a", 0, 0.05), serve("b", 0.02, 0.1))

    asyncio.run(both())
    # The thread knows the step begun last; when all are over, none.
    assert told == [1, 2, 2, None]


def test_a_forked_child_goes_on_in_a_file_of_its_own_where_it_may(tmp_path):
    recorder = Recorder(tmp_path, follow_forks=True)
    with recorder.step("decode", ("parent",), 1):
        child = os.fork()
        if child == 0:
            recorder.ready()
            with recorder.step("decode", ("child",), 1):
                pass
            os._exit(0)
        os.waitpid(child, 0)
    run_of = {step.pid: step for step in read_run_of(tmp_path).steps}
    assert {pid: step.requests for pid, step in run_of.items()} == {
        os.getpid(): ("parent",),
        child: ("child",),
    }
    assert not list(tmp_path.glob("silent-*"))


def test_a_program_of_the_same_number_has_numbers_of_its_own(tmp_path):
    for name in ("before", "after"):
        recorder = Recorder(tmp_path)
        recorder.end(recorder.begin("load", "triton", name))
        with recorder.step("decode", (name,), 1):
            pass
        recorder.close()
    run = read_run_of(tmp_path)
    assert [event.kernel for event in run.events] == ["before", "after"]
    assert len({event.seq for event in run.events}) == 2
    assert [step.requests for step in run.steps] == [("before",), ("after",)]


def read_run_of(folder):
    write_meta(folder, META)
    return read_run(folder)
