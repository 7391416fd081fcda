"""What the way a child ended leaves in doubt."""

from __future__ import annotations

import pytest

from jitwatch.child import _how_it_ended, _message


@pytest.mark.parametrize(
    ("status", "stage", "text"),
    [
        (0, None, []),
        (-9, None, ["the target's process was killed by signal 9"]),
        (3, None, ["the target's process exited with status 3 (see target.log)"]),
        (2, "device", "the device could not be opened"),
        (2, "import", "the target could not be imported"),
        (2, "warmup", "the target raised in warmup"),
        (2, "serve", "the target ended the sweep"),
        (2, "probe", "the target ended the probe requests"),
        (2, "close", "the target raised in close()"),
    ],
)
def test_how_a_child_ended(status, stage, text):
    last = {"m": "done"}
    if stage:
        last = {"m": "failed", "stage": stage, "error": "E: x (f.py:1)"}
        text = [f"{text}: E: x (f.py:1) (traceback-{stage}.txt in the run directory)"]
    assert _how_it_ended(status, last) == text


def test_a_child_that_never_said_it_was_done_ended_itself():
    text = "the target's process ended itself before the sweep was over (status 0)"
    assert _how_it_ended(0, {"m": "served", "number": 1}) == [text]
    assert _how_it_ended(0, {}) == [text]


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b"{}", b"\xff", b'"m"'])
def test_what_is_no_message_is_passed_over(line):
    assert _message(line) is None


def test_a_message():
    assert _message(b'{"m": "served", "number": 3}') == {"m": "served", "number": 3}
