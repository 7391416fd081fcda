"""Ladders, uses and proofs, from what was recorded."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from jitwatch.events import Boundary, Proof, Rung, VariantUse
from jitwatch.evidence import without_steps
from jitwatch.uses import ladder_of, read_proof, read_rung, uses_of
from tests.samples import PID, event, request, step, variant


def told(length, *used, **changes):
    made = request(length, 10)
    return replace(made, **{"pid": PID, "used": used, "error": None, **changes})


ONE, OTHER = variant("i32"), variant("i32 == 1")
LOADS = [
    replace(event(3, "load", -5), variant=ONE, origin="in-repo"),
    replace(event(4, "load", -4), variant=OTHER, origin="in-repo"),
    event(5, "compile", -3),
]


def test_spans_run_over_swept_lengths_whatever_their_distance():
    requests = [told(11, 3), told(27, 3), told(43, 4), told(59, 3, 4)]
    assert uses_of(LOADS, requests) == (
        VariantUse(ONE, "in-repo", ((11, 27), (59, 59))),
        VariantUse(OTHER, "in-repo", ((43, 59),)),
    )


def test_lengths_may_come_in_any_order():
    requests = [told(59, 3), told(11, 3), told(27, 4)]
    assert uses_of(LOADS, requests)[0].spans == ((11, 11), (59, 59))


def test_a_request_that_failed_or_tells_nothing_uses_nothing():
    assert uses_of(LOADS, [told(11, 3, error="ValueError"), told(12, used=None)]) == ()


def test_another_process_has_events_of_its_own():
    assert uses_of(LOADS, [told(11, 3, pid=PID + 1)]) == ()


def test_the_targets_rungs_come_before_those_asked_for():
    rung = Rung(257, ("a_kernel: wide",))
    found = ladder_of({"warmup_lengths": [64]}, {"ladder": [asdict(rung)]})
    assert found == (rung, Rung(64, ("--warmup-lengths",)))
    assert ladder_of({}, {}) == ()


def test_a_rung_and_a_proof_come_back_as_they_were():
    rung = Rung(1, ("a: b", "c: d"))
    assert read_rung({"prompt_tokens": 1, "reasons": ["a: b", "c: d"]}) == rung
    proof = Proof(4096, None, 70, (Boundary(257, (0, 8), ("a_kernel",)),), ("so",))
    data = asdict(proof)
    data["boundaries"] = [{**data["boundaries"][0], "residues": [0, 8], "kernels": ["a_kernel"]}]
    assert read_proof(data) == proof


def test_a_request_without_a_step_is_doubted():
    seen, unseen = told(11, 3), told(12, 3)
    steps = [step(11, 10)]
    assert without_steps([seen], steps) == []
    [doubt] = without_steps([seen, unseen], steps)
    assert doubt.startswith(f"1 request without a step, first {unseen.id}: ")
    assert without_steps([replace(unseen, error="ValueError: no")], steps) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("served", 2**31),
        ("served", "9"),
        ("chunk_tokens", 1.5),
        ("assumptions", "all"),
        ("assumptions", [None]),
        ("boundaries", [{"prompt_tokens": 9, "residues": [-1], "kernels": []}]),
        ("boundaries", [{"prompt_tokens": None, "residues": [], "kernels": []}]),
        ("boundaries", [{"prompt_tokens": 9, "residues": [], "kernels": [9]}]),
    ],
)
def test_a_damaged_proof_is_none(name, value):
    good = asdict(Proof(9, None, 9, (Boundary(2, (0,), ("k",)),), ("alone",)))
    assert read_proof(good) == Proof(9, None, 9, (Boundary(2, (0,), ("k",)),), ("alone",))
    with pytest.raises(TypeError):
        read_proof({**good, name: value})


@pytest.mark.parametrize("changes", [{"prompt_tokens": "9"}, {"reasons": "long"}, {"reasons": [1]}])
def test_a_damaged_rung_is_none(changes):
    with pytest.raises(TypeError):
        read_rung({"prompt_tokens": 9, "reasons": [], **changes})
