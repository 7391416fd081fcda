"""The command line as a user meets it: text, streams and exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from jitwatch import cli, sweep

ROOT = Path(__file__).parent.parent
FAULTY = "tests.controls.integer_class:Faulty"
SIM = ["--device", "sim:h200", "--keys-only"]

TARGETS = '''
import os

import torch
import triton
import triton.language as tl

@triton.jit(do_not_specialize=["n"])
def fill_kernel(y, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + o, 7.0, mask=o < n)

y = torch.empty(4096, device="cuda")

def fill(prompt_tokens):
    """A bare function: ready at once, so that its first request pays."""
    fill_kernel[(triton.cdiv(prompt_tokens, 256),)](y, prompt_tokens, BLOCK=256)

class Clean:
    def warmup(self):
        fill(64)
    def serve(self, request):
        print("noise from the target")
        fill(request.prompt_tokens)

class RaisesInWarmup(Clean):
    def warmup(self):
        raise RuntimeError("no weights")

class RaisesInOne(Clean):
    def serve(self, request):
        if request.prompt_tokens == 65:
            raise ValueError("65 is too much")
        super().serve(request)

class Killed(Clean):
    def serve(self, request):
        if request.prompt_tokens == 65:
            os.kill(os.getpid(), 9)
        super().serve(request)

class Leaves(Clean):
    def serve(self, request):
        if request.prompt_tokens == 65:
            raise SystemExit(3)
        super().serve(request)

class RaisesInClose(Clean):
    def close(self):
        raise OSError("port still open")

class OnTheCpu:
    def serve(self, request):
        torch.ones(request.prompt_tokens, device="cpu").sum()
'''


@dataclass(frozen=True)
class Ran:
    """What a command gave; `folder` stands for its own in the text."""

    status: int
    out: str
    err: str
    folder: Path

    @property
    def reasons(self) -> list[str]:
        """The verdict's reasons, each on one line again."""
        head = self.out.split("\n\n")[0].replace("\n  ", " ").replace(str(self.folder), "HERE")
        return [line.removeprefix("- ") for line in head.split("\n")[1:]]

    @property
    def error(self) -> str:
        return self.err.replace(str(self.folder), "HERE").removesuffix("\n")


