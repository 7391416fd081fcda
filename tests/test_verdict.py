"""The verdict: fail beats inconclusive beats pass, and a pass has all its evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jitwatch.events import Coverage, SourceState
from jitwatch.evidence import missing_evidence, unseen_launches
from jitwatch.verdict import BUDGET, judge, plural, spell_lengths
from tests.samples import ARMED, request

CLEAN = {**dict.fromkeys(BUDGET, 0), "late_other_loads": 0, "requests": 1, "launches": 3}


def test_nothing_late_and_no_doubt_passes():
    verdict = judge(CLEAN, [], fail_on="in-repo")
    assert (verdict.outcome, verdict.reasons) == ("pass", ())


@pytest.mark.parametrize(("count", "noun"), BUDGET.items())
def test_each_count_of_the_budget_fails(count, noun):
    verdict = judge({**CLEAN, count: 2}, [], fail_on="in-repo")
    assert (verdict.outcome, verdict.reasons) == ("fail", (f"2 {noun}s",))


def test_a_doubt_is_inconclusive_and_a_failure_beats_it():
    assert judge(CLEAN, ["lost"], fail_on="in-repo").outcome == "inconclusive"
    verdict = judge({**CLEAN, "late_compiles": 1}, ["lost"], fail_on="in-repo")
    assert verdict.outcome == "fail"
    assert verdict.reasons == ("1 late in-repo compile", "lost")


def test_third_party_loads_fail_only_where_they_are_judged():
    others = {**CLEAN, "late_other_loads": 1}
    assert judge(others, [], fail_on="in-repo").outcome == "pass"
    verdict = judge(others, [], fail_on="any")
    assert (verdict.outcome, verdict.reasons) == ("fail", ("1 late third-party load",))


def test_unseen_third_party_loads_are_no_pass_where_they_are_judged():
    unseen = {**CLEAN, "late_other_loads": None}
    assert judge(unseen, [], fail_on="in-repo").outcome == "pass"
    verdict = judge(unseen, [], fail_on="any")
    assert verdict.outcome == "inconclusive"
    assert verdict.reasons == (
        "--fail-on any needs the driver hook on a GPU: without it third-party loads can't be "
        "seen (jitwatch doctor says what is missing)",
    )
    assert judge({**unseen, "late_compiles": 1}, [], fail_on="any").outcome == "fail"


SERVED = (request(64, 1),)


def reasons(coverage=ARMED, counts=CLEAN, requests=SERVED, simulated=False):
    unseen = unseen_launches(counts, coverage, requests, simulated=simulated)
    return [*missing_evidence(coverage), *unseen]


def test_all_the_evidence_is_there():
    assert reasons() == []
    assert reasons(replace(ARMED, probes=0), simulated=True) == []
    assert reasons(replace(ARMED, self_test="skipped: simulated"), simulated=True) == []


NOT_ARMED = (SourceState("driver", False, reason="no CUPTI"),)


@pytest.mark.parametrize(
    ("coverage", "reason"),
    [
        (Coverage((), None, "passed"), "no source of loads was armed (none was tried)"),
        (
            Coverage(NOT_ARMED, None, "passed"),
            "no source of loads was armed (driver: no CUPTI)",
        ),
        (replace(ARMED, self_test="no record"), "the driver hook's self-test failed: no record"),
        (replace(ARMED, dropped=1), "1 record lost: a late load may be among them"),
        (
            replace(ARMED, silent_pids=(5, 6)),
            "forked processes compiled or loaded kernels, unseen: 5, 6",
        ),
        (
            replace(ARMED, probes=0),
            "no probe request was answered: whether anything was launched is unknown",
        ),
        (
            replace(ARMED, load_source="triton"),
            "the driver hook is not armed: whether anything was launched is unknown",
        ),
    ],
)
def test_each_missing_piece_is_named(coverage, reason):
    assert reasons(coverage) == [reason]


def test_no_request_and_no_launch_are_named():
    assert reasons(requests=()) == ["no request was served"]
    (reason,) = reasons(counts={**CLEAN, "launches": 0}, simulated=True)
    assert reason == (
        "no kernel launch was seen: the target launches nothing that can be watched here; "
        "check that it runs its kernels on the device, not on the CPU"
    )


def test_numbers_and_nouns():
    assert [plural(n, "load") for n in (0, 1, 2, 1024)] == [
        "0 loads",
        "1 load",
        "2 loads",
        "1,024 loads",
    ]


def test_lengths_are_spelled_in_the_order_given():
    assert spell_lengths([11, 12, 13, 17]) == "11..13, 17"
    assert spell_lengths([65, 1]) == "65, 1"
    assert spell_lengths([]) == ""
    assert spell_lengths(range(1, 20, 2)) == "1, 3, 5, 7, 9, 11, 13, 15, … (10 lengths)"
