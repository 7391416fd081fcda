"""The command line: `jitwatch sweep`, `run`, `report`, `doctor`.

Owns arguments and exit status: 0 pass, 1 fail, 2 could not judge or bad usage.
Machine output goes to stdout, all else to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import jitwatch
from jitwatch.errors import JitwatchError, RunFileError, UsageError
from jitwatch.progress import progress_bar
from jitwatch.provenance import default_repo, without_outputs
from jitwatch.render.html import render_html
from jitwatch.render.json import render_json
from jitwatch.render.map_figure import write_figure
from jitwatch.render.terminal import render_text
from jitwatch.render.variant_map import render_map
from jitwatch.report import Report
from jitwatch.sweep import (
    MAX_LENGTH,
    MIN_LENGTH,
    SweepOptions,
    lengths_between,
    new_run_dir,
    parse_lengths,
    read_reports,
    resolve_devices,
    run_sweep,
)
from jitwatch.sweep_server import is_url, sweep_server
from jitwatch.targets.engine import (
    DEFAULT_LAYERS,
    KV_TOKENS,
    NAME,
    EngineOptions,
    options_for,
    parse_arguments,
)

EXIT = {"pass": 0, "inconclusive": 2, "fail": 1}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except JitwatchError as error:
        print(f"jitwatch: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read our output has enough; what is left in the buffer goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except KeyboardInterrupt:
        print("jitwatch: interrupted; what was seen is in the run directory", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        print("jitwatch: a bug of jitwatch's, no verdict", file=sys.stderr)
        return 2
    return status


def exit_status(reports: Sequence[Report]) -> int:
    """The worst of several devices: fail beats inconclusive beats pass."""
    outcomes = {report.verdict.outcome for report in reports}
    return next(EXIT[o] for o in ("fail", "inconclusive", "pass") if o in outcomes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jitwatch",
        description="Proves that no inference request pays for a compile or a module load.",
        epilog="Exit status: 0 pass, 1 fail, 2 could not judge or bad usage.",
    )
    parser.add_argument("--version", action="version", version=f"jitwatch {jitwatch.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_sweep(commands.add_parser("sweep", help="serve every length, judge each request"))
    _add_run(commands.add_parser("run", help="watch any command and all that it starts"))
    report = commands.add_parser("report", help="show a run's report again")
    report.add_argument("run_dir", type=Path, metavar="RUN", help="a run directory, or its JSON")
    report.add_argument(
        "--format", choices=("text", "json", "html"), default="text", help="%(default)s"
    )
    report.add_argument(
        "--map",
        metavar="FILE",
        help="the variant map instead: a figure (.png, .svg, .pdf) or text (.txt, - for stdout)",
    )
    report.set_defaults(run=_report)
    doctor = commands.add_parser("doctor", help="what can be seen here, what can't; self-test")
    doctor.add_argument("--json", action="store_true", help="as JSON on stdout")
    doctor.set_defaults(run=_doctor)
    return parser


def _add_sweep(sweep: argparse.ArgumentParser) -> None:
    add = sweep.add_argument
    add(
        "--target",
        default=NAME,
        metavar="MODULE:ATTR|URL",
        help="an object with serve(request), ...; the URL of a server under `jitwatch run`; "
        "`engine` is this repository's (%(default)s)",
    )
    add("--device", default="auto", help="auto, cuda or sim:BOARD; comma-separated for several")
    add("--min", type=int, default=MIN_LENGTH, help="shortest prompt, in tokens (%(default)s)")
    add("--max", type=int, default=MAX_LENGTH, help="longest prompt, in tokens (%(default)s)")
    add("--step", type=int, default=1, help="every STEP-th length (%(default)s)")
    add("--lengths", metavar="N,N,...", help="these lengths instead of --min, --max, --step")
    add("--output-tokens", type=int, default=2, help="tokens to generate (%(default)s)")
    add("--warmup-lengths", metavar="N,N,...", help="lengths to serve before ready")
    add(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="goes to every request, such as temperature=0.8; may be repeated",
    )
    add(
        "--prove",
        type=int,
        metavar="MAX",
        help="simulated: find by bisection the lengths that stand for all of 1..MAX",
    )
    add("--repo", type=Path, help="the repository under test (the git top level here)")
    add("--package", action="append", default=[], help="a package under test; may be repeated")
    add(
        "--fail-on",
        choices=("in-repo", "any"),
        default="in-repo",
        help="any: third parties' loads fail it too; needs a GPU (%(default)s)",
    )
    add("--keys-only", action="store_true", help="simulated: compile nothing, count keys")
    add("--strict-values", action="store_true", help="simulated: an unknown read-back is an error")
    add("--winners", metavar="RUN", help="simulated: autotuned choices of that run")
    add("--simulated", type=Path, metavar="RUN", help="that run must name the same variants")
    add("--run-dir", type=Path, help="where to record (a new folder in .jitwatch)")
    add("--json", metavar="FILE", help="the report as JSON; - for stdout, the text on stderr then")
    add("--html", metavar="FILE", help="the report as one self-contained page")
    sweep.set_defaults(run=_sweep)
    _add_engine(sweep.add_argument_group("the target `engine`"))


def _add_run(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add("--run-dir", type=Path, help="where to record (a new folder in .jitwatch)")
    add("--repo", type=Path, help="the repository under test (the git top level here)")
    add("--package", action="append", default=[], help="a package under test; may be repeated")
    add("--ready-url", metavar="URL", help="ready is the first answer of this with status 200")
    add("--ready-log", metavar="REGEX", help="ready is the first line of output that has this")
    add(
        "--fail-on",
        choices=("in-repo", "any"),
        help="judge: exit with 1 or 2 where CMD's own status is 0",
    )
    add("--json", metavar="FILE", help="the report as JSON")
    add("--html", metavar="FILE", help="the report as one self-contained page")
    add("command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="what to run")
    run.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from jitwatch.run import RunOptions, end_as, judged, run_command, split_command

    command = split_command(arguments.command)
    _check_repo(arguments.repo)
    for option in ("json", "html"):
        _check_output(f"--{option}", getattr(arguments, option))
    here = Path.cwd()
    options = RunOptions(
        command=command,
        run_dir=arguments.run_dir or new_run_dir(here),
        repo=arguments.repo or default_repo(here),
        packages=tuple(arguments.package),
        fail_on=arguments.fail_on,
        ready_url=arguments.ready_url,
        ready_log=arguments.ready_log,
        typed=shlex.join(["jitwatch", *without_outputs(sys.argv[1:])]),
    )
    status, report = run_command(options)
    if isinstance(report, RunFileError):
        print(f"jitwatch: {report}", file=sys.stderr)
        return end_as(judged(status, report, arguments.fail_on))
    print(_texts([report]), end="", file=sys.stderr)
    print(f"run directory: {options.run_dir}", file=sys.stderr)
    if arguments.json is not None:
        _write("--json", arguments.json, render_json([report]) + "\n")
    if arguments.html is not None:
        _write("--html", arguments.html, render_html([report]))
    return end_as(judged(status, report, arguments.fail_on))


def _add_engine(group: argparse._ArgumentGroup) -> None:
    default = EngineOptions()
    add = group.add_argument
    add("--model", metavar="PRESET|DIR", help=f"a preset or a checkpoint ({default.model})")
    add("--layers", type=int, help=f"how many of its layers ({DEFAULT_LAYERS}, or all if fewer)")
    add("--dtype", help="bfloat16, float16 or float32 (the checkpoint's)")
    add("--kv-tokens", type=int, help=f"room of the KV cache ({KV_TOKENS}, or more)")
    add("--skip-prefill-warmup", action="store_true", help="boot without the warmup ladder")
    add(
        "--engine-arg",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="passed to engine.LLM; may be repeated",
    )


def _engine(arguments: argparse.Namespace) -> EngineOptions:
    names = ("model", "layers", "dtype", "kv_tokens", "skip_prefill_warmup")
    given = {name: getattr(arguments, name) for name in names}
    given = {
        name: value for name, value in given.items() if value is not None and value is not False
    }
    return options_for(arguments.target, given, arguments.engine_arg)


def _lengths(arguments: argparse.Namespace) -> tuple[int, ...]:
    """The lengths to serve; none for a proof, which chooses them."""
    chosen = (arguments.min, arguments.max, arguments.step) != (MIN_LENGTH, MAX_LENGTH, 1)
    if arguments.prove is not None and (chosen or arguments.lengths is not None):
        raise UsageError(
            f"--prove {arguments.prove}: chooses its lengths itself",
            "--min, --max, --step or --lengths is given as well",
            "leave them out: it is about every length from 1 on",
        )
    if arguments.prove is not None:
        return ()
    if arguments.lengths is not None:
        return parse_lengths(arguments.lengths)
    return lengths_between(arguments.min, arguments.max, arguments.step)


def _sweep(arguments: argparse.Namespace) -> int:
    lengths = _lengths(arguments)
    devices = resolve_devices(arguments.device)
    _refuse_simulated_options(arguments, devices)
    _check_numbers_and_folders(arguments)
    if is_url(arguments.target):
        _check_server(arguments)
    _check_output("--json", None if arguments.json == "-" else arguments.json)
    _check_output("--html", arguments.html)
    warmup = arguments.warmup_lengths
    warmup_lengths = parse_lengths(warmup, "--warmup-lengths") if warmup is not None else ()
    here = Path.cwd()
    options = SweepOptions(
        target=arguments.target,
        devices=devices,
        lengths=lengths,
        run_dir=arguments.run_dir or new_run_dir(here),
        repo=arguments.repo or default_repo(here),
        packages=tuple(arguments.package),
        output_tokens=arguments.output_tokens,
        warmup_lengths=warmup_lengths,
        fail_on=arguments.fail_on,
        keys_only=arguments.keys_only,
        strict_values=arguments.strict_values,
        winners=arguments.winners,
        simulated=arguments.simulated,
        path=here,
        params=parse_arguments(arguments.param, "--param", "temperature=0.8"),
        engine=_engine(arguments),
        prove=arguments.prove,
        command=shlex.join(["jitwatch", *without_outputs(sys.argv[1:])]),
    )
    with progress_bar() as progress:
        if is_url(options.target):
            reports = [sweep_server(options, progress)]
        else:
            reports = run_sweep(options, progress)
    print(f"run directory: {options.run_dir}", file=sys.stderr)
    _print(reports, arguments.json, arguments.html)
    return exit_status(reports)


def _check_server(arguments: argparse.Namespace) -> None:
    if arguments.run_dir is None:
        raise UsageError(
            f"--target {arguments.target}: --run-dir is missing",
            "a server is swept in the run directory of its own `jitwatch run`",
            "give the folder that `jitwatch run` was given",
        )
    if arguments.repo is not None:
        raise UsageError(
            f"--target {arguments.target}: takes no --repo",
            "whose kernels are judged is said where the server is watched",
            "give --repo to `jitwatch run`",
        )


def _check_numbers_and_folders(arguments: argparse.Namespace) -> None:
    if arguments.output_tokens < 1:
        raise UsageError(
            f"--output-tokens {arguments.output_tokens}: must be 1 or more",
            "a request that generates nothing is none",
        )
    _check_repo(arguments.repo)


def _check_repo(repo: Path | None) -> None:
    if repo is not None and not repo.is_dir():
        raise UsageError(
            f"--repo {repo}: there is no such folder",
            "no kernel would lie in it, so nothing would be judged",
            "give the folder that holds the kernels under test",
        )


def _check_output(option: str, name: str | None) -> None:
    """Before the sweep: a report that can't be written afterwards is a sweep in vain."""
    if name is None:
        return
    path = Path(name)
    if not name or path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(
            f"{option} {name}: can't be written",
            "it is a folder, or its folder is missing or read-only",
            "give a file of your own",
        )


