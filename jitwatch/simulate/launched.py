"""Which loaded functions were launched since someone last asked; a graph's count at each replay.

One for a process, as the device is. Knows nothing of what a function is: numbers that the
simulated driver gave out.
"""

from __future__ import annotations

import threading

_used: set[int] = set()
_local = threading.local()


def launch(function: int) -> None:
    """A function was launched, or put into the graph that this thread captures."""
    _used.add(function)
    captured: set[int] | None = getattr(_local, "captured", None)
    if captured is not None:
        captured.add(function)


def begin_capture() -> None:
    """What this thread launches from now on belongs to a graph."""
    _local.captured = set()


def end_capture() -> frozenset[int]:
    """The functions of the graph that this thread captured."""
    captured = frozenset(_local.captured)
    _local.captured = None
    return captured


def replay(functions: frozenset[int]) -> None:
    """A graph of these functions was launched."""
    _used.update(functions)


def take() -> frozenset[int]:
    """What was launched since the last call."""
    taken = frozenset(_used)
    _used.clear()
    return taken
