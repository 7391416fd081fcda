"""The skips by machine and the line that counts the tests not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import is_version, not_run_line

CONFTEST = Path(__file__).parent.parent / "conftest.py"

MARKERS = """
[pytest]
markers =
    gpu: needs a GPU
    triton(version): needs this Triton
"""

MIXED = """
import pytest

def test_anywhere():
    pass

@pytest.mark.gpu
def test_on_a_gpu():
    pass

@pytest.mark.gpu
@pytest.mark.parametrize("tokens", [1, 16])
def test_on_a_gpu_too(tokens):
    pass

@pytest.mark.triton("3.6")
def test_under_one_triton():
    pass

@pytest.mark.skip(reason="no ptrace")
def test_elsewhere():
    pass

@pytest.mark.xfail(reason="known")
def test_fails():
    assert False
"""


def machine(pytester: pytest.Pytester, *, gpu: bool, triton: str) -> None:
    """Put this project's conftest in front of a made-up machine."""
    pytester.makeini(MARKERS)
    pytester.makeconftest(
        f"{CONFTEST.read_text()}\n"
        f"def has_gpu() -> bool:\n    return {gpu}\n"
        f"def triton_version() -> str:\n    return {triton!r}\n"
    )


def test_without_a_gpu_its_tests_are_skipped_and_counted(pytester: pytest.Pytester) -> None:
    machine(pytester, gpu=False, triton="3.9.0")
    pytester.makepyfile(MIXED)
    result = pytester.runpytest()
    result.assert_outcomes(passed=1, skipped=5, xfailed=1)
    result.stdout.fnmatch_lines(
        ["5 tests not run here: 3 need a GPU, 1 needs triton 3.6, 1: no ptrace"]
    )


def test_with_a_gpu_and_that_triton_they_run(pytester: pytest.Pytester) -> None:
    machine(pytester, gpu=True, triton="3.6.0")
    pytester.makepyfile(MIXED)
    result = pytester.runpytest()
    result.assert_outcomes(passed=5, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["1 test not run here: 1: no ptrace"])


def test_nothing_skipped_prints_no_line(pytester: pytest.Pytester) -> None:
    machine(pytester, gpu=False, triton="3.6.0")
    pytester.makepyfile("def test_anywhere(): pass")
    result = pytester.runpytest()
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*not run here*")


def test_the_machine_is_not_asked_when_no_test_needs_a_gpu(pytester: pytest.Pytester) -> None:
    machine(pytester, gpu=False, triton="none")
    conftest = pytester.path / "conftest.py"
    conftest.write_text(
        f"{conftest.read_text()}\ndef has_gpu() -> bool:\n    raise AssertionError('asked')\n"
    )
    pytester.makepyfile("def test_anywhere(): pass")
    pytester.runpytest().assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("installed", "wanted", "expected"),
    [
        ("3.6.0", "3.6", True),
        ("3.6.0", "3.6.0", True),
        ("3.60.0", "3.6", False),
        ("3.9.0", "3.6", False),
        ("none", "3.6", False),
    ],
)
def test_a_version_is_compared_by_its_parts(installed: str, wanted: str, expected: bool) -> None:
    assert is_version(installed, wanted) is expected


def test_the_line_counts_by_reason() -> None:
    assert not_run_line([]) is None
    assert not_run_line(["needs a GPU"]) == "1 test not run here: 1 needs a GPU"
    assert (
        not_run_line(["needs triton 3.6", "needs a GPU", "needs triton 3.6"])
        == "3 tests not run here: 2 need triton 3.6, 1 needs a GPU"
    )
