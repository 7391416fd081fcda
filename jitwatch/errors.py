"""Every error a user of jitwatch can meet.

Each says what happened, why, and how to fix it. Knows nothing of where it is shown.
"""

from __future__ import annotations


class JitwatchError(Exception):
    """Base of all jitwatch errors: `what` happened, `why`, and how to `fix` it."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(str(self))

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)


class UsageError(JitwatchError):
    """The command, an option or a configuration value is wrong (exit status 2)."""


class TargetError(JitwatchError):
    """The target can't be imported, has the wrong shape, or raised before it was ready."""


class DriverUnavailable(JitwatchError):
    """The native driver hook can't be built or armed here."""


class SimulationError(JitwatchError):
    """The simulated device was asked for what only a real one can give."""


class RunFileError(JitwatchError):
    """A run directory or one of its files can't be read."""
