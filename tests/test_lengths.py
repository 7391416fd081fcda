"""The ladder and the proof in the text report: exact lines."""

from __future__ import annotations

from dataclasses import replace

from jitwatch.events import Boundary, Proof, Rung
from jitwatch.render.lengths import ladder_lines, proof_lines
from jitwatch.render.terminal import first_line, render_text
from tests.samples import report

LADDER = (
    Rung(1, ("a, b, c, d, e: its only variant", "align_kernel, down_kernel: tiles of 16 rows")),
    Rung(2049, ("align_kernel, down_kernel: tiles of 128 rows, for a longer reason",)),
)
PROOF = Proof(
    262_144,
    8192,
    1742,
    (
        Boundary(257, (), ("align_kernel", "down_kernel")),
        Boundary(2049, (0, 8), ("a", "b", "c", "d", "e")),
    ),
    ("what a request launches does not depend on the requests that were served before it",),
)


def test_a_ladder_has_a_line_for_each_rung_and_counts_kernels_where_they_are_many():
    made = replace(report(), ladder=LADDER, environment={"warmup_seconds": 4.12})
    assert ladder_lines(made) == [
        "Warmup: 2 rungs, 4.1 s",
        "        1  5 kernels: its only variant; align_kernel, down_kernel: tiles of 16",
        "           rows",
        "    2,049  align_kernel, down_kernel: tiles of 128 rows, for a longer reason",
    ]


def test_a_rung_without_a_reason_is_a_length():
    made = replace(report(), ladder=(Rung(80, ()), Rung(128, ("--warmup-lengths",))))
    assert ladder_lines(made)[1:] == ["       80", "      128  --warmup-lengths"]


def test_without_a_ladder_or_a_time_nothing_is_said_of_them():
    assert ladder_lines(report()) == []
    assert ladder_lines(replace(report(), ladder=LADDER[1:]))[0] == "Warmup: 1 rung"


def test_a_proof_says_where_variants_change_and_what_it_assumes():
    assert proof_lines(PROOF) == [
        "Proved for 1..262,144 by 1,742 requests",
        "      257  other variants of align_kernel, down_kernel",
        "    2,049  other variants of 5 kernels, lengths of 0, 8 mod 16",
        "  assumed: what a request launches does not depend on the requests that were",
        "    served before it",
    ]


def test_the_first_line_says_what_the_requests_stand_for():
    made = replace(report(device="sim:h200"), ladder=LADDER, proof=PROOF)
    assert "2 requests on sim:h200 stand for 1..262,144, " in first_line(made)
    text = render_text(made)
    assert "\n\nWarmup: 2 rungs\n" in text
    assert "\n\nProved for 1..262,144 by 1,742 requests\n" in text
    assert text.index("Proved") < text.index("Coverage")
