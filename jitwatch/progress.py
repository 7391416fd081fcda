"""How far a sweep is, on a terminal."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jitwatch.child import Progress


def progress_bar() -> AbstractContextManager[Progress | None]:
    """A progress bar on a terminal, nothing in a pipe or without rich."""
    if not sys.stderr.isatty():
        return nullcontext()
    try:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return nullcontext()
    return RichProgress(
        Bar(
            *Bar.get_default_columns()[:2],
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
    )


class RichProgress:
    """A task for each device on one rich progress display."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Progress:
        self.bar.start()
        return self.update

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def update(self, device: str, served: int, total: int) -> None:
        """Show how many of `total` lengths `device` served."""
        if device not in self.tasks:
            self.tasks[device] = self.bar.add_task(device, total=None)
        # A proof learns on the way how many there will be; before that the bar only moves.
        self.bar.update(self.tasks[device], completed=served, total=total or None)