@pytest.fixture
def jitwatch(tmp_path, monkeypatch, capfd):
    """Runs a command in a folder with targets that is no git repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "targets.py").write_text(TARGETS)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["jitwatch", *arguments])
        capfd.readouterr()
        status = cli.main(arguments)
        out, err = capfd.readouterr()
        return Ran(status, out, err, tmp_path)

    return run


@pytest.fixture
def served(jitwatch, tmp_path):
    """Sweeps a target of `TARGETS` at 64, 65 and 1 tokens into the folder `run`."""

    def run(name: str, *more: str) -> Ran:
        lengths = () if "--lengths" in more else ("--lengths", "64,65,1")
        return jitwatch(
            *("sweep", "--target", f"targets:{name}", *SIM, *lengths),
            *("--run-dir", str(tmp_path / "run"), *more),
        )

    return run


def line_of(text: str) -> int:
    return TARGETS.split("\n").index(text) + 1


# -- verdicts --------------------------------------------------------------------------


@pytest.fixture(scope="session")
def faulty(tmp_path_factory):
    """A failing sweep of this repository, as a process: its streams and its run directory."""
    folder = tmp_path_factory.mktemp("faulty")
    return subprocess.run(
        [
            *(sys.executable, "-m", "jitwatch", "sweep", "--target", FAULTY, *SIM),
            *("--lengths", "64,65,1", "--run-dir", str(folder / "run"), "--json", "-"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TRITON_CACHE_DIR": str(folder / "cache")},
    ), folder / "run"


def test_json_alone_is_on_stdout_and_the_text_on_stderr(faulty):
    done, run_dir = faulty
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["verdict"]["outcome"] == "fail"
    assert [row["in_repo_loads"] for row in report["requests"]] == [0, 1, 1]
    assert report["environment"]["command"].startswith(f"jitwatch sweep --target {FAULTY} ")
    assert len(report["environment"]["commit"]) == 40
    assert f"run directory: {run_dir}\n" in done.stderr
    assert "FAIL: 3 requests on sim:h200, 2 waited for late in-repo work\n" in done.stderr


def test_report_shows_what_the_sweep_showed_and_exits_alike(faulty, jitwatch):
    done, run_dir = faulty
    again = jitwatch("report", str(run_dir))
    assert again.status == 1
    shown = done.stderr.replace(f"run directory: {run_dir}\n", "")
    assert again.out == shown
    assert again.err == ""
    as_json = jitwatch("report", str(run_dir), "--format", "json")
    assert (as_json.status, as_json.out) == (1, done.stdout)


def test_a_clean_target_passes_outside_git_and_keeps_its_noise_to_itself(served, tmp_path):
    ran = served("Clean", "--json", "-")
    assert ran.status == 0
    report = json.loads(ran.out)
    assert (report["verdict"]["outcome"], report["counts"]["launches"]) == ("pass", 3)
    assert (report["environment"]["commit"], report["environment"]["dirty"]) == (None, None)
    assert "noise" not in ran.out + ran.err
    assert (tmp_path / "run" / "target.log").read_text().count("noise from the target\n") == 3


def test_a_bare_function_is_ready_at_once_and_its_first_request_pays(served):
    ran = served("fill")
    assert ran.status == 1
    assert "JW101 cold kernel: fill_kernel\n  prompt_tokens 64: " in ran.out


def test_warmup_lengths_are_served_before_ready(served):
    ran = served("fill", "--warmup-lengths", "32")
    assert (ran.status, ran.out.split("\n")[0]) == (
        0,
        "PASS: 3 requests on sim:h200, 1 variant warm at ready",
    )


def test_a_target_that_launches_nothing_is_inconclusive(served):
    ran = served("OnTheCpu")
    assert ran.status == 2
    assert ran.reasons == [
        "no kernel launch was seen: the target launches nothing that can be watched here; "
        "check that it runs its kernels on the device, not on the CPU"
    ]


def test_fail_on_any_can_not_be_judged_without_a_gpu(served):
    ran = served("Clean", "--fail-on", "any", "--json", "report.json")
    assert ran.status == 2
    (reason,) = ran.reasons
    assert reason.startswith("--fail-on any needs the driver hook on a GPU: ")
    found = json.loads((ran.folder / "report.json").read_text())
    assert found["counts"]["late_other_loads"] is None


def test_several_devices_are_a_list_and_the_worst_status_counts(jitwatch, tmp_path):
    name = "targets:PerBoard"
    (tmp_path / "targets.py").write_text(
        TARGETS
        + "\nclass PerBoard(Clean):\n"
        + "    def warmup(self):\n"
        + "        if torch.cuda.get_device_capability() == (9, 0):\n"
        + "            fill(64)\n"
    )
    ran = jitwatch(
        *("sweep", "--target", name, "--device", "sim:h200,sim:a100", "--keys-only"),
        *("--lengths", "64", "--run-dir", str(tmp_path / "run"), "--json", "out.json"),
    )
    assert ran.status == 1
    found = json.loads((tmp_path / "out.json").read_text())
    assert [(one["device"], one["verdict"]["outcome"]) for one in found] == [
        ("sim:h200", "pass"),
        ("sim:a100", "fail"),
    ]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["sim-a100", "sim-h200"]
    again = jitwatch("report", str(tmp_path / "run"))
    assert (again.status, again.out) == (1, ran.out)


def test_winners_of_a_run_are_replayed(jitwatch, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    arguments = ["sweep", "--target", "tests.controls.autotune_by_length:Faulty", *SIM]
    arguments += ["--lengths", "64", "--json", "out.json"]
    monkeypatch.chdir(ROOT)
    arguments[-1] = str(tmp_path / "out.json")
    assert jitwatch(*arguments, "--run-dir", str(first)).status == 0
    events = next(first.glob("events-*.jsonl"))
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    (told,) = [line for line in lines if line.get("name") == "winners"]
    assert [item["choice"] for item in told["value"]] == [_choice("128")]
    told["value"][0]["choice"] = _choice("256")
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert jitwatch(*arguments, "--run-dir", str(second), "--winners", str(first)).status == 0
    replayed = [json.loads(line) for line in next(second.glob("events-*")).open()]
    (told,) = [line for line in replayed if line.get("name") == "winners"]
    assert [item["choice"] for item in told["value"]] == [_choice("256")]


def _choice(block: str) -> list[list[str]]:
    """A configuration's choice as JSON has it, with Triton's own defaults."""
    defaults = {"num_ctas": "1", "num_stages": "3", "num_warps": "4"}
    return [list(pair) for pair in sorted({"BLOCK": block, **defaults}.items())]


# -- targets that fail -------------------------------------------------------------------


def test_an_import_error_names_type_message_and_line(jitwatch, tmp_path):
    (tmp_path / "broken.py").write_text("import os\nimport no_such_library\n")
    ran = jitwatch(
        *("sweep", "--target", "broken:Target", *SIM, "--lengths", "64"),
        *("--run-dir", str(tmp_path / "run")),
    )
    assert ran.status == 2
    assert ran.out.startswith("INCONCLUSIVE: 0 requests on sim:h200")
    assert ran.reasons[:2] == [
        "the target could not be imported: ModuleNotFoundError: No module named "
        "'no_such_library' (HERE/broken.py:2) (traceback-import.txt in the run directory)",
        "1 of 1 length not served: 64",
    ]
    kept = (tmp_path / "run" / "traceback-import.txt").read_text()
    assert "import no_such_library" in kept


def test_a_target_that_raises_in_warmup(served, tmp_path):
    ran = served("RaisesInWarmup")
    line = line_of('        raise RuntimeError("no weights")')
    assert ran.status == 2
    assert ran.reasons[:3] == [
        f"the target raised in warmup: RuntimeError: no weights (HERE/targets.py:{line}) "
        "(traceback-warmup.txt in the run directory)",
        "3 of 3 lengths not served: 64..65, 1",
        "the target was never ready: nothing can be late",
    ]
    assert "no weights" in (tmp_path / "run" / "traceback-warmup.txt").read_text()


def test_a_target_that_raises_in_one_request_is_swept_to_the_end(served, tmp_path):
    ran = served("RaisesInOne")
    line = line_of('            raise ValueError("65 is too much")')
    assert ran.status == 2
    assert ran.out.startswith("INCONCLUSIVE: 3 requests on sim:h200")
    assert ran.reasons == [
        "the target raised at prompt_tokens 65: ValueError: 65 is too much "
        f"(HERE/targets.py:{line})"
    ]
    kept = (tmp_path / "run" / "traceback-request-len65.txt").read_text()
    assert 'raise ValueError("65 is too much")' in kept


def test_a_child_that_is_killed_names_what_it_did_not_serve(served):
    ran = served("Killed")
    assert ran.status == 2
    assert ran.out.startswith("INCONCLUSIVE: 2 requests on sim:h200")
    assert ran.reasons == [
        f"the target's process was killed by signal {signal.SIGKILL}",
        "2 of 3 lengths not served: 65, 1",
    ]


def test_a_target_that_ends_the_process_names_what_it_did_not_serve(served):
    ran = served("Leaves")
    line = line_of("            raise SystemExit(3)")
    assert ran.status == 2
    assert ran.reasons == [
        f"the target ended the sweep: SystemExit: 3 (HERE/targets.py:{line}) "
        "(traceback-serve.txt in the run directory)",
        "2 of 3 lengths not served: 65, 1",
    ]


def test_a_target_that_raises_in_close(served):
    ran = served("RaisesInClose")
    line = line_of('        raise OSError("port still open")')
    assert ran.status == 2
    assert ran.reasons == [
        f"the target raised in close(): OSError: port still open (HERE/targets.py:{line}) "
        "(traceback-close.txt in the run directory)"
    ]


# -- bad usage ------------------------------------------------------------------------------


def test_an_unknown_target_is_bad_usage(served):
    ran = served("Hole")
    assert (ran.status, ran.out) == (2, "")
    first, second, third = ran.error.split("\n")
    assert first == "jitwatch: --target targets:Hole: targets has no 'Hole'"
    assert second.startswith("  why: it has os, torch, triton, tl, fill_kernel, y, fill, Clean")
    assert third == "  fix: name one of its objects, classes or functions"


def test_an_unknown_package_is_bad_usage(served):
    ran = served("Clean", "--package", "no-such-package")
    assert (ran.status, ran.out) == (2, "")
    assert ran.error == (
        "jitwatch: --package no-such-package: no such package\n"
        "  why: it can't be imported from here\n"
        "  fix: give the name that is imported (fla for fla-core), or install it"
    )


def test_winners_of_no_run_are_bad_usage(served):
    ran = served("Clean", "--winners", "nowhere")
    assert (ran.status, ran.out) == (2, "")
    assert ran.error.startswith("jitwatch: nowhere is no run directory\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--min", "20", "--max", "10"], "--min 20 is above --max 10\n"),
        (["--lengths", "11,x"], "--lengths 11,x: 'x' is no length\n"),
        (["--warmup-lengths", "0"], "--warmup-lengths 0: '0' is no length\n"),
        (["--output-tokens", "0"], "--output-tokens 0: must be 1 or more\n"),
        (["--device", "sim:h20"], "there is no simulated board 'sim:h20'\n"),
        (["--device", "tpu"], "--device 'tpu' is no device\n"),
        (["--device", "cuda"], "--device cuda: there is no GPU here\n"),
        (["--repo", "nowhere"], "--repo nowhere: there is no such folder\n"),
        (["--run-dir", "targets.py/run"], "--run-dir targets.py/run: can't be written\n"),
        (["--run-dir", "."], "--run-dir . is not empty\n"),
    ],
)
def test_a_wrong_option_is_named_before_anything_runs(jitwatch, monkeypatch, arguments, text):
    monkeypatch.setattr(sweep, "has_gpu", lambda: False)
    ran = jitwatch("sweep", "--target", "targets:Clean", *arguments)
    assert (ran.status, ran.out) == (2, "")
    assert ran.err.startswith(f"jitwatch: {text}  why: ")
    assert not (ran.folder / ".jitwatch").exists()


@pytest.mark.parametrize("option", ["--keys-only", "--strict-values", "--winners=run"])
def test_what_only_a_simulated_device_has_is_refused_on_a_gpu(jitwatch, monkeypatch, option):
    monkeypatch.setattr(sweep, "has_gpu", lambda: True)
    ran = jitwatch("sweep", "--target", "targets:Clean", "--device", "sim:h200,cuda", option)
    name = option.split("=")[0]
    assert (ran.status, ran.out) == (2, "")
    assert ran.error == (
        f"jitwatch: {name} needs a simulated device\n"
        "  why: on a GPU kernels are compiled, tuned and launched for real\n"
        f"  fix: leave {name} out, or use --device sim:h200"
    )


def test_a_report_of_no_run_is_bad_usage(jitwatch):
    ran = jitwatch("report", "nowhere")
    assert (ran.status, ran.out) == (2, "")
    assert ran.error.startswith("jitwatch: nowhere is no run directory\n")


def test_json_that_can_not_be_written_costs_no_report(served):
    ran = served("Clean", "--json", "targets.py/out.json")
    assert ran.status == 2
    assert ran.out.startswith("PASS: 3 requests")
    assert "jitwatch: --json targets.py/out.json: can't be written\n" in ran.err


@pytest.mark.parametrize(
    "arguments", [[], ["sweep", "--layers", "x"], ["sweep", "--fail-on", "x"], ["nonsense"]]
)
def test_a_wrong_command_line_exits_with_2(jitwatch, arguments):
    with pytest.raises(SystemExit) as caught:
        jitwatch(*arguments)
    assert caught.value.code == 2
