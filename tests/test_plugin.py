"""`pytest --jitwatch` as its user meets it, in processes of its own."""

from __future__ import annotations

import json
import shutil
from importlib import metadata
from pathlib import Path

import pytest

from tests.test_cli import TARGETS

ROOT = Path(__file__).parent.parent
SIM = ("--jitwatch-device=sim:h200", "--jitwatch-keys-only")
FAULTY = """
import threading

@triton.jit
def scale_kernel(y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, tl.load(y + o, mask=o < n) * 3, mask=o < n)

def scale(n):
    scale_kernel[(triton.cdiv(n, 256),)](y, n, BLOCK=256)

class Faulty:
    def warmup(self):
        scale(64)
    def serve(self, request):
        with open("served.txt", "a") as file:
            file.write(f"{request.prompt_tokens} ")
        scale(request.prompt_tokens)

class Behind(Faulty):
    "Loads on a thread of its own, behind the last request."
    def warmup(self):
        super().warmup()
        self.thread = None
    def serve(self, request):
        scale(64)
        if request.prompt_tokens == 1:
            self.thread = threading.Timer(0.3, scale, [65])
            self.thread.start()
    def close(self):
        self.thread.join()

class FailsInClose(Faulty):
    def serve(self, request):
        scale(64)
    def close(self):
        raise ValueError("not closed")
"""


