"""A run directory read while it grows."""

from __future__ import annotations

import itertools
import os

import pytest

from jitwatch.follow import Follower
from jitwatch.recorder import Recorder
from tests.samples import variant

MS = 10**6


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path, clock=itertools.count(0, MS).__next__)


def event(recorder, kind, kernel="l2norm_kernel", became=None):
    recorder.end(recorder.begin(kind, "triton", kernel, variant=variant()), kind=became)


def test_nothing_is_late_before_ready_and_each_event_is_told_once(recorder, tmp_path):
    follower = Follower(tmp_path)
    event(recorder, "load")
    assert list(follower.lines()) == []
    recorder.ready()
    recorder.request("a", 5, 1)
    with recorder.step("prefill", ("a", "b", "c", "d", "e"), 5):
        event(recorder, "load")
    event(recorder, "compile", became="disk_hit")  # no compile, as it turned out
    event(recorder, "launcher_build", "k" * 99)
    assert list(follower.lines()) == [
        "jitwatch: late load: a, b, c and 2 more, l2norm_kernel, 1.0 ms",
        f"jitwatch: late launcher build: a, {'k' * 59}…, 1.0 ms",
    ]
    assert list(follower.lines()) == []
    recorder.request_end("a")
    event(recorder, "load")
    assert list(follower.lines()) == ["jitwatch: late load: no request, l2norm_kernel, 1.0 ms"]


def test_what_is_open_is_told_when_it_is_over(recorder, tmp_path):
    follower = Follower(tmp_path)
    recorder.ready()
    seq = recorder.begin("load", "triton", "slow_kernel")
    assert list(follower.lines()) == []
    recorder.end(seq)
    assert list(follower.lines()) == ["jitwatch: late load: no request, slow_kernel, 1.0 ms"]


def test_half_a_line_and_damage_are_waited_for_and_passed_over(recorder, tmp_path):
    follower = Follower(tmp_path)
    recorder.ready()
    path = tmp_path / f"events-{os.getpid()}.jsonl"
    whole = path.read_bytes()
    event(recorder, "load")
    more = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + b'{"r": 3}\n[]\n{"r": "end", "seq": 99, "t": 1}\n' + more[:40])
    assert list(follower.lines()) == []
    path.write_bytes(path.read_bytes() + more[40:])
    assert list(follower.lines()) == ["jitwatch: late load: no request, l2norm_kernel, 1.0 ms"]
