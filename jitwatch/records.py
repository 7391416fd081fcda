"""What a run directory's lines and `meta.json` must hold, so that damage is noticed.

Owns the names and types of fields, and writes `meta.json`. `recorder.py` writes such lines,
`log.py` reads both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from jitwatch.events import SCHEMA, Kind, Phase

META = "meta.json"
NULL = type(None)
#: What a value must be: a type, one of a set of types, one of several words, an int of a range, or
#: `(list, shape)` and `(dict, shape)` of items.
Shape = Any
INT, TEXT, TEXTS = int, str, (list, str)
TOKENS = range(1, 2**31)
KINDS, PHASES = frozenset(get_args(Kind)), frozenset(get_args(Phase))
MAYBE_INT, MAYBE_TEXT = {int, NULL}, {str, NULL}

META_FIELDS: dict[str, Shape] = {"schema": INT}
META_OPTIONAL: dict[str, Shape] = {
    "device": TEXT,
    "repo": MAYBE_TEXT,
    "devices": TEXTS,
    "doubts": TEXTS,
    "lengths": (list, TOKENS),
    "warmup_lengths": (list, TOKENS),
    "environment": dict,
    "fail_on": TEXT,
    "simulated": {NULL, list},
    "prove": MAYBE_INT,
}
#: What each kind of line must hold; a line that doesn't is damaged, and counted as lost.
FIELDS: dict[str, dict[str, Shape]] = {
    "process": {"format": INT, "pid": INT},
    "begin": {
        **dict.fromkeys(("seq", "tid", "t"), INT),
        **dict.fromkeys(("source", "kernel"), TEXT),
        "kind": KINDS,
        **dict.fromkeys(("step", "parent"), MAYBE_INT),
    },
    "end": {"seq": INT, "t": INT},
    "discard": {"seq": INT},
    "step": {
        **dict.fromkeys(("id", "tokens", "t", "tid"), INT),
        "phase": PHASES,
        "requests": TEXTS,
    },
    "step_end": {"id": INT, "t": INT},
    "request": {"id": TEXT, "prompt_tokens": TOKENS, "output_tokens": INT, "t": INT},
    "first_token": {"id": TEXT, "t": INT},
    "request_end": {"id": TEXT, "t": INT, "error": MAYBE_TEXT, "launches": MAYBE_INT},
    "ready": {"t": INT},
    "source": {"name": TEXT, "armed": bool, "version": TEXT, "reason": TEXT},
    "fact": {"name": TEXT},
    "lost": {"number": INT},
    "close": {},
}
OPTIONAL: dict[str, Shape] = {
    "kind": KINDS,
    "variant": dict,
    "file": MAYBE_TEXT,
    "line": MAYBE_INT,
    "stack": TEXTS,
    "detail": TEXT,
    "nbytes": INT,
    "used": (list, INT),
}
FACTS: dict[str, Shape] = {
    "packages": (dict, TEXTS),
    "environment": dict,
    "served_until_ns": INT,
    "probes": INT,
    "probe_launches": INT,
    "probe_kernels": TEXTS,
    "launches_by_request": (dict, INT),
    "lengths": (list, TOKENS),
    "winners": (list, dict),
    "hooks_displaced": bool,
    "ladder": (list, dict),
    "warmup_seconds": {int, float},
    "says_steps": bool,
    "peak_memory_bytes": INT,
    "proof": dict,
    "unproved": TEXT,
    "failed": dict,
}


def write_meta(run_dir: Path, meta: dict[str, Any]) -> None:
    """Write `meta.json`: what was asked for, and the environment."""
    text = json.dumps({"schema": SCHEMA, **meta}, indent=1, sort_keys=True)
    (run_dir / META).write_text(text + "\n")


def check(record: dict[str, Any], needed: dict[str, Shape], optional: dict[str, Shape]) -> None:
    """See that a record holds what it must, in the types that it must have.

    Raises:
        KeyError, TypeError: it doesn't.
    """
    for name, shape in needed.items():
        if not fits(record[name], shape):
            raise TypeError(f"{name} is {record[name]!r}")
    for name, shape in optional.items():
        if name not in needed and name in record and not fits(record[name], shape):
            raise TypeError(f"{name} is {record[name]!r}")


def fits(value: Any, shape: Shape) -> bool:
    """Whether a value is of that shape; a bool is no int."""
    if isinstance(shape, frozenset):
        return type(value) is str and value in shape
    if isinstance(shape, range):
        return type(value) is int and value in shape
    if isinstance(shape, set):
        return type(value) in shape
    if isinstance(shape, tuple):
        container, inner = shape
        items = value.values() if isinstance(value, dict) else value
        return type(value) is container and all(fits(item, inner) for item in items)
    return type(value) is shape