@pytest.fixture
def project(pytester, monkeypatch):
    """A folder with targets; `project(...)` runs pytest there in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", "250")  # the summary cuts its lines at the terminal's width
    monkeypatch.setenv("TRITON_CACHE_DIR", str(pytester.path / "cache"))
    pytester.makepyfile(targets=TARGETS + FAULTY)
    installed = any(e.name == "jitwatch" for e in metadata.entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "jitwatch.plugin")

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_subprocess(*plugin, *arguments)

    return run


def swept(project, target, *arguments, lengths="64,65,1"):
    options = (f"--jitwatch-target=targets:{target}", f"--jitwatch-lengths={lengths}", *SIM)
    return project("--jitwatch", *options, *arguments)


def test_a_failing_item_shows_its_diagnostic_alone_and_its_first_line_in_the_summary(project):
    result = swept(project, "Faulty", "-v")
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(
        ["sweep[[]len64] PASSED*", "sweep[[]len65] FAILED*", "sweep[[]len1] FAILED*"]
    )
    line = "JW102 new integer class: scale_kernel, n: now any other n, before n % 16 == 0"
    text = result.stdout.str()
    report = text[text.index("sweep[len65] ___") :].split("\n", 1)[1].split("____")[0]
    assert report.split("\n")[0] == line
    assert "prompt_tokens 65: 1 compile, 1 load" in report
    assert '  fix  @triton.jit(do_not_specialize=["n"]), or warm each class' in report
    assert "Traceback" not in text
    assert "plugin.py" not in text
    assert f"FAILED sweep[len65] - {line}" in text
    assert "FAIL: 3 requests on sim:h200, 2 waited for late in-repo work" in text


def test_k_serves_only_what_is_selected(project, pytester):
    result = swept(project, "Faulty", "-k", "len1024", lengths="64,1024,65")
    assert result.ret == 0
    result.assert_outcomes(passed=1, deselected=2)
    assert (pytester.path / "served.txt").read_text() == "1024 "


def test_a_clean_target_passes_beside_other_tests_and_by_its_ini_setting(project, pytester):
    pytester.makeini("[pytest]\njitwatch_target = targets:Clean\n")
    pytester.makepyfile(test_other="def test_other():\n    pass\n")
    result = project("--jitwatch", "--jitwatch-lengths=64,65", *SIM)
    assert result.ret == 0
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(
        [
            "*= jitwatch =*",
            "PASS: 2 requests on sim:h200, 1 variant warm at ready",
            "  driver   armed, simulated h200; loads are counted here",
            "  triton   armed, *",
        ]
    )


def test_what_could_not_be_judged_is_an_error_of_the_item(project):
    result = swept(project, "OnTheCpu", lengths="64,65")
    assert result.ret == 1
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["ERROR sweep[[]len64] - no kernel launch was seen: *"])


def test_one_request_that_raises_is_an_error_of_its_item_alone(project):
    result = swept(project, "RaisesInOne")
    assert result.ret == 1
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(
        ["ERROR sweep[[]len65] - the target raised: ValueError: 65 is too much (*targets.py:*)"]
    )


def test_where_the_child_is_killed_no_item_passes(project):
    result = swept(project, "Killed")
    assert result.ret == 1
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["ERROR sweep[[]len1] - the target's process was killed by *"])


def test_what_loads_in_no_request_is_an_error_of_every_item(project):
    result = swept(project, "Behind")
    assert result.ret == 1
    result.assert_outcomes(errors=3)
    text = "late load of scale_kernel (targets.py:*), in no request: *"
    result.stdout.fnmatch_lines([f"*{text}", "FAIL: 3 requests on sim:h200*"])


def test_a_target_that_fails_in_its_close_passes_no_item(project):
    result = swept(project, "FailsInClose")
    result.assert_outcomes(errors=3)
    result.stdout.fnmatch_lines(["ERROR sweep[[]len64] - * ValueError: not closed *"])


def test_a_wrong_target_is_an_error_of_every_item_in_the_plugins_words(project):
    result = swept(project, "Hole", lengths="64")
    assert result.ret == 1
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["ERROR sweep[[]len64] - --jitwatch-target targets:Hole: targets has no 'Hole'"]
    )


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            [],
            [
                "ERROR: jitwatch: there is no target to sweep",
                "  why: neither --jitwatch-target nor the ini setting jitwatch_target is given, *",
                "  fix: add jitwatch_target = module:attr to the pytest configuration",
            ],
        ),
        (
            ["--jitwatch-target=targets:Clean", "--jitwatch-device=sim:h200,sim:l4"],
            [
                "ERROR: jitwatch: --jitwatch-device sim:h200,sim:l4: one device a session",
                "  why: an item is one length on one device",
                "  fix: run pytest once for each device",
            ],
        ),
        (
            ["--jitwatch-target=targets:Clean", "--jitwatch-min=20", "--jitwatch-max=10"],
            [
                "ERROR: jitwatch: --jitwatch-min 20 is above --jitwatch-max 10",
                "  why: no length lies between them",
                "  fix: swap them: --jitwatch-min 10 --jitwatch-max 20",
            ],
        ),
        (
            ["--jitwatch-target=targets:Clean", "--jitwatch-lengths=x"],
            ["ERROR: jitwatch: --jitwatch-lengths x: 'x' is no length"],
        ),
        (
            ["--jitwatch-target=targets:Clean", "--jitwatch-layers=2"],
            [
                "ERROR: jitwatch: --jitwatch-target targets:Clean: takes no option of the engine's "
                "(--jitwatch-layers)",
                "  why: --jitwatch-layers is for --jitwatch-target engine",
            ],
        ),
        (
            ["--jitwatch-target=targets:Clean", "--jitwatch-param=warm"],
            ["ERROR: jitwatch: --jitwatch-param warm: no name=value"],
        ),
    ],
)
def test_bad_usage_says_so_and_runs_nothing(project, arguments, lines):
    result = project("--jitwatch", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line.replace("[", "[[]") for line in lines])


def test_ids_are_lengths_and_nothing_is_swept_to_collect_them(project, pytester):
    result = project(
        *("--jitwatch", "--jitwatch-target=targets:Faulty", "--collect-only", "-q"),
        *("--jitwatch-min=11", "--jitwatch-max=20", "--jitwatch-step=4"),
    )
    assert [line for line in result.outlines if line.startswith("sweep")] == [
        "sweep[len11]",
        "sweep[len15]",
        "sweep[len19]",
    ]
    assert not (pytester.path / "served.txt").exists()


def test_without_jitwatch_nothing_happens_and_torch_stays_out(project, pytester):
    pytester.makeini("[pytest]\njitwatch_target = targets:Clean\n")
    pytester.makepyfile(
        test_other="""
        import json, sys

        def test_other():
            with open("modules.json", "w") as file:
                names = {"torch", "triton", "pandas", "jitwatch.plugin"}
                json.dump(sorted(names & {*sys.modules}), file)
        """
    )
    result = project()
    result.assert_outcomes(passed=1)
    assert "= jitwatch =" not in result.stdout.str()
    assert json.loads((pytester.path / "modules.json").read_text()) == ["jitwatch.plugin"]


def test_the_engine_is_swept_where_it_is_and_no_target_is_named(project, pytester):
    shutil.copytree(ROOT / "engine", pytester.path / "engine")
    options = ("--jitwatch-model=tiny", "--jitwatch-lengths=5,17", *SIM)
    result = project("--jitwatch", *options)
    assert result.ret == 0
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["PASS: 2 requests on sim:h200, * variants warm at ready"])
    cold = project("--jitwatch", *options, "--jitwatch-engine-arg=skip_prefill_warmup=true")
    cold.assert_outcomes(passed=1, failed=1)
