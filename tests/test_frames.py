"""The report as pandas frames."""

from __future__ import annotations

import pytest

pytest.importorskip("pandas")

from jitwatch.render.frames import events_frame, requests_frame, stalls_frame
from tests.samples import report
from tests.test_terminal import failing


def test_a_row_for_each_request():
    frame = requests_frame(failing())
    assert list(frame.index) == ["len64", "len65", "len66"]
    assert list(frame["in_repo_loads"]) == [0, 1, 1]
    assert frame.loc["len65", "stall_ms"] == 4.5


def test_a_row_for_each_stall_and_who_waited():
    frame = stalls_frame(failing())
    late = frame[frame["kind"] == "compile"].iloc[0]
    assert (late["request"], late["code"], late["argument"]) == ("len65", "JW103", "BLOCK")
    assert (late["now"], late["before"]) == ("512", "256")
    unattributed = frame[frame["code"] == "JW901"].iloc[0]
    assert unattributed["request"] is None or unattributed.isna()["request"]


def test_a_row_for_each_event():
    frame = events_frame(failing())
    assert list(frame["seq"]) == list(range(1, 11))
    assert list(frame["source"]).count("driver") == 6


@pytest.mark.parametrize("frame_of", [stalls_frame, events_frame])
def test_without_rows_the_columns_stay(frame_of):
    empty = frame_of(report([]))
    assert len(empty) == 0
    assert list(empty.columns) == list(frame_of(failing()).columns)
