"""Configurations that depend on a size, as tables that can say where they change.

A kernel launched with a configuration looked up here is one variant for each row, so the sizes at
which rows begin are what warmup must visit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Config = TypeVar("Config")


@dataclass(frozen=True, slots=True)
class Table(Generic[Config]):
    """Rows of (largest size, configuration), ascending, and the configuration beyond them."""

    rows: tuple[tuple[int, Config], ...]
    beyond: Config

    def at(self, size: int) -> Config:
        """The configuration for `size`."""
        for largest, config in self.rows:
            if size <= largest:
                return config
        return self.beyond

    def starts(self) -> tuple[int, ...]:
        """The smallest size of each row, ascending: 1, then where the configuration changes."""
        return (1, *(largest + 1 for largest, _ in self.rows))
