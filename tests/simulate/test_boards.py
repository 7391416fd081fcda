"""Boards are found by name and by architecture, and unknown ones are refused with help."""

from __future__ import annotations

import pytest

from jitwatch.errors import UsageError
from jitwatch.simulate.boards import BOARDS, get_board


@pytest.mark.parametrize("spec", ["sim:h200", "h200", "H200", "sim:sm_90", "sm_90", "sim:sm90"])
def test_h200_by_every_name(spec):
    assert get_board(spec) is BOARDS["h200"]


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("sim:sm_80", "a100"),
        ("sim:sm_89", "l4"),
        ("sim:sm_100", "b200"),
        ("sim:sm_120", "rtx5090"),
    ],
)
def test_an_architecture_is_its_documented_board(spec, name):
    assert get_board(spec).name == name


def test_an_h200_is_what_torch_says_of_a_real_one():
    board = get_board("h200")
    assert board.product == "NVIDIA H200"
    assert (board.capability, board.arch) == ((9, 0), 90)
    assert (board.multiprocessors, board.memory_bytes) == (132, 150_109_880_320)
    assert board.shared_memory_per_block_optin == 232448
    assert board.shared_memory_per_multiprocessor == 233472
    assert board.l2_cache_bytes == 60 * 1024 * 1024
    assert (board.warp_size, board.registers_per_multiprocessor) == (32, 65536)


def test_all_boards_are_there_and_named_by_their_key():
    assert list(BOARDS) == ["h200", "h100", "a100", "l4", "l40s", "rtx4090", "b200", "rtx5090"]
    assert all(board.name == name for name, board in BOARDS.items())
    assert {board.arch for board in BOARDS.values()} == {80, 89, 90, 100, 120}


def test_an_unknown_board_is_refused_with_the_closest_one():
    with pytest.raises(UsageError) as caught:
        get_board("sim:h2000")
    assert str(caught.value) == (
        "there is no simulated board 'sim:h2000'\n"
        "  why: known are sim:h200, sim:h100, sim:a100, sim:l4, sim:l40s, sim:rtx4090, sim:b200, "
        "sim:rtx5090, sim:sm_80, sim:sm_89, sim:sm_90, sim:sm_100, sim:sm_120\n"
        "  fix: use sim:h200"
    )
    # The hint, applied.
    assert get_board(caught.value.fix.removeprefix("use ")).name == "h200"


def test_an_unknown_architecture_is_refused():
    with pytest.raises(UsageError, match="no simulated board 'sim:sm_75'"):
        get_board("sim:sm_75")
