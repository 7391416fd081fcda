"""Imports a module with one of its lines changed, in memory; no file is written.

Owns the import hook. The module keeps its name and its file, so that a report names the real line,
and whoever reads its source (Triton does) gets the changed one.
"""

from __future__ import annotations

import linecache
import sys
import tokenize
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType


class ChangedLoader(SourceFileLoader):
    """Loads a module from the lines given; neither reads nor writes bytecode."""

    def __init__(self, name: str, path: str, lines: Sequence[str], encoding: str) -> None:
        super().__init__(name, path)
        self.lines, self.encoding = [line + "\n" for line in lines], encoding

    def exec_module(self, module: ModuleType) -> None:
        """Run the changed source, which tracebacks and `inspect` show as well."""
        text = "".join(self.lines)
        # An entry without a time is never compared with the file.
        linecache.cache[self.path] = (len(text), None, self.lines, self.path)
        super().exec_module(module)

    def path_stats(self, path: str) -> dict[str, float]:
        """Refused: bytecode is kept only for a file whose age is known."""
        raise OSError("changed in memory")

    def get_data(self, path: str) -> bytes:
        """The changed source; another file is read as it is."""
        if path != self.path:
            return super().get_data(path)
        return "".join(self.lines).encode(self.encoding)


class ChangedFinder:
    """Finds the one module that `loader` is for."""

    def __init__(self, loader: ChangedLoader) -> None:
        self.loader = loader

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec with another loader."""
        if name != self.loader.name:
            return None
        spec = PathFinder.find_spec(name, path, target)
        assert spec is not None, name
        spec.loader = self.loader
        return spec


def change_line(module: str, old: str, new: str, *, after: str = "") -> None:
    """Have `module` imported with the line `new` where its file has `old`.

    Lines are compared without their indentation, and the new one gets that of the old. `after` is
    a line somewhere above, for a line that the file has more than once: the first below it is
    changed.

    Raises:
        RuntimeError: the module is imported already, or has a changed line already.
        ValueError: there is no such module, there isn't exactly one such line, or it would not
            change.
    """
    if module in sys.modules:
        raise RuntimeError(
            f"{module} is imported already, with its line as it is; change it in a new process, "
            f"before anything imports it"
        )
    others = [finder for finder in sys.meta_path if isinstance(finder, ChangedFinder)]
    if any(finder.loader.name == module for finder in others):
        raise RuntimeError(f"{module} has a changed line already; change one in each process")
    path = source_file(module)
    with tokenize.open(path) as file:
        lines, encoding = file.read().removesuffix("\n").split("\n"), file.encoding
    try:
        changed = replace_line(lines, old, new, after)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    sys.meta_path.insert(0, ChangedFinder(ChangedLoader(module, path, changed, encoding)))


def source_file(module: str) -> str:
    """The file of a module that is not imported; nor are the packages around it, by this.

    Raises:
        ValueError: there is none.
    """
    spec: ModuleSpec | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}".lstrip(".")
        inside = spec.submodule_search_locations if spec is not None else sys.path
        # Under its last name alone: asked for by its full one, a package around it is needed.
        spec = PathFinder.find_spec(part, inside) if inside is not None else None
        if spec is None:
            raise ValueError(f"no module {name!r} in sys.path; run in the folder that holds it")
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        raise ValueError(f"{module} has no Python source: name a .py file's module")
    return spec.loader.path


def replace_line(lines: Sequence[str], old: str, new: str, after: str = "") -> list[str]:
    """`lines` with the one that reads `old` replaced: the only one, or the first below `after`.

    Raises:
        ValueError: there isn't exactly one such line, or it would not change.
    """
    old, new = old.strip(), new.strip()
    if old == new or "\n" in new:
        raise ValueError(f"{old!r} becomes {new!r}; it must become one other line")
    if after:
        above = only(lines, after.strip())
        found = next((i for i in range(above, len(lines)) if lines[i].strip() == old), None)
        if found is None:
            raise ValueError(f"no line reads {old!r} below {after.strip()!r}")
    else:
        found = only(lines, old)
    indentation = lines[found][: len(lines[found]) - len(lines[found].lstrip())]
    return [*lines[:found], indentation + new, *lines[found + 1 :]]


def only(lines: Sequence[str], wanted: str) -> int:
    """Where the one line is that reads `wanted`.

    Raises:
        ValueError: there are several, or none.
    """
    found = [index for index, line in enumerate(lines) if line.strip() == wanted]
    if len(found) > 1:
        places = ", ".join(str(index + 1) for index in found)
        raise ValueError(
            f"{len(found)} lines read {wanted!r}: {places}; name one above the right one as `after`"
        )
    if not found:
        raise ValueError(f"no line reads {wanted!r}; give it as it is now, whole")
    return found[0]
