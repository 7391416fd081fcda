"""The progress display, as a terminal would be told of it."""

from __future__ import annotations

from jitwatch.progress import RichProgress


class Bar:
    """What rich's display is asked to show."""

    def __init__(self):
        self.shown = []

    def add_task(self, name, total):
        self.shown.append((name, total))
        return len(self.shown) - 1

    def update(self, task, completed, total):
        self.shown[task] = (self.shown[task][0], completed, total)


def test_a_bar_takes_its_total_as_it_becomes_known():
    bar = Bar()
    progress = RichProgress(bar)
    progress.update("sim:h200", 0, 0)
    assert bar.shown == [("sim:h200", 0, None)]
    progress.update("sim:h200", 3, 40)
    progress.update("cuda", 1, 2)
    assert bar.shown == [("sim:h200", 3, 40), ("cuda", 1, 2)]
