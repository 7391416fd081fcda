"""A line is changed in memory only, and misuse is refused before anything is imported."""

from __future__ import annotations

import importlib
import inspect
import linecache
import py_compile
import re
import sys
import traceback

import pytest

from examples.story.change import change_line, replace_line, source_file

SOURCE = "# é\ndef answer():\n    return 1\n\n\ndef fail():\n    raise ValueError\n"
CHANGED = SOURCE.replace("return 1", "return 2")


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A module `pack.changed_here` to change; bytecode is kept, whatever the environment says."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    file = tmp_path / "pack" / "changed_here.py"
    file.write_text(SOURCE)
    yield file
    for name in ("pack", "pack.changed_here", "pack.other"):
        sys.modules.pop(name, None)
    linecache.cache.pop(str(file), None)


NAME = "pack.changed_here"


def test_the_module_runs_and_shows_the_changed_line(file):
    change_line(NAME, "return 1", "return 2")
    changed = importlib.import_module(NAME)
    assert changed.answer() == 2
    assert changed.__file__ == str(file)
    assert changed.answer.__code__.co_filename == str(file)
    linecache.checkcache()
    assert inspect.getsource(changed.answer) == "def answer():\n    return 2\n"
    assert inspect.getsource(changed) == CHANGED
    assert changed.__loader__.get_source(NAME) == CHANGED


def test_a_traceback_shows_the_changed_line(file):
    change_line(NAME, "raise ValueError", "raise KeyError")
    with pytest.raises(KeyError) as caught:
        importlib.import_module(NAME).fail()
    (*_, last) = traceback.extract_tb(caught.value.__traceback__)
    assert (last.filename, last.lineno, last.line) == (str(file), 7, "raise KeyError")


def test_the_file_is_left_as_it_is(file):
    change_line(NAME, "return 1", "return 2")
    importlib.import_module(NAME)
    assert file.read_text() == SOURCE
    names = {path.name for path in file.parent.iterdir()}
    assert names == {"__init__.py", "changed_here.py", "__pycache__"}
    # Of the package alone: the changed module left no bytecode.
    assert [path.name.split(".")[0] for path in (file.parent / "__pycache__").iterdir()] == [
        "__init__"
    ]


def test_bytecode_of_the_file_is_neither_used_nor_replaced(file):
    compiled = py_compile.compile(str(file))
    with open(compiled, "rb") as before:
        bytecode = before.read()
    change_line(NAME, "return 1", "return 2")
    assert importlib.import_module(NAME).answer() == 2
    with open(compiled, "rb") as after:
        assert after.read() == bytecode


def test_other_modules_and_files_are_read_as_they_are(file):
    (file.parent / "other.py").write_text("def answer():\n    return 1\n")
    change_line(NAME, "return 1", "return 2")
    assert importlib.import_module("pack.other").answer() == 1
    changed = importlib.import_module(NAME)
    assert changed.__loader__.get_data(str(file.parent / "other.py")).startswith(b"def answer")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8-sig"])
def test_a_file_in_another_encoding(file, encoding):
    cookie = "" if encoding == "utf-8-sig" else f"# coding: {encoding}\n"
    file.write_text(f"{cookie}TEXT = 'é'\nx = 1\n", encoding=encoding)
    change_line(NAME, "x = 1", "x = 2")
    changed = importlib.import_module(NAME)
    assert (changed.TEXT, changed.x) == ("é", 2)


def test_lines_are_counted_as_python_counts_them(file):
    """A form feed and a line separator end a line of `str.splitlines`, but none of Python's."""
    file.write_text("\x0c\nTEXT = '\u2028'\ndef answer():\n    return 1", encoding="utf-8")
    change_line(NAME, "return 1", "return 2")
    assert inspect.getsource(importlib.import_module(NAME).answer).endswith("    return 2\n")


def test_a_module_that_is_imported_already_is_not_changed(file):
    importlib.import_module(NAME)
    with pytest.raises(RuntimeError, match=r"^pack\.changed_here is imported already"):
        change_line(NAME, "return 1", "return 2")


def test_a_second_change_is_refused(file):
    change_line(NAME, "return 1", "return 2")
    with pytest.raises(RuntimeError, match=r"^pack\.changed_here has a changed line already"):
        change_line(NAME, "raise ValueError", "pass")


def test_a_line_that_is_not_there_is_refused_before_the_import(file):
    message = re.escape(f"{file}: no line reads 'return 7'; give it as it is now, whole")
    with pytest.raises(ValueError, match=f"^{message}$"):
        change_line(NAME, "return 7", "return 2")
    # Nor was the package imported to find that out.
    assert "pack" not in sys.modules


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no_such_package.x", "no module 'no_such_package'"),
        ("pack.no_such_module", "no module 'pack.no_such_module'"),
        ("pack.changed_here.deeper", "no module 'pack.changed_here.deeper'"),
        ("sys_is_not", "no module 'sys_is_not'"),
        ("pack.data", "pack.data has no Python source"),
    ],
)
def test_a_module_without_source_is_refused(file, module, message):
    (file.parent / "data").mkdir()
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        source_file(module)


LINES = ["def f():", "    n = 1", "    return n", "", "def g():", "    n = 1"]


def test_a_line_is_replaced_at_its_indentation():
    assert replace_line(LINES, " return n ", "return 2")[2] == "    return 2"
    changed = replace_line(LINES, "n = 1", "n = 3", after="def g():")
    assert changed == [*LINES[:5], "    n = 3"]
    assert replace_line(LINES, "n = 1", "n = 3", after="def f():") == [
        LINES[0],
        "    n = 3",
        *LINES[2:],
    ]


@pytest.mark.parametrize(
    ("old", "new", "after", "message"),
    [
        (
            "n = 1",
            "pass",
            "",
            "2 lines read 'n = 1': 2, 6; name one above the right one as `after`",
        ),
        ("n = 7", "pass", "", "no line reads 'n = 7'; give it as it is now, whole"),
        # A part of a line is no line.
        ("n =", "pass", "", "no line reads 'n ='; give it as it is now, whole"),
        ("n = 1", "pass", "def h():", "no line reads 'def h():'; give it as it is now, whole"),
        ("return n", "pass", "def g():", "no line reads 'return n' below 'def g():'"),
        (
            "return n",
            " return n",
            "",
            "'return n' becomes 'return n'; it must become one other line",
        ),
        ("return n", "a\nb", "", "'return n' becomes 'a\\nb'; it must become one other line"),
    ],
)
def test_a_line_must_be_the_only_one_and_change(old, new, after, message):
    with pytest.raises(ValueError, match="line") as caught:
        replace_line(LINES, old, new, after)
    assert str(caught.value) == message
