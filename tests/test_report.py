"""Counts, requests and stalls of a run: each thing once, charged to who waited."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from jitwatch.events import Coverage, SourceState
from jitwatch.report import Roots
from tests.samples import (
    ARMED,
    DRIVER,
    PID,
    READY_NS,
    TRITON,
    driver_load,
    event,
    report,
    request,
    step,
    tuning,
    variant,
)

UNARMED = Coverage(
    (SourceState("driver", False, reason="no CUPTI"), TRITON), "triton", "skipped: not armed"
)
SIMULATED = Coverage((DRIVER, TRITON), "driver", "skipped")
WARM = [event(1, "load", -10, 2), driver_load(2, -9, 1)]
LATE = [
    event(3, "compile", 11, 2, variant=variant("i32"), step=64),
    event(4, "load", 14, 3, variant=variant("i32"), step=64),
    driver_load(5, 15, 1, step=64),
]


def test_a_clean_run_passes_with_its_evidence():
    made = report(WARM)
    assert (made.verdict.outcome, made.doubts, made.stalls) == ("pass", (), ())
    assert made.counts == {
        "requests": 2,
        "launches": 6,
        "late_in_repo_loads": 0,
        "late_compiles": 0,
        "late_autotunes": 0,
        "late_launcher_builds": 0,
        "late_other_loads": 0,
        "warmup_variants": 1,
    }


def test_a_driver_load_and_the_hooks_load_around_it_are_counted_once():
    made = report(WARM + LATE)
    assert made.counts["late_in_repo_loads"] == 1
    assert made.counts["late_compiles"] == 1
    assert made.counts["late_other_loads"] == 0
    assert [(stall.event.kind, stall.event.source) for stall in made.stalls] == [
        ("compile", "triton"),
        ("load", "driver"),
    ]
    assert made.verdict.reasons == ("1 late in-repo load", "1 late in-repo compile")


def test_without_the_driver_hook_the_compilers_load_counts_and_others_are_unknown():
    hooks = [item for item in WARM + LATE if item.source == "triton"]
    made = report(hooks, coverage=UNARMED)
    assert made.counts["late_in_repo_loads"] == 1
    assert made.counts["warmup_variants"] == 1
    assert (made.counts["late_other_loads"], made.counts["launches"]) == (None, None)
    assert [row.other_loads for row in made.requests] == [None, None]
    assert made.verdict.outcome == "fail"


def test_without_the_driver_hook_nothing_late_is_no_pass():
    made = report([WARM[0]], coverage=replace(UNARMED, probes=10, probe_launches=0))
    assert made.verdict.outcome == "inconclusive"
    assert made.verdict.reasons == (
        "the driver hook is not armed: whether anything was launched is unknown",
    )


def test_autotuning_is_counted_once_for_each_key():
    late = [
        event(3, "autotune", 11, 5, variant=tuning("2"), step=64),
        event(4, "load", 12, 1, parent=3, variant=variant(constants={"BLOCK": "1"}), step=64),
        event(5, "load", 14, 1, parent=3, variant=variant(constants={"BLOCK": "2"}), step=64),
        event(6, "autotune", 21, 5, variant=tuning("3"), step=65),
    ]
    made = report([WARM[0], *late], coverage=UNARMED)
    assert made.counts["late_autotunes"] == 2
    assert made.counts["late_in_repo_loads"] == 2


def test_a_stall_is_the_union_of_what_was_waited_for():
    nested = [
        event(3, "autotune", 11, 5, variant=tuning("2"), step=64),
        event(4, "load", 12, 1, parent=3, step=64),
        event(5, "load", 17, 2, variant=variant("i32"), step=64),
    ]
    made = report([WARM[0], *nested], coverage=UNARMED)
    assert [row.stall_ms for row in made.requests] == [7.0, 0.0]


def test_our_own_stack_dump_is_no_part_of_a_stall():
    late = driver_load(3, 11, 2, step=64, stack_ns=500_000)
    made = report([late])
    assert [stall.stall_ms for stall in made.stalls] == [1.5]
    assert made.requests[0].stall_ms == 1.5


def test_an_open_event_is_late_and_takes_no_time_yet():
    made = report([*WARM, driver_load(3, 11, None, step=64, file="/repo/k.py")])
    assert [(stall.event.end_ns, stall.stall_ms) for stall in made.stalls] == [(None, 0)]
    assert made.requests[0].stall_ms == 0
    assert made.counts["late_in_repo_loads"] == 1


def test_every_request_of_a_step_is_charged():
    both = step(64, 10, requests=("len64", "len65"))
    made = report(WARM + LATE, steps=[both])
    assert [row.in_repo_loads for row in made.requests] == [1, 1]
    assert [row.compiles for row in made.requests] == [1, 1]
    assert [row.phases for row in made.requests] == [{"mixed": 1}, {"mixed": 1}]


def test_what_nobody_waited_for_is_counted_all_the_same():
    made = report([*WARM, event(3, "launcher_build", 35, step=None)])
    (stall,) = made.stalls
    assert (stall.requests, stall.inferred) == ((), True)
    assert made.counts["late_launcher_builds"] == 1
    assert made.verdict.outcome == "fail"


def test_a_third_partys_load_is_listed_and_counted_apart():
    made = report([*WARM, driver_load(3, 11, 1, kernel="nvjet_tst_64x8", step=64)])
    (stall,) = made.stalls
    assert (stall.event.origin, stall.cause.code) == ("cublas", "JW205")
    assert (made.counts["late_other_loads"], made.counts["late_in_repo_loads"]) == (1, 0)
    assert (made.requests[0].other_loads, made.requests[0].in_repo_loads) == (1, 0)
    assert made.verdict.outcome == "pass"
    judged = report([*WARM, driver_load(3, 11, 1, kernel="nvjet_tst_64x8")], fail_on="any")
    assert judged.verdict.reasons == ("1 late third-party load",)


def test_simulated_third_party_loads_are_unknown_and_can_not_be_judged():
    assert report(WARM, device="sim:h200", coverage=SIMULATED).verdict.outcome == "pass"
    made = report(WARM, device="sim:h200", coverage=SIMULATED, fail_on="any")
    assert made.counts["late_other_loads"] is None
    assert [row.other_loads for row in made.requests] == [None, None]
    assert made.verdict.outcome == "inconclusive"


def test_of_what_loads_after_the_last_request_only_the_repositorys_is_late():
    facts = {"served_until_ns": READY_NS + 32_000_000}
    after = [
        event(6, "load", 33, 3, variant=variant("i32")),
        driver_load(7, 34, 1),
        driver_load(8, 37, 1, kernel="nvjet_tst_64x8"),
    ]
    made = report(WARM + after, facts=facts)
    assert [(stall.event.seq, stall.requests) for stall in made.stalls] == [(7, ())]
    assert made.verdict.reasons == ("1 late in-repo load",)
    # In a probe's step it is not a request's.
    probe = step(9, 32, requests=("probe9",))
    steps = [step(64, 10), step(65, 20), probe]
    assert report(WARM + after, facts=facts, steps=steps).verdict.outcome == "pass"


@pytest.mark.parametrize("until_ms", [-1, 29])
def test_an_end_before_the_last_request_is_a_doubt(until_ms):
    made = report(WARM, facts={"served_until_ns": READY_NS + until_ms * 1_000_000})
    assert made.verdict.reasons == (
        "what it says of when the last request was served is before that",
    )
    ended = report(WARM, facts={"served_until_ns": READY_NS + 30_000_000})
    assert ended.verdict.outcome == "pass"


def test_how_the_process_ended_is_a_doubt_said_once():
    failed = {"failed": {"stage": "close", "error": "ValueError: no"}}
    assert report(WARM, facts=failed).doubts == ("the target failed (close): ValueError: no",)
    told = report(WARM, facts={**failed, "unclosed": True}, doubts=["killed by signal 9"])
    assert told.doubts == told.verdict.reasons == ("killed by signal 9",)
    killed = report(WARM, facts={"unclosed": True})
    assert killed.doubts == (
        "the target's process was killed: what it had still to say is unknown",
    )


def test_a_run_that_did_not_get_through_is_not_compared_with_the_simulated_one():
    other = [asdict(variant("i32"))]
    assert len(report(WARM, simulated=other).doubts) == 2
    assert report(WARM, simulated=other, doubts=["killed"]).doubts == ("killed",)


def test_a_request_left_open_is_a_doubt():
    made = report(WARM, requests=[request(64, 10), request(65, 20, None)])
    assert made.verdict.reasons == ("not answered: prompt_tokens 65",)


def test_where_launches_are_counted_each_request_has_some():
    both = [request(64, 10), request(65, 20, launches=0)]
    simulated = {"device": "sim:h200", "coverage": SIMULATED, "requests": both}
    assert report(WARM, **simulated).verdict.outcome == "pass"
    made = report(WARM, **simulated, facts={"says_steps": True})
    assert made.verdict.reasons == (
        "1 request launched nothing, first len65: what the target does for them can't be judged",
    )


def test_what_was_launched_was_loaded():
    used = [request(64, 10, pid=PID, used=(1, 2)), request(65, 20, pid=PID, used=(3,))]
    simulated = {"device": "sim:h200", "coverage": SIMULATED, "facts": {"says_steps": True}}
    made = report(WARM, **simulated, requests=used)
    assert made.verdict.reasons == ("len65 launched what no record says was loaded",)
    assert report(WARM, **simulated, requests=used[:1]).verdict.outcome == "pass"


PROOF = {"max_tokens": 65, "chunk_tokens": None, "served": 2, "boundaries": [], "assumptions": []}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"served": 3}, "the proof for 1..65 is of 3 lengths, but 2 were answered, up to 65"),
        ({"max_tokens": 64}, None),
        ({"max_tokens": 70}, "the proof for 1..70 is of 2 lengths, but 2 were answered, up to 65"),
    ],
)
def test_a_proof_is_of_the_requests_answered(changes, reason):
    proved = {"device": "sim:h200", "coverage": SIMULATED, "prove": 65}
    made = report(WARM, **proved, facts={"proof": {**PROOF, **changes}})
    assert made.verdict.reasons == ((reason,) if reason else ())


def test_a_proof_of_more_than_was_asked_for_is_a_doubt():
    proved = {"device": "sim:h200", "coverage": SIMULATED, "prove": 60}
    made = report(WARM, **proved, facts={"proof": PROOF})
    assert made.verdict.reasons == ("the proof is for 1..65, asked for was 1..60",)


def test_why_a_proof_was_not_finished():
    proved = {"device": "sim:h200", "coverage": SIMULATED, "prove": 60}
    assert report(WARM, **proved).doubts == ("the proof for 1..60 was not finished",)
    stopped = report(WARM, **proved, facts={"unproved": "too many variants"})
    assert stopped.doubts == ("the proof for 1..60 was not finished: too many variants",)


def test_never_ready_is_no_pass():
    made = report(WARM + LATE, ready_ns=None)
    assert (made.verdict.outcome, made.stalls) == ("inconclusive", ())
    assert made.verdict.reasons == ("the target was never ready: nothing can be late",)


def test_a_hooks_load_that_the_driver_never_saw_is_a_doubt():
    made = report([WARM[0]])
    assert made.verdict.reasons == (
        "the driver hook missed 1 load(s) that a compiler's hook reported, first scale_kernel",
    )
    raised = event(9, "load", -30, 1, detail="raised")
    assert report([raised, *WARM]).verdict.outcome == "pass"


def test_a_run_that_saw_no_kernel_under_test_is_no_pass():
    alien = event(1, "load", -1, file="/opt/site-packages/liger_kernel/ops.py")
    seen = replace(ARMED, load_source="triton", sources=(TRITON,))
    named = report([alien], coverage=seen, device="sim:h200")
    assert named.verdict.outcome == "inconclusive"
    assert named.verdict.reasons == (
        "no kernel under test was seen: what ran is from liger_kernel (to judge it: "
        "--package liger_kernel)",
    )
    nothing = report([], device="sim:h200")
    assert nothing.verdict.reasons == (
        "no kernel under test was seen: nothing that was launched is a Triton kernel",
    )


def test_a_simulated_run_times_nothing():
    late = event(2, "load", 11, step=64, source="driver")
    made = report([late], device="sim:h200")
    assert [stall.stall_ms for stall in made.stalls] == [None]
    assert [row.stall_ms for row in made.requests] == [None, None]


def test_a_probe_that_launched_what_was_never_loaded_is_a_doubt():
    compiled = event(1, "compile", -10)
    made = report([compiled], facts={"probe_kernels": ["scale_kernel", "somebody_elses"]})
    assert made.verdict.reasons == ("a probe launched scale_kernel, whose load was not recorded",)
    assert report(WARM, facts={"probe_kernels": ["scale_kernel"]}).verdict.outcome == "pass"


def test_requests_that_raised_are_named_and_doubts_of_the_rest_are_not():
    failed = request(65, 20, error="ValueError: no (/repo/t.py:3)", launches=None)
    made = report(WARM, requests=[request(64, 10), failed], lengths=[64, 65])
    assert made.verdict.outcome == "inconclusive"
    assert made.verdict.reasons == (
        "the target raised at prompt_tokens 65: ValueError: no (/repo/t.py:3)",
    )
    assert made.doubts == ()


def test_many_requests_that_raised_are_counted():
    failed = [request(n, n, error="E: x") for n in range(1, 14)]
    (reason,) = report(WARM, requests=failed).verdict.reasons
    assert reason == (
        "the target raised at prompt_tokens 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more: E: x"
    )


def test_lengths_not_answered_and_never_begun_are_named():
    begun = request(65, 20, None, launches=None)
    made = report(WARM, requests=[request(64, 10), begun], lengths=[64, 65, 66, 67, 1])
    assert made.verdict.reasons == ("4 of 5 lengths not served: 65..67, 1",)


def test_how_the_child_ended_is_a_reason():
    made = report(WARM, doubts=["the target's process was killed by signal 9"])
    assert made.verdict.reasons == ("the target's process was killed by signal 9",)
    assert made.doubts == made.verdict.reasons


def test_launches_are_those_of_the_requests_else_of_the_probes():
    assert report(WARM).counts["launches"] == 6
    uncounted = [request(64, 10, launches=None)]
    assert report(WARM, requests=uncounted).counts["launches"] == ARMED.probe_launches
    none = [request(64, 10, launches=0)]
    assert report(WARM, requests=none).verdict.outcome == "inconclusive"


def test_times_of_a_request():
    (row, never) = report(
        WARM,
        requests=[request(64, 10, 4, first_token_ns=READY_NS + 12_000_000), request(65, 20, None)],
    ).requests
    assert (row.serve_ms, row.ttft_ms) == (4.0, 2.0)
    assert (never.serve_ms, never.ttft_ms) == (None, None)


@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/repo/kernels.py", "kernels.py"),
        ("/repo/a/b.py:3 f", "a/b.py:3 f"),
        ("/repository/a/b.py", "a/b.py"),
        ("/opt/site/fla/ops/x.py", "fla/ops/x.py"),
        ("/usr/lib/python3/site-packages/torch/nn.py", "torch/nn.py"),
        ("/usr/lib/python3/dist-packages/torch/nn.py", "torch/nn.py"),
        ("<string>:1 f", "<string>:1 f"),
    ],
)
def test_paths_are_told_from_where_they_lie(path, short):
    assert Roots("/repo", {"fla": ["/opt/site/fla"]}).short(path) == short


def test_the_events_of_a_report_have_short_paths():
    made = report([replace(WARM[0], stack=("/repo/serve.py:9 serve",))])
    assert (made.events[0].file, made.events[0].stack) == ("kernels.py", ("serve.py:9 serve",))
