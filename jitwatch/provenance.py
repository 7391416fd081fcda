"""What a result was made from: the repository, its commit, the command."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import jitwatch

#: Options that say where a result goes, not what it is.
OUTPUT_OPTIONS = ("--run-dir", "--json", "--html", "--out")


def default_repo(start: Path) -> Path:
    """The git top level around `start`, else `start` itself."""
    top = _git(start, "rev-parse", "--show-toplevel")
    return Path(top) if top else start.resolve()


def without_outputs(arguments: Sequence[str]) -> list[str]:
    """A command's arguments without where it writes to: what made a result, not where."""
    kept, skip = [], False
    for argument in arguments:
        if skip:
            skip = False
        elif argument in OUTPUT_OPTIONS:
            skip = True
        elif not argument.startswith(tuple(f"{option}=" for option in OUTPUT_OPTIONS)):
            kept.append(argument)
    return kept


def environment_of(repo: Path, command: str) -> dict[str, Any]:
    """What a result was made from and with, as far as it is known before anything ran."""
    commit, dirty = commit_of(repo)
    return {
        "command": command,
        "commit": commit,
        "dirty": dirty,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "jitwatch": jitwatch.__version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }


def commit_of(repo: Path) -> tuple[str | None, bool | None]:
    """The commit of `repo` and whether it has uncommitted changes; None where it has none.

    A copy without history says what it is a copy of in JITWATCH_COMMIT: the hash,
    with `-dirty` behind it where that is so (as `git describe --always --dirty`).
    """
    commit = _git(repo, "rev-parse", "--verify", "--quiet", "HEAD")
    if commit:
        return commit, bool(_git(repo, "status", "--porcelain"))
    stated = os.environ.get("JITWATCH_COMMIT")
    if not stated:
        return None, None
    return stated.removesuffix("-dirty"), stated.endswith("-dirty")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
