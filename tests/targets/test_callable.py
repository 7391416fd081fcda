"""How a target's name is resolved, and what is said where it can't be."""

from __future__ import annotations

import pytest

from jitwatch.errors import TargetError
from jitwatch.targets.callable import TargetRequest, load_target, where_raised

MODULE = """
calls = []

class Whole:
    def warmup(self): calls.append("warmup")
    def serve(self, request): calls.append(request.prompt_tokens)
    def close(self): calls.append("close")

class Needy:
    def __init__(self, model, device="cuda"): pass
    def serve(self, request): pass

class Mute:
    pass

made = Whole()

def make(): return Whole()
def make_or(seed=0): return Whole()
def mute(): return 3
def bare(prompt_tokens): calls.append(("bare", prompt_tokens))
def warm(prompt_tokens, heat=0): calls.append((prompt_tokens, heat))
def two(prompt_tokens, output_tokens): pass

class space:
    inner = made
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of an importable module with targets of all kinds."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"targets_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    return name


REQUEST = TargetRequest("len7", 7, 2)


@pytest.mark.parametrize("attribute", ["Whole", "made", "make", "make_or", "space.inner"])
def test_an_object_and_what_makes_one(module, attribute):
    target = load_target(f"{module}:{attribute}")
    target.warmup()
    target.serve(REQUEST)
    target.close()
    calls = __import__(module).calls
    assert calls == ["warmup", 7, "close"]
    calls.clear()


def test_a_function_of_one_argument_serves(module):
    target = load_target(f"{module}:bare")
    assert (target.warmup, target.close) == (None, None)
    target.serve(REQUEST)
    assert __import__(module).calls == [("bare", 7)]


def test_parameters_go_to_a_function_by_name(module):
    load_target(f"{module}:warm").serve(TargetRequest("len7", 7, 2, {"heat": 3}))
    assert __import__(module).calls == [(7, 3)]
    with pytest.raises(TypeError, match="heat"):
        load_target(f"{module}:bare").serve(TargetRequest("len7", 7, 2, {"heat": 3}))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "MODULE",
            "--target 'MODULE' is no target\n"
            "  why: a target is named module:attr\n"
            "  fix: for example --target mypackage.bench:Target",
        ),
        (
            ":Whole",
            "--target ':Whole' is no target\n"
            "  why: a target is named module:attr\n"
            "  fix: for example --target mypackage.bench:Target",
        ),
        (
            "no_such.module:Target",
            "--target no_such.module:Target: no module named 'no_such'\n"
            "  why: the current directory and the installed packages were searched\n"
            "  fix: run from the folder that holds it, or install it",
        ),
        (
            "MODULE:Hole",
            "--target MODULE:Hole: MODULE has no 'Hole'\n"
            "  why: it has calls, Whole, Needy, Mute, made, make, make_or, mute, bare, warm, two, "
            "space\n"
            "  fix: name one of its objects, classes or functions",
        ),
        (
            "MODULE:two",
            "--target MODULE:two takes 2 required arguments\n"
            "  why: a function target takes one, prompt_tokens, or none and returns an object\n"
            "  fix: wrap it: def serve(prompt_tokens): ...",
        ),
        (
            "MODULE:Needy",
            "--target MODULE:Needy is a class that needs model\n"
            "  why: a class target is made without arguments\n"
            "  fix: give them defaults, or name a function without parameters that returns an "
            "object",
        ),
        (
            "MODULE:Mute",
            "--target MODULE:Mute gives a Mute without serve(request)\n"
            "  why: a target object serves requests\n"
            "  fix: give it `def serve(self, request)`; warmup() and close() are optional",
        ),
        (
            "MODULE:mute",
            "--target MODULE:mute gives a int without serve(request)\n"
            "  why: a target object serves requests\n"
            "  fix: give it `def serve(self, request)`; warmup() and close() are optional",
        ),
    ],
)
def test_what_is_said_of_a_name_that_is_no_target(module, name, text):
    with pytest.raises(TargetError) as caught:
        load_target(name.replace("MODULE", module))
    assert str(caught.value).replace(module, "MODULE") == text


def test_a_module_that_its_own_import_misses_passes_through(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needs_more.py").write_text("x = 1\nimport no_such_library\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_library") as caught:
        load_target("needs_more:Target")
    assert where_raised(caught.value) == f"{tmp_path}/needs_more.py:2"


def test_a_line_that_can_not_be_parsed_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cannot_parse.py").write_text("x = 1\n\ny = (\n")
    with pytest.raises(SyntaxError) as caught:
        load_target("cannot_parse:Target")
    assert where_raised(caught.value) == f"{tmp_path}/cannot_parse.py:3"


def test_an_exception_never_raised_has_no_place():
    assert where_raised(ValueError()) == ""
