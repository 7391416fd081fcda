"""`pytest --jitwatch`: the sweep as test items, one for each prompt length.

Owns options, items and how a failing item reads. The sweep itself runs in a child
process (`sweep.py`), once, when the first selected item starts. Importing this
module imports neither torch nor triton nor pandas.
"""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from jitwatch.attribution import IN_REPO
from jitwatch.errors import JitwatchError, UsageError
from jitwatch.events import Stall
from jitwatch.provenance import default_repo
from jitwatch.render.terminal import coverage_lines, diagnostic_lines, diagnostics, first_line
from jitwatch.report import Report, RequestRow
from jitwatch.sweep import (
    MAX_LENGTH,
    MIN_LENGTH,
    SweepOptions,
    lengths_between,
    new_run_dir,
    parse_lengths,
    resolve_devices,
    run_sweep,
)
from jitwatch.targets.engine import NAME, EngineOptions, options_for, parse_arguments
from jitwatch.verdict import BUDGET_KINDS

#: Options that have the sweep's name, after `jitwatch-`.
OPTIONS = (
    *("target", "device", "package", "min", "max", "step", "lengths", "param"),
    *("model", "layers", "engine-arg"),
)


class LateLoad(Exception):
    """A request waited for a late event in the repository under test: the item's failure."""


class NotJudged(Exception):
    """The item could not be judged: an error of the item, never a pass."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("jitwatch", "no request pays for a compile or a module load")
    add = group.addoption
    add("--jitwatch", action="store_true", help="sweep prompt lengths as test items")
    add("--jitwatch-target", metavar="MODULE:ATTR", help="what is swept (ini: jitwatch_target)")
    add("--jitwatch-min", type=int, default=MIN_LENGTH, metavar="N", help="shortest prompt")
    add("--jitwatch-max", type=int, default=MAX_LENGTH, metavar="N", help="longest prompt")
    add("--jitwatch-step", type=int, default=1, metavar="N", help="every N-th length")
    add("--jitwatch-lengths", metavar="N,N,…", help="these lengths instead")
    add("--jitwatch-device", default="auto", metavar="DEVICE", help="auto, cuda or sim:BOARD")
    add("--jitwatch-package", action="append", default=[], metavar="NAME", help="under test too")
    add(
        "--jitwatch-param", action="append", default=[], metavar="K=V", help="goes to every request"
    )
    add("--jitwatch-model", metavar="PRESET|DIR", help="of the target engine")
    add("--jitwatch-layers", type=int, metavar="N", help="of the target engine")
    add(
        "--jitwatch-engine-arg",
        action="append",
        default=[],
        metavar="K=V",
        help="passed to engine.LLM",
    )
    add("--jitwatch-keys-only", action="store_true", help="simulated: compile nothing")
    parser.addini("jitwatch_target", "the target of pytest --jitwatch, as module:attr")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    if not config.getoption("jitwatch"):
        return
    try:
        sweep = Sweep(config)
    except UsageError as error:
        raise pytest.UsageError(f"jitwatch: {_as_plugin_options(str(error))}") from error
    config.stash[SWEEP] = sweep
    for length in sweep.lengths:
        name = f"sweep[len{length}]"
        item = SweepItem.from_parent(session, name=name, nodeid=name, length=length, sweep=sweep)
        items.append(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """The diagnostic alone, from setup too: a traceback through pytest says nothing here."""
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, (LateLoad, NotJudged)):
        report.longrepr = str(call.excinfo.value)
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    sweep = config.stash.get(SWEEP, None)
    if sweep is not None and sweep.report is not None:
        terminalreporter.section("jitwatch")
        terminalreporter.write_line(first_line(sweep.report))
        for line in coverage_lines(sweep.report):
            terminalreporter.write_line(line)
        terminalreporter.write_line(f"run directory: {sweep.run_dir}")


class Sweep:
    """What a session sweeps; runs once, over the lengths that are still selected."""

    def __init__(self, config: pytest.Config) -> None:
        option = config.getoption
        target = option("jitwatch_target") or config.getini("jitwatch_target")
        if not target and not (config.rootpath / NAME).is_dir():
            raise UsageError(
                "there is no target to sweep",
                "neither --jitwatch-target nor the ini setting jitwatch_target is given, and "
                f"there is no {NAME}/ in {config.rootpath}",
                "add jitwatch_target = module:attr to the pytest configuration",
            )
        devices = resolve_devices(option("jitwatch_device"))
        if len(devices) > 1:
            raise UsageError(
                f"--jitwatch-device {option('jitwatch_device')}: one device a session",
                "an item is one length on one device",
                "run pytest once for each device",
            )
        listed = option("jitwatch_lengths")
        self.lengths = (
            parse_lengths(listed, "--jitwatch-lengths")
            if listed
            else lengths_between(
                option("jitwatch_min"), option("jitwatch_max"), option("jitwatch_step")
            )
        )
        self.config = config
        self.target = str(target or NAME)
        self.params = parse_arguments(option("jitwatch_param"), "--param", "temperature=0.8")
        self.engine = _engine_options(config, self.target)
        self.devices = devices
        self.report: Report | None = None
        self.run_dir: Path | None = None
        self.failure: str | None = None

    def row(self, session: pytest.Session, length: int) -> tuple[Report, RequestRow]:
        """The report and the row of one length; sweeps at the first call.

        Raises:
            NotJudged: the sweep failed, its evidence is missing, or this length was not served.
        """
        if self.report is None and self.failure is None:
            self._run(tuple(i.length for i in session.items if isinstance(i, SweepItem)))
        if self.report is None:
            raise NotJudged(self.failure)
        rows = {row.request.prompt_tokens: row for row in self.report.requests}
        row = rows.get(length)
        if row is None or row.request.end_ns is None:
            raise NotJudged("; ".join(self.report.verdict.reasons) or "it was not served")
        if row.request.error:
            raise NotJudged(f"the target raised: {row.request.error}")
        return self.report, row

    def _run(self, lengths: tuple[int, ...]) -> None:
        root = self.config.rootpath
        try:
            self.run_dir = new_run_dir(root)
        except UsageError:  # a read-only checkout
            self.run_dir = Path(tempfile.mkdtemp(prefix="jitwatch-"))
        options = SweepOptions(
            target=self.target,
            devices=self.devices,
            lengths=lengths,
            run_dir=self.run_dir,
            repo=default_repo(root),
            packages=tuple(self.config.getoption("jitwatch_package")),
            params=self.params,
            engine=self.engine,
            keys_only=self.config.getoption("jitwatch_keys_only"),
            path=root,
            command=shlex.join(["pytest", *self.config.invocation_params.args]),
        )
        try:
            (self.report,) = run_sweep(options)
        except JitwatchError as error:
            self.failure = _as_plugin_options(str(error))


class SweepItem(pytest.Item):
    """One prompt length."""

    def __init__(self, *, length: int, sweep: Sweep, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length
        self.sweep = sweep

    def setup(self) -> None:
        """Sweep, and see that this length can be judged: otherwise the item is an error."""
        report, row = self.sweep.row(self.session, self.length)
        if _late(report, row):
            return
        if report.doubts:
            raise NotJudged("; ".join(report.doubts))
        nobodys = list(_late_for_nobody(report))
        if nobodys:
            raise NotJudged("\n".join(nobodys))

    def runtest(self) -> None:
        """Fail with the diagnostics of what this request waited for."""
        report, row = self.sweep.row(self.session, self.length)
        if _late(report, row):
            raise LateLoad("\n".join(_diagnosed(report, row)))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the item is from: the root, as it has no file."""
        return self.config.rootpath, None, self.name


