"""Imports a module with one of its lines changed, in memory; no file is written.

Owns the import hook. The module keeps its name and its file, so that a report names the real line,
and whoever reads its source (Triton does) gets the changed one.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import linecache
import sys
from collections.abc import Sequence
from types import ModuleType


class ChangedModule(importlib.machinery.SourceFileLoader):
    """Loads a module from the text given; neither reads nor writes bytecode."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self.text = text

    def path_stats(self, path: str) -> dict[str, float]:
        """Refused: bytecode is kept only for a file whose age is known."""
        raise OSError("changed in memory")

    def get_data(self, path: str) -> bytes:
        """The changed source."""
        return self.text.encode()


class ChangedFinder:
    """Finds one module, with `old` replaced by `new` on the one line that it is."""

    def __init__(self, module: str, old: str, new: str, after: str) -> None:
        self.module, self.old, self.new, self.after = module, old, new, after

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec with another loader."""
        if name != self.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None, name
        assert spec.origin is not None, name
        with open(spec.origin, encoding="utf-8") as file:
            text = replace_line(file.read(), self.old, self.new, self.after)
        # An entry without a time is not compared with the file.
        linecache.cache[spec.origin] = (len(text), None, text.splitlines(True), spec.origin)
        spec.loader = ChangedModule(name, spec.origin, text)
        return spec


def change_line(module: str, old: str, new: str, *, after: str = "") -> None:
    """Have `module` imported with the line `old` as `new`, at its own indentation.

    `after` is a line above it, for a line that the module has more than once.

    Raises:
        RuntimeError: the module is imported already. ValueError, at the import: there isn't
        exactly one such line.
    """
    if module in sys.modules:
        raise RuntimeError(f"{module} is imported already: change its line before")
    sys.meta_path.insert(0, ChangedFinder(module, old, new, after))


def replace_line(text: str, old: str, new: str, after: str = "") -> str:
    """`text` with its one line `old` replaced; lines are compared without their indentation.

    Raises:
        ValueError: there isn't exactly one such line, or not one line `after`.
    """
    lines = text.split("\n")
    start = 0
    if after:
        start = only(lines, after, 0) + 1
        # The first one below it.
        found = next((i for i in range(start, len(lines)) if lines[i].strip() == old), None)
        if found is None:
            raise ValueError(f"no line {old!r} below {after!r}")
    else:
        found = only(lines, old, start)
    indentation = lines[found][: len(lines[found]) - len(lines[found].lstrip())]
    lines[found] = indentation + new
    return "\n".join(lines)


def only(lines: Sequence[str], wanted: str, start: int) -> int:
    """Where the one line is that reads `wanted`.

    Raises:
        ValueError: there are several, or none.
    """
    found = [i for i in range(start, len(lines)) if lines[i].strip() == wanted]
    if len(found) != 1:
        raise ValueError(f"{len(found)} lines read {wanted!r}; exactly one must")
    return found[0]
