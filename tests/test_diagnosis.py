"""Each code is reached by its own fault, and by no near miss of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jitwatch.causes import CAUSES
from jitwatch.diagnosis import NEAREST_OF, diagnose
from jitwatch.events import TUNED, DiffRow
from tests.samples import READY_NS, driver_load, event, tuning, variant

WARM = event(1, "load", -10)
#: Each code with the events that lead to it; the last one is asked about.
REACHED = {
    "JW101": [event(1, "compile", 1), event(2, "load", 2)],
    "JW102": [WARM, event(2, "load", 1, variant=variant("i32"))],
    "JW103": [WARM, event(2, "load", 1, variant=variant(constants={"BLOCK": "512"}))],
    "JW104": [WARM, event(2, "load", 1, variant=variant(options={"num_warps": "8"}))],
    "JW105": [WARM, event(2, "load", 1)],
    "JW106": [
        event(1, "autotune", -10, variant=tuning("1")),
        event(2, "autotune", 1, variant=tuning("2")),
    ],
    "JW107": [WARM, event(2, "load", 1, variant=variant(x="*bf16 % 16 == 0"))],
    "JW108": [WARM, event(2, "load", 1, variant=variant(x="*fp32"))],
    "JW109": [WARM, event(2, "load", 1, variant=variant(x="None"))],
    "JW110": [WARM, event(2, "load", 1, variant=variant("fp32"))],
    "JW201": [event(1, "disk_hit", 1), event(2, "load", 2)],
    "JW202": [event(1, "compile", -10), event(2, "load", 1)],
    "JW203": [driver_load(1, 1, origin="cusolver")],
    "JW204": [event(1, "link", 1, variant=None, source="driver")],
    "JW205": [driver_load(1, 1, origin="cublas")],
    "JW206": [event(1, "launcher_build", 1)],
    "JW207": [event(1, "subprocess", 1)],
    "JW901": [driver_load(1, 1, origin="unknown")],
}


def of_last(*events):
    """The diagnosis of the last of `events`, all of which are asked about where late."""
    late = [item for item in events if item.start_ns >= READY_NS]
    last = events[-1]
    return diagnose(events, late, READY_NS)[last.pid, last.seq]


def test_every_code_is_reached_here():
    assert list(REACHED) == list(CAUSES)


def test_the_closest_is_looked_for_among_the_first_only():
    many = [
        event(n, "load", n - 200, variant=variant("i32", constants={"N": str(n)}))
        for n in range(1, NEAREST_OF + 2)
    ]
    late = [
        event(200 + n, "load", n, variant=variant("i32", constants={"N": str(n)}, x="*fp32"))
        for n in (NEAREST_OF, NEAREST_OF + 1)
    ]
    rows = [[row.argument for row in of_last(*many, item).diff] for item in late]
    assert rows == [["x"], ["N", "x"]]


@pytest.mark.parametrize("code", REACHED)
def test_the_code(code):
    assert of_last(*REACHED[code]).cause.code == code


@pytest.mark.parametrize("code", ["JW102", "JW103", "JW104", "JW107", "JW108", "JW109", "JW110"])
def test_the_code_does_not_depend_on_the_disk_cache(code):
    warm, late = REACHED[code]
    built = replace(late, seq=9, start_ns=late.start_ns - 1, kind="disk_hit")
    assert of_last(warm, built, late) == of_last(warm, replace(built, kind="compile"), late)
    assert of_last(warm, built, late).cause.code == code


def test_the_rows_name_now_and_before():
    assert of_last(*REACHED["JW102"]).diff == (DiffRow("n", "any other n", "n % 16 == 0"),)
    assert of_last(*REACHED["JW106"]).diff == (DiffRow("NB", "2", "1"),)
    assert of_last(*REACHED["JW105"]).diff == (
        DiffRow("definition", "a new @triton.jit object", "the one loaded before"),
    )
    assert of_last(*REACHED["JW101"]).diff == ()


def test_the_text_speaks_of_the_leading_row_alone():
    late = event(2, "load", 1, variant=variant("i32", x="*fp32"))
    diagnosis = of_last(WARM, late)
    assert [row.argument for row in diagnosis.diff] == ["n", "x"]
    assert diagnosis.cause.help == '@triton.jit(do_not_specialize=["n"]), or warm each class'


def test_a_kernel_of_the_same_name_in_another_file_is_another_kernel():
    elsewhere = replace(WARM, file="/repo/other.py")
    assert of_last(elsewhere, event(2, "load", 1)).cause.code == "JW101"


def test_what_another_process_loaded_is_not_warm_here():
    assert of_last(replace(WARM, pid=8), event(2, "load", 1)).cause.code == "JW101"


def test_an_earlier_request_makes_it_warm_for_the_later_one():
    first = event(2, "load", 1, variant=variant("i32"))
    second = event(3, "load", 2, variant=variant("i32 == 1"))
    diagnosis = of_last(event(1, "load", -1, variant=variant(x="*bf16")), first, second)
    assert diagnosis.diff == (DiffRow("n", "n == 1", "any other n"),)


def test_a_variant_compiled_and_loaded_in_warmup_is_redefined_not_unlaunched():
    warm = [event(1, "compile", -10), event(2, "load", -9)]
    assert of_last(*warm, event(3, "load", 1)).cause.code == "JW105"


def test_a_driver_load_has_the_cause_of_the_hook_load_around_it():
    hook = event(2, "load", 1, variant=variant("i32"))
    inside = driver_load(3, 1.5, 0.1, parent=2, variant=hook.variant, file=hook.file)
    assert of_last(WARM, hook, inside) == of_last(WARM, hook)


def test_candidates_of_a_tuned_kernel_share_its_cause():
    before = [event(1, "autotune", -10, variant=tuning("1")), event(2, "load", -9, parent=1)]
    late = event(3, "autotune", 1, 9, variant=tuning("2"))
    candidate = event(4, "load", 2, parent=3, variant=variant(constants={"BLOCK": "512"}))
    diagnosis = of_last(*before, late, candidate)
    assert (diagnosis.cause.code, diagnosis.diff) == ("JW106", (DiffRow("NB", "2", "1"),))


def test_candidates_of_a_cold_tuned_kernel_are_cold_each_by_its_own_disk_cache():
    late = event(1, "autotune", 1, 9, variant=tuning())
    hit = event(2, "disk_hit", 2, parent=1)
    load = event(3, "load", 3, parent=1)
    assert of_last(late, hit, load).cause.code == "JW201"
    assert of_last(late, replace(hit, kind="compile"), load).cause.code == "JW101"


def test_a_launcher_built_while_tuning_is_a_launcher_build():
    late = event(1, "autotune", 1, 9, variant=tuning())
    assert of_last(late, event(2, "launcher_build", 2, parent=1)).cause.code == "JW206"


def test_the_same_key_tuned_again_is_a_new_tuner():
    again = event(2, "autotune", 1, variant=tuning())
    diagnosis = of_last(event(1, "autotune", -1, variant=tuning()), again)
    assert (diagnosis.cause.code, diagnosis.diff[0].argument) == ("JW106", "definition")


def test_another_winner_is_told_by_its_values():
    masked = {"BLOCK": TUNED}
    warm = event(1, "load", -1, variant=variant(constants=masked, tuned={"BLOCK": "128"}))
    late = event(2, "load", 1, variant=variant(constants=masked, tuned={"BLOCK": "256"}))
    diagnosis = of_last(warm, late)
    assert diagnosis.cause.code == "JW106"
    assert diagnosis.diff == (DiffRow("BLOCK", "256", "128"),)


def test_variants_that_differ_in_nothing_we_compare_are_unexplained():
    late = event(2, "load", 1, variant=replace(variant(), arch="sm_80"))
    assert of_last(WARM, late).cause.code == "JW901"


def test_a_library_that_chooses_by_shape_is_told_from_one_that_does_not():
    assert of_last(driver_load(1, 1, origin="cudnn")).cause.code == "JW205"
    assert of_last(driver_load(1, 1, origin="torch")).cause.code == "JW203"
    assert of_last(driver_load(1, 1, origin="in-repo")).cause.code == "JW901"
