"""Attributes replaced for a while, and put back as they were."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """Remembers what it replaces; `undo` restores it in reverse order."""

    def __init__(self) -> None:
        self._replaced: list[tuple[Any, str, object]] = []

    def set(self, owner: Any, name: str, value: object) -> None:
        """Set an attribute of a module or a class, whether or not it has one by that name."""
        self._replaced.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back; what was not there is removed."""
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
