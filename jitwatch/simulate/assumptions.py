"""Read-backs of what only a kernel could compute.

Owns the list of lines that made one, and the errors that name such a line. Does not know
what a tensor holds.
"""

from __future__ import annotations

import os
import sys

import torch

from jitwatch.errors import SimulationError

_NOT_THE_USER = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "<frozen ",
    "<string>",
)


def user_line() -> str:
    """`file:line` of the innermost frame outside torch and jitwatch."""
    frame = sys._getframe(1)
    innermost = frame
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_NOT_THE_USER):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return f"{innermost.f_code.co_filename}:{innermost.f_lineno}"


class Assumptions:
    """The lines whose read-back was answered with zeros, and other liberties, each once."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.lines: list[str] = []
        self._seen: set[str] = set()

    def assume(self, what: str, answer: str) -> None:
        """Note that `what` on the user's line was answered with `answer`.

        Raises:
            SimulationError: under strict values.
        """
        where = user_line()
        if self.strict:
            raise SimulationError(
                f"{where}: {what} reads a value that only a kernel could compute",
                why="a simulated device runs no kernel, and --strict-values allows no stand-in",
                fix=f"keep the value off the host, or drop --strict-values to go on with {answer}",
            )
        self._add(f"{where}: {what} taken as {answer}")

    def note(self, what: str) -> None:
        """Note something of the user's line that is no value, strict or not."""
        self._add(f"{user_line()}: {what}")

    def _add(self, line: str) -> None:
        if line not in self._seen:
            self._seen.add(line)
            self.lines.append(line)


def unknown_shape(what: str) -> SimulationError:
    """The error for a shape or an index that depends on a value nobody knows here."""
    return SimulationError(
        f"{user_line()}: {what} needs values that only a kernel could compute",
        why="the shape of its result depends on them, and a simulated device runs no kernel",
        fix="compute the values on the host (a CPU tensor moved to cuda keeps them readable), "
        "or use a form with a static shape (output_size=, torch.where with three arguments)",
    )


def unknown_branch() -> SimulationError:
    """The error for a Python branch on floating-point data."""
    return SimulationError(
        f"{user_line()}: a branch on floating-point values of a simulated tensor",
        why="only a kernel could compute them, so which way the branch goes is not known",
        fix="decide on the host from shapes or CPU values, or use torch.where",
    )
