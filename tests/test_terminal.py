"""The whole text of two small reports, and its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jitwatch.events import Coverage, SourceState
from jitwatch.render.terminal import diagnostic_lines, diagnostics, launch_site, render_text
from tests.samples import (
    ARMED,
    DRIVER,
    TRITON,
    driver_load,
    event,
    report,
    request,
    step,
    tuning,
    variant,
)

SIMULATED = Coverage(
    (DRIVER, TRITON),
    "driver",
    "skipped",
    blind_spots=("simulated: third-party libraries' loads are unseen",),
)
STACK = ("triton/runtime/jit.py:9 <lambda>", "/repo/target.py:31 forward")
LATE = variant("i32", x="*fp32", constants={"BLOCK": "512"})

FAIL = """\
FAIL: 3 requests on cuda, 2 waited for late in-repo work
- 2 late in-repo loads
- 1 late in-repo compile
- 1 record lost: a late load may be among them

JW103 new constexpr value: scale_kernel, BLOCK: now 512, before 256
  n: now any other n, before n % 16 == 0
  x: now x not 16-byte aligned, before x 16-byte aligned
  prompt_tokens 65: 1 compile, 1 load; 4.0 ms
  at   kernels.py:3, launched from target.py:31 forward
  why  BLOCK is a tl.constexpr: each value is a binary of its own
  fix  if no shape in the kernel needs it (tl.arange does), make it a runtime
       int with do_not_specialize; else bucket its values and warm each

JW105 kernel redefined: scale_kernel, definition: now a new @triton.jit object,
    before the one loaded before
  prompt_tokens 66: 1 load; 1.0 ms, step inferred
  at   kernels.py:3
  why  @triton.jit made another scale_kernel: its caches start empty
  fix  define the kernel at module level, or cache the function that defines it

A late load is also a barrier: it waits until all GPU work in flight is done,
and other threads that submit meanwhile wait with it. Its stall includes both.

Third-party, listed and not judged (--package NAME judges a package's kernels,
    --fail-on any all loads):
  cublas: prompt_tokens 64..65: 2 loads; 1.5 ms; JW205 library loaded per shape:
    nvjet_a, nvjet_b
  unknown: no request: 1 load; 1.0 ms; JW901 unexplained: who_knows

Coverage
  driver   armed, CUPTI 13; loads are counted here
  triton   armed, 3.6.0
  self-test passed; 1 record lost
  10 probes after the sweep: 12 launches
  2 stacks missing: signal blocked on the thread
"""

INCONCLUSIVE = """\
INCONCLUSIVE: 1 request on sim:h200, 1 variant warm at ready
- the target's process was killed by signal 9
- 2 of 3 lengths not served: 65, 1

Coverage
  driver   armed, simulated h200; loads are counted here
  triton   not armed: triton can't be imported: No module named 'triton'. It is
           an extra: pip install 'jitwatch[torch]'
  self-test skipped; 0 records lost
  blind: simulated: third-party libraries' loads are unseen
  assumed: target.py:9 int(x)
