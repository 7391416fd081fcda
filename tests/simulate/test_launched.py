"""Launched functions are told once, those of a captured graph at each replay."""

from __future__ import annotations

import pytest

from jitwatch.simulate import launched


@pytest.fixture(autouse=True)
def nothing_launched():
    launched.take()
    yield
    launched.take()


def test_what_was_launched_is_told_once():
    launched.launch(3)
    launched.launch(5)
    launched.launch(3)
    assert launched.take() == {3, 5}
    assert launched.take() == frozenset()


def test_a_graphs_functions_count_when_captured_and_when_replayed():
    launched.launch(1)
    launched.begin_capture()
    launched.launch(2)
    captured = launched.end_capture()
    launched.launch(3)
    assert captured == {2}
    assert launched.take() == {1, 2, 3}
    launched.replay(captured)
    assert launched.take() == {2}
