"""The Triton source, armed in this process on a simulated board."""

from __future__ import annotations

import contextlib
import inspect
import sys

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton import knobs  # noqa: E402
from triton.runtime import autotuner, build, jit  # noqa: E402

from jitwatch.events import TUNED  # noqa: E402
from jitwatch.log import read_run  # noqa: E402
from jitwatch.recorder import Recorder  # noqa: E402
from jitwatch.records import write_meta  # noqa: E402
from jitwatch.simulate import cuda  # noqa: E402
from jitwatch.simulate.boards import get_board  # noqa: E402
from jitwatch.simulate.driver import SimulatedDriver, activate  # noqa: E402
from jitwatch.simulate.values import kernel_wrote  # noqa: E402
from jitwatch.sources.triton import TritonSource  # noqa: E402


@triton.jit
def double(x):
    return x * 2


@triton.jit
def treble(x):
    return x * 3


def scale_kernel(x, n, factor, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + o, tl.load(x + o, mask=o < n) * 3, mask=o < n)


def apply_kernel(x, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(x + o, FUNCTION(tl.load(x + o)))


def bias_kernel(x, bias, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    b_x = tl.load(x + o)
    if bias is not None:
        b_x += tl.load(bias + o)
    tl.store(x + o, b_x)


class Armed:
    """An armed source, its driver, and what was recorded so far."""

    def __init__(self, run_dir):
        self.recorder = Recorder(run_dir)
        write_meta(run_dir, {"device": "sim:h200"})
        self.driver = SimulatedDriver(get_board("h200"), self.recorder, kernel_wrote)
        self.source = TritonSource(self.recorder)

    @property
    def run(self):
        return read_run(self.recorder.run_dir)

    def events(self, *kinds):
        return [event for event in self.run.events if not kinds or event.kind in kinds]

    def loads(self):
        """The loads as Triton's hooks saw them."""
        return [event for event in self.events("load") if event.source == "triton"]


@pytest.fixture
def board(tmp_path, monkeypatch):
    """A simulated board with a source that is not armed yet."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    made = Armed(tmp_path / "run")
    with contextlib.ExitStack() as undo:
        undo.callback(cuda.install(get_board("h200")).uninstall)
        undo.callback(activate(made.driver))
        undo.callback(made.source.disarm)
        yield made


@pytest.fixture
def armed(board):
    assert board.source.arm().armed
    return board


@pytest.fixture
def x(board):
    return torch.empty(4096, device="cuda")


@pytest.fixture
def kernel():
    """A kernel with empty caches."""
    return triton.jit(scale_kernel)


def launch(kernel, x, n=64, factor=2.0, **options):
    kernel[(1,)](x, n, factor, BLOCK=64, **options)


def arguments(event):
    return dict(event.variant.arguments)


# -- what an event says ------------------------------------------------------------


def test_a_first_launch_compiles_and_loads_and_a_second_does_neither(armed, x, kernel):
    launch(kernel, x)
    first = armed.events("compile", "disk_hit", "load")
    assert [(event.kind, event.source) for event in first] == [
        ("compile", "triton"),
        ("load", "triton"),
        ("load", "driver"),
    ]
    launch(kernel, x)
    assert armed.events("compile", "disk_hit", "load") == first
    assert armed.driver.launches == 2


def test_the_variant_the_place_and_the_driver_load_inside(armed, x, kernel):
    launch(kernel, x)
    compiled, hook, module = armed.events("compile", "load")
    assert compiled.variant == hook.variant
    assert hook.variant.arguments == (
        ("x", "*fp32 % 16 == 0"),
        ("n", "i32 % 16 == 0"),
        ("factor", "fp32"),
    )
    assert (hook.variant.constants, hook.variant.options) == ((("BLOCK", "64"),), ())
    assert (hook.variant.arch, hook.kernel) == ("sm_90", "scale_kernel")
    assert hook.file == __file__
    assert hook.line == inspect.getsourcelines(scale_kernel)[1]
    assert hook.nbytes > 0
    assert module.parent == hook.seq
    assert (module.kernel, module.variant) == ("scale_kernel", None)


def test_the_stack_names_the_line_that_launched(armed, x, kernel):
    line = inspect.currentframe().f_lineno + 1
    kernel[(1,)](x, 64, 2.0, BLOCK=64)
    here = f"{__file__}:{line} test_the_stack_names_the_line_that_launched"
    for event in armed.events("compile") + armed.loads():
        assert here in event.stack, event.kind


@pytest.mark.parametrize(
    ("n", "said"),
    [
        (1, "i32 == 1"),
        (16, "i32 % 16 == 0"),
        (17, "i32"),
        (2**31, "i64 % 16 == 0"),
        (2**31 + 1, "i64"),
        (2**63, "u64 % 16 == 0"),
        (0, "i32 % 16 == 0"),
        (True, "u1"),
    ],
)
def test_the_class_of_a_number(armed, x, kernel, n, said):
    launch(kernel, x, n)
    (load,) = armed.loads()
    assert arguments(load)["n"] == said


def test_none_is_a_class_and_a_tensor_another(armed, x):
    kernel = triton.jit(bias_kernel)
    for bias in (None, x, x[1:]):
        kernel[(1,)](x, bias, BLOCK=64)
    found = [arguments(load)["bias"] for load in armed.loads()]
    assert found == ["None", "*fp32 % 16 == 0", "*fp32"]


def test_an_option_left_out_and_its_default_passed_are_two_variants(armed, x, kernel):
    launch(kernel, x)
    launch(kernel, x, num_warps=4)
    launch(kernel, x, num_warps=4)
    assert [load.variant.options for load in armed.loads()] == [(), (("num_warps", "4"),)]
    # The binary is one, so the second is found on disk.
    assert [event.kind for event in armed.events("compile", "disk_hit")] == ["compile", "disk_hit"]


def test_a_function_as_constexpr_works_while_armed(armed, x):
    kernel = triton.jit(apply_kernel)
    for function in (double, treble, double):
        kernel[(1,)](x, FUNCTION=function, BLOCK=64)
    found = [dict(load.variant.constants)["FUNCTION"] for load in armed.loads()]
    assert [name.rsplit(".", 1)[1] for name in found] == ["double", "treble"]
    assert armed.driver.launches == 3
    assert armed.run.coverage.blind_spots == ()


def test_a_disk_hit_is_told_from_a_compile_and_loads_all_the_same(armed, x):
    for _ in range(2):
        launch(triton.jit(scale_kernel), x)
    assert [event.kind for event in armed.events("compile", "disk_hit")] == ["compile", "disk_hit"]
    assert len(armed.loads()) == 2


def test_warmup_compiles_and_loads_nothing(armed, x, kernel):
    kernel.warmup(x, 64, 2.0, BLOCK=64, grid=(1,))
    assert [event.kind for event in armed.events()] == ["compile"]


def test_a_compile_that_raises_is_closed_and_raised(armed, x):
    kernel = triton.jit(apply_kernel)
    with pytest.raises(triton.CompilationError):
        kernel[(1,)](x, FUNCTION=5, BLOCK=64)
    (event,) = armed.events()
    assert (event.kind, event.detail) == ("compile", "raised CompilationError")
    assert event.end_ns is not None


# -- loads that raise ----------------------------------------------------------------


def refuse(*_):
    raise RuntimeError("out of resources")


def test_a_load_that_raises_is_closed_with_its_step(armed, x, kernel, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(armed.driver.utils, "load_binary", refuse)
        step = armed.recorder.step("mixed", ("len64",), 64)
        with pytest.raises(RuntimeError, match="out of resources"), step:
            launch(kernel, x)
    (load,) = armed.loads()
    assert (load.detail, load.end_ns is not None) == ("raised", True)


def test_a_load_that_raises_outside_a_step_holds_nothing_that_follows(
    armed, x, kernel, monkeypatch
):
    told = []
    armed.source.explain = told.append
    with monkeypatch.context() as patch:
        patch.setattr(armed.driver.utils, "load_binary", refuse)
        with pytest.raises(RuntimeError, match="out of resources"):
            launch(kernel, x)
    assert told == [True, False]
    launch(triton.jit(scale_kernel), x, 17)
    first, second = armed.loads()
    assert first.detail == "raised"
    assert first.end_ns is not None
    assert second.parent is None


# -- autotuning and launchers -----------------------------------------------------------


CONFIGS = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)]


@pytest.fixture
def tuned():
    return triton.autotune(configs=CONFIGS, key=["n"])(triton.jit(scale_kernel))


def test_autotuning_is_one_event_and_its_candidates_are_inside(armed, x, tuned):
    tuned[(1,)](x, 64, 2.0)
    (event,) = armed.events("autotune")
    assert (event.kernel, event.variant.constants) == ("scale_kernel", (("n", "64"),))
    assert event.file == __file__
    inside = armed.events("compile") + armed.loads()
    assert [item.parent for item in inside] == [event.seq] * 4
    assert all(event.start_ns < item.start_ns < item.end_ns < event.end_ns for item in inside)


def test_a_tuned_field_is_masked_and_told_apart(armed, x, tuned):
    tuned[(1,)](x, 64, 2.0)
    first, second = (load.variant for load in armed.loads())
    assert dict(first.constants)["BLOCK"] == TUNED
    assert [dict(one.tuned)["BLOCK"] for one in (first, second)] == ["64", "128"]
    assert dict(second.options)["num_warps"] == TUNED


def test_each_tuning_key_is_one_event_and_a_known_one_is_none(armed, x, tuned):
    for n in (64, 128, 64):
        tuned[(1,)](x, n, 2.0)
    keys = [dict(event.variant.constants) for event in armed.events("autotune")]
    assert keys == [{"n": "64"}, {"n": "128"}]
    chosen = [dict(item["choice"])["BLOCK"] for item in armed.source.winners()]
    assert chosen == ["64", "64"]


def test_one_config_is_no_autotuning(armed, x):
    kernel = triton.autotune(configs=CONFIGS[:1], key=["n"])(triton.jit(scale_kernel))
    kernel[(1,)](x, 64, 2.0)
    assert armed.events("autotune") == []
    (load,) = armed.loads()
    assert dict(load.variant.constants)["BLOCK"] == "64"


def has_launchers():
    from triton.backends.nvidia import driver

    return hasattr(driver, "make_launcher")


def test_a_launcher_is_built_once_for_each_signature_where_there_are_launchers(armed, x, kernel):
    launch(kernel, x, 64)
    launch(kernel, x, 17)  # another variant, the same signature
    assert len(armed.events("launcher_build")) == has_launchers()
    launch(kernel, x, 2**31)
    built = armed.events("launcher_build")
    assert len(built) == 2 * has_launchers()
    assert all(event.kernel == "scale_kernel" for event in built)


# -- a guest in its host -------------------------------------------------------------------


def state():
    """All of Triton that arming touches."""
    runtime = knobs.runtime
    return (
        knobs.compilation.listener,
        list(runtime.kernel_load_start_hook.calls),
        list(runtime.kernel_load_end_hook.calls),
        jit.JITFunction._do_compile,
        build._build,
        autotuner.Autotuner._bench,
    )


@pytest.fixture
def hosts():
    """A listener and load hooks that the host had before, and what they were told."""
    told = []
    runtime = knobs.runtime

    def listener(**kwargs):
        told.append(f"compiled, hit {kwargs['cache_hit']}")

    def start(*args, **kwargs):
        told.append("load start")

    def end(*args, **kwargs):
        told.append("load end")

    before, knobs.compilation.listener = knobs.compilation.listener, listener
    runtime.kernel_load_start_hook.add(start)
    runtime.kernel_load_end_hook.add(end)
    yield told
    knobs.compilation.listener = before
    runtime.kernel_load_start_hook.remove(start)
    runtime.kernel_load_end_hook.remove(end)


def test_the_hosts_hooks_are_called_and_put_back(hosts, board, x, kernel):
    before = state()
    board.source.arm()
    assert state() != before
    launch(kernel, x)
    assert hosts == ["compiled, hit False", "load start", "load end"]
    assert [event.kind for event in board.events("compile", "load")] == ["compile", "load", "load"]
    board.source.disarm()
    assert state() == before
    launch(kernel, x, 17)
    assert len(hosts) == 6
    assert len(board.loads()) == 1


def test_arming_twice_changes_nothing(board, x, kernel):
    before = state()
    first = board.source.arm()
    once = state()
    assert board.source.arm() == first
    assert state() == once
    launch(kernel, x)
    assert len(board.events("compile")) == len(board.loads()) == 1
    board.source.disarm()
    board.source.disarm()
    assert state() == before


def test_a_listener_set_later_stays_and_its_displacement_is_noticed(armed, x, kernel):
    seen = []
    ours = knobs.compilation.listener
    knobs.compilation.listener = later = lambda **kwargs: seen.append(1)
    try:
        launch(kernel, x)
        assert seen
        assert armed.source.listener_displaced
        armed.source.disarm()
        assert knobs.compilation.listener is later
    finally:
        knobs.compilation.listener = None
    assert ours is not later


@pytest.mark.parametrize("name", ["compile_info", "source_info", "stack_of", "autotune_info"])
def test_a_failing_hook_of_ours_is_recorded_and_never_raised(armed, x, tuned, monkeypatch, name):
    def fail(*args, **kwargs):
        raise ValueError("our own bug")

    monkeypatch.setattr(f"jitwatch.sources.triton.{name}", fail)
    tuned[(1,)](x, 64, 2.0)
    assert armed.driver.launches
    assert any("ValueError: our own bug" in text for text in armed.run.coverage.blind_spots)


def test_a_full_disk_raises_nothing_into_the_host(armed, x, kernel, monkeypatch):
    def full(fd, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("jitwatch.recorder.os.write", full)
        launch(kernel, x)
    armed.recorder.ready()
    assert armed.driver.launches == 1
    assert armed.run.coverage.dropped == armed.recorder.dropped > 0


def test_the_interpreter_is_not_armed(board, monkeypatch):
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    before = state()
    armed = board.source.arm()
    assert (armed.armed, armed.reason) == (
        False,
        "TRITON_INTERPRET=1: the interpreter compiles and loads nothing",
    )
    assert state() == before


def test_nothing_of_ours_runs_in_a_second_launch(armed, x, kernel):
    kernel[(4,)](x, 64, 2.0, BLOCK=64)
    ours = []

    def profile(frame, what, _):
        if what == "call" and frame.f_code.co_filename.endswith(
            ("sources/triton.py", "sources/triton_variant.py", "jitwatch/recorder.py")
        ):
            ours.append(frame.f_code.co_name)

    sys.setprofile(profile)
    try:
        kernel[(4,)](x, 64, 2.0, BLOCK=64)
    finally:
        sys.setprofile(None)
    assert ours == []