"""


def failing():
    events = [
        event(1, "load", -10, 2),
        driver_load(2, -9, 1),
        driver_load(3, 11, 1, kernel="nvjet_a", step=64),
        event(4, "compile", 21, 3, variant=LATE, step=65, stack=STACK),
        event(5, "load", 24, 2, variant=LATE, step=65, stack=STACK),
        driver_load(6, 24.5, 1, step=65),
        driver_load(7, 26.5, 0.5, kernel="nvjet_b", step=65),
        event(8, "load", 31, 2),
        driver_load(9, 31.5, 1),
        driver_load(10, 50, 1, kernel="who_knows"),
    ]
    coverage = replace(
        ARMED,
        sources=(SourceState("driver", True, "CUPTI 13"), TRITON),
        dropped=1,
        missing_stacks={"signal blocked on the thread": 2},
    )
    return report(
        events,
        steps=[step(64, 10), step(65, 20), step(66, 30)],
        requests=[request(64, 10), request(65, 20), request(66, 30)],
        coverage=coverage,
    )


def inconclusive():
    missing = "triton can't be imported: No module named 'triton'. "
    missing += "It is an extra: pip install 'jitwatch[torch]'"
    sources = (DRIVER, SourceState("triton", False, reason=missing))
    return report(
        [driver_load(2, -9, 1, file="/repo/kernels.py", variant=variant())],
        device="sim:h200",
        requests=[request(64, 10)],
        lengths=[64, 65, 1],
        doubts=["the target's process was killed by signal 9"],
        coverage=replace(SIMULATED, sources=sources, assumed=("/repo/target.py:9 int(x)",)),
    )


def test_a_failing_report():
    assert render_text(failing()) == FAIL


def test_an_inconclusive_report():
    assert render_text(inconclusive()) == INCONCLUSIVE


def test_a_passing_report_is_two_parts():
    warm = event(1, "load", -1, source="driver")
    text = render_text(report([warm], coverage=SIMULATED, device="sim:h200"))
    assert text.startswith("PASS: 2 requests on sim:h200, 1 variant warm at ready\n\nCoverage\n")


@pytest.mark.parametrize("made", [failing, inconclusive])
def test_no_line_is_longer_than_80_columns(made):
    assert max(map(len, render_text(made()).splitlines())) <= 80


def test_a_long_value_is_wrapped_in_the_report_and_whole_in_the_diagnostic():
    late = event(2, "load", 11, variant=variant(options={"names": "long " * 30}), step=64)
    coverage = replace(SIMULATED, load_source="triton")
    made = report([event(1, "load", -1), late], coverage=coverage, device="sim:h200")
    (item,) = diagnostics(made)
    assert diagnostic_lines(item)[0].endswith(", before not passed")
    assert max(map(len, render_text(made).splitlines())) <= 80


def test_every_value_of_a_constexpr_is_told_once():
    late = [
        event(n, "load", n, variant=variant(constants={"T": str(n)}), step=n) for n in (11, 12, 14)
    ]
    made = report(
        [event(1, "load", -1), *late],
        steps=[step(n, n, 1) for n in (11, 12, 14)],
        requests=[request(n, n, 1) for n in (11, 12, 14)],
        coverage=replace(SIMULATED, load_source="triton"),
        device="sim:h200",
    )
    (item,) = diagnostics(made)
    assert diagnostic_lines(item)[:2] == [
        "JW103 new constexpr value: scale_kernel, T: now 11, before not passed "
        "(and 2 other values)",
        "  prompt_tokens 11..12, 14: 3 loads",
    ]


def test_what_is_inside_an_autotune_is_not_added_to_it():
    late = [
        event(2, "autotune", 11, 5, variant=tuning(), step=64),
        event(3, "load", 12, 1, parent=2, step=64),
        event(4, "load", 14, 1, parent=2, variant=variant("i32"), step=64),
    ]
    made = report(late, coverage=replace(SIMULATED, load_source="triton"))
    (item,) = diagnostics(made)
    paid = "  prompt_tokens 64: 1 autotune, 2 loads; 5.0 ms"
    assert diagnostic_lines(item)[:2] == ["JW101 cold kernel: scale_kernel", paid]


def test_one_requests_diagnostics_are_its_own_and_in_the_repository():
    made = failing()
    assert [item.first.event.kernel for item in diagnostics(made, only="len65")] == ["scale_kernel"]
    assert diagnostics(made, only="len64") == []


def test_a_packages_kernels_are_listed_on_a_simulated_device_too():
    late = event(2, "load", 11, file="/opt/site-packages/fla/x.py", step=64)
    coverage = replace(SIMULATED, load_source="triton")
    text = render_text(report([late], coverage=coverage, device="sim:h200"))
    assert text.split("\n\n")[1] == (
        "Third-party, listed and not judged (--package NAME judges a package's kernels):\n"
        "  fla: prompt_tokens 64: 1 load; JW101 cold kernel: scale_kernel"
    )


@pytest.mark.parametrize(
    ("stack", "site"),
    [
        (STACK, "/repo/target.py:31 forward"),
        (("torch/nn.py:3 f", "triton/x.py:1 g", "mine.py:2 h"), "mine.py:2 h"),
        (("triton/runtime/jit.py:9 <lambda>", "torch/_ops.py:2 call"), "torch/_ops.py:2 call"),
        (("<string>:1 f",), ""),
        ((), ""),
    ],
)
def test_the_launch_site(stack, site):
    assert launch_site(stack) == site
