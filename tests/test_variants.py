"""Which variants differ in what, in whose words, and which one is the closest."""

from __future__ import annotations

import pytest

from jitwatch.events import TUNED, DiffRow
from jitwatch.variants import KINDS, closest, describe, differences, tuned_differences
from tests.samples import variant


def rows(now, before):
    return [
        (item.kind, item.row.argument, item.row.now, item.row.before)
        for item in differences(now, before)
    ]


@pytest.mark.parametrize(
    ("now", "before", "kind", "said_now", "said_before"),
    [
        ("i32", "i32 % 16 == 0", "integer", "any other n", "n % 16 == 0"),
        ("i32 == 1", "i32", "integer", "n == 1", "any other n"),
        ("i64", "i32", "integer", "any other n, 2**31 or more", "any other n"),
        (
            "i64 % 16 == 0",
            "i32 % 16 == 0",
            "integer",
            "n % 16 == 0, 2**31 or more",
            "n % 16 == 0",
        ),
        ("u64", "i32", "integer", "any other n, 2**31 or more", "any other n"),
        ("fp32", "i32", "number", "fp32", "i32"),
        ("u1", "i32 % 16 == 0", "number", "u1", "i32"),
        ("*fp32", "None", "optional", "n given (*fp32)", "n is None"),
        ("None", "i32 % 16 == 0", "optional", "n is None", "n given (i32)"),
        ("*i64 % 16 == 0", "*i32", "dtype", "*i64", "*i32"),
        ("*i32", "*i32 % 16 == 0", "alignment", "n not 16-byte aligned", "n 16-byte aligned"),
        ("*i32 % 16 == 0", "*i32", "alignment", "n 16-byte aligned", "n not 16-byte aligned"),
        ("*i32", "i32", "dtype", "*i32", "i32"),
    ],
)
def test_an_argument_differs_in_a_person_s_words(now, before, kind, said_now, said_before):
    assert rows(variant(now), variant(before)) == [(kind, "n", said_now, said_before)]


def test_equal_variants_do_not_differ():
    assert rows(variant(), variant()) == []


def test_constants_and_options_differ_by_value_and_by_absence():
    now = variant(constants={"T": "65"}, options={"num_warps": "8"})
    before = variant(constants={"T": "64"}, options={"num_stages": "3"})
    assert rows(now, before) == [
        ("constexpr", "T", "65", "64"),
        ("option", "num_warps", "8", "not passed"),
        ("option", "num_stages", "not passed", "3"),
    ]


def test_what_a_tuner_chose_is_not_compared_but_can_be_told():
    now = variant(constants={"BLOCK": TUNED}, tuned={"BLOCK": "128"})
    before = variant(constants={"BLOCK": TUNED}, tuned={"BLOCK": "256"})
    assert now == before
    assert rows(now, before) == []
    assert rows(now, variant(constants={"BLOCK": "256"})) == []
    assert [item.row for item in tuned_differences(now, before)] == [DiffRow("BLOCK", "128", "256")]
    assert tuned_differences(now, now) == []


def test_the_gravest_difference_comes_first():
    grave_to_mild = variant(
        "i32", x="*bf16 % 16 == 0", constants={"T": "1"}, options={"num_warps": "8"}
    )
    kinds = [item.kind for item in differences(grave_to_mild, variant())]
    assert kinds == ["dtype", "constexpr", "option", "integer"]
    assert kinds == sorted(kinds, key=list(KINDS).index)


def test_the_closest_has_the_fewest_differences():
    far = variant("i32", x="*fp32", constants={"T": "1"})
    near = variant("i32", x="*fp32")
    assert closest(variant(), [far, near]) == near


def test_of_as_many_differences_the_mildest_is_closest():
    other_dtype, other_alignment = variant(x="*bf16 % 16 == 0"), variant(x="*fp32")
    assert closest(variant(), [other_dtype, other_alignment]) == other_alignment


def test_of_equals_the_earliest_is_closest_and_of_none_none():
    first, second = variant("i32 == 1"), variant("i32")
    assert closest(variant(), [first, second]) is first
    assert closest(variant(), [second, first]) is second
    assert closest(variant(), []) is None


def test_a_variant_is_described_on_one_line():
    assert describe(variant("i32", options={"num_warps": "4"})) == (
        "scale_kernel(x: *fp32 % 16 == 0, n: i32, BLOCK=256, num_warps=4)"
    )