def _refuse_simulated_options(arguments: argparse.Namespace, devices: Sequence[str]) -> None:
    for name in ("keys_only", "strict_values", "winners"):
        if getattr(arguments, name) and "cuda" in devices:
            option = "--" + name.replace("_", "-")
            raise UsageError(
                f"{option} needs a simulated device",
                "on a GPU kernels are compiled, tuned and launched for real",
                f"leave {option} out, or use --device sim:h200",
            )


def _print(reports: Sequence[Report], json_file: str | None, html_file: str | None) -> None:
    text = _texts(reports)
    if json_file == "-":
        print(render_json(reports))
        print(text, end="", file=sys.stderr)
    else:
        print(text, end="")
    if json_file not in (None, "-"):
        _write("--json", str(json_file), render_json(reports) + "\n")
    if html_file is not None:
        _write("--html", html_file, render_html(reports))


def _write(option: str, name: str, text: str) -> None:
    try:
        Path(name).write_text(text)
    except OSError as error:
        raise UsageError(
            f"{option} {name}: can't be written", str(error), "give a file of your own"
        ) from error


def _report(arguments: argparse.Namespace) -> int:
    reports = read_reports(arguments.run_dir)
    if arguments.map is not None:
        _map(reports, arguments.map)
        return exit_status(reports)
    forms = {"json": render_json, "html": render_html, "text": _texts}
    print(forms[arguments.format](reports).rstrip("\n"))
    return exit_status(reports)


def _map(reports: Sequence[Report], name: str) -> None:
    """Write the variant map of each device; several have its name before the file's ending."""
    if name == "-":
        print("\n".join(render_map(report) for report in reports), end="")
        return
    _check_output("--map", name)
    path = Path(name)
    for report in reports:
        device = report.device.replace(":", "-")
        named = path if len(reports) == 1 else path.with_stem(f"{path.stem}-{device}")
        if path.suffix.lower() == ".txt":
            _write("--map", str(named), render_map(report))
        else:
            write_figure(report, named)
        print(f"variant map: {named}", file=sys.stderr)


def _texts(reports: Sequence[Report]) -> str:
    return "\n".join(render_text(report) for report in reports)


def _doctor(arguments: argparse.Namespace) -> int:
    from jitwatch.doctor import examine, render

    found = examine()
    print(json.dumps(found, indent=1) if arguments.json else render(found))
    return 0 if found["self_test"]["outcome"] in ("passed", "skipped") else 2