SWEEP: pytest.StashKey[Sweep] = pytest.StashKey()


def _engine_options(config: pytest.Config, target: str) -> EngineOptions:
    given = {name: config.getoption(f"jitwatch_{name}") for name in ("model", "layers")}
    given = {name: value for name, value in given.items() if value is not None}
    return options_for(target, given, config.getoption("jitwatch_engine_arg"))


def _late(report: Report, row: RequestRow) -> bool:
    return any(row.request.id in stall.requests for stall in _failures(report))


def _failures(report: Report) -> Iterator[Stall]:
    for stall in report.stalls:
        if stall.event.kind in BUDGET_KINDS and stall.event.origin == IN_REPO:
            yield stall


def _late_for_nobody(report: Report) -> Iterator[str]:
    """What fails the run and no item: a background thread's load, or one after the requests."""
    swept = {row.request.id for row in report.requests}
    for stall in _failures(report):
        if swept.isdisjoint(stall.requests):
            event = stall.event
            where = f" ({event.file}:{event.line})" if event.file else ""
            yield f"late {event.kind} of {event.kernel}{where}, in no request: {stall.cause.why}"


def _diagnosed(report: Report, row: RequestRow) -> Iterator[str]:
    for item in diagnostics(report, only=row.request.id):
        yield from diagnostic_lines(item)


def _as_plugin_options(text: str) -> str:
    """Errors of the sweep with the plugin's names of its options."""
    return re.sub(rf"(?<![\w-])--({'|'.join(OPTIONS)})\b", r"--jitwatch-\1", text)
