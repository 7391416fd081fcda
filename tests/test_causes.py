"""The causes as documentation: complete, and in step with the codes they give."""

from __future__ import annotations

import re

import pytest

from jitwatch.causes import CAUSES
from jitwatch.events import DiffRow
from jitwatch.variants import KINDS
from tests.samples import event

SECTIONS = ["What happened:", "Why it matters:", "How to fix:", "Not this:"]
ROW = DiffRow("n", "n == 1", "any other n")


@pytest.mark.parametrize("code", CAUSES)
def test_the_docstring_has_its_four_sections_each_with_a_text(code):
    text = CAUSES[code].__doc__
    found = re.findall(r"^ +([A-Z][a-z]+(?: [a-z]+)*:)", text, re.MULTILINE)
    assert found == SECTIONS
    for part in re.split("|".join(SECTIONS), text):
        assert len(part.split()) >= 3, part


@pytest.mark.parametrize("code", CAUSES)
def test_a_cause_gives_its_own_code_and_says_why_and_what_helps(code):
    cause = CAUSES[code](event(1, "load", 1), (ROW,))
    assert cause.code == code
    assert cause.name
    assert cause.why
    assert cause.help
    assert "\n" not in cause.why + cause.help


def test_every_code_has_a_name_of_its_own():
    names = [cause(event(1, "load", 1), (ROW,)).name for cause in CAUSES.values()]
    assert len(set(names)) == len(CAUSES)


def test_every_kind_of_difference_has_a_cause():
    assert set(KINDS.values()) <= set(CAUSES)


def test_the_fix_of_an_integer_class_names_the_argument():
    cause = CAUSES["JW102"](event(1, "load", 1), (ROW,))
    assert cause.why == "Triton compiles n apart for == 1, % 16 == 0 and any other value"
    assert cause.help == '@triton.jit(do_not_specialize=["n"]), or warm each class'


def test_a_cause_without_a_row_still_reads():
    cause = CAUSES["JW104"](event(1, "load", 1), ())
    assert cause.why == "an argument is part of the key, and this value was not warmed"


@pytest.mark.parametrize(("code", "text"), [("JW203", "cusolver"), ("JW205", "cusolver")])
def test_a_librarys_cause_names_the_library(code, text):
    assert CAUSES[code](event(1, "load", 1, origin=text), ()).why.startswith(text)
