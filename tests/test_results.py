"""A committed result says which command made it, of which commit, with nothing uncommitted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PLACES = ("sweeps/results/**/*.json", "tests/corpus/*.json")


def results() -> list[Path]:
    """Every committed result, a run directory's `meta.json` too."""
    return sorted({path for place in PLACES for path in ROOT.glob(place)})


def faults(data: object) -> list[str]:
    """What a result lacks; one for several devices is a list of objects."""
    if isinstance(data, list):
        return [fault for one in data for fault in faults(one)] if data else ["it is empty"]
    environment = data.get("environment") if isinstance(data, dict) else None
    if not isinstance(environment, dict):
        return ["it has no environment"]
    found = []
    if not (isinstance(environment.get("command"), str) and environment["command"].strip()):
        found.append("it has no command")
    if not re.fullmatch(r"[0-9a-f]{40}", str(environment.get("commit"))):
        found.append(f"its commit is {environment.get('commit')!r}")
    if environment.get("dirty") is not False:
        found.append(f"dirty is {environment.get('dirty')!r}")
    return found


def test_every_committed_result_names_its_origin():
    found = {
        str(path.relative_to(ROOT)): faults(json.loads(path.read_text())) for path in results()
    }
    assert {name: lacks for name, lacks in found.items() if lacks} == {}


GOOD = {"command": "jitwatch sweep", "commit": "0123456789" * 4, "dirty": False}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"environment": GOOD}, []),
        ([{"environment": GOOD}, {"environment": GOOD}], []),
        ([], ["it is empty"]),
        ({}, ["it has no environment"]),
        ([{"environment": GOOD}, 3], ["it has no environment"]),
        ({"environment": {**GOOD, "command": " "}}, ["it has no command"]),
        ({"environment": {**GOOD, "commit": None}}, ["its commit is None"]),
        ({"environment": {**GOOD, "commit": "0123abc"}}, ["its commit is '0123abc'"]),
        ({"environment": {**GOOD, "dirty": True}}, ["dirty is True"]),
        ({"environment": {**GOOD, "dirty": None}}, ["dirty is None"]),
    ],
)
def test_what_a_result_lacks_is_found(data, found):
    assert faults(data) == found
