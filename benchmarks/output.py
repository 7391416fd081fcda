"""How every benchmark ends: one JSON object as the last line, or why there is none."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NoReturn


def publish(result: dict[str, Any], out: Path | None) -> None:
    """Print `result` on one line, and write it to `out`, indented, where one was asked for."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=2) + "\n")
    sys.stderr.flush()
    print(json.dumps(result), flush=True)


def give_up(why: str) -> NoReturn:
    """End with status 2 and the reason on stderr: nothing was measured."""
    print(f"{Path(sys.argv[0]).stem}: {why}", file=sys.stderr, flush=True)
    sys.exit(2)


def last_object(text: str) -> dict[str, Any] | None:
    """What `publish` printed last, None where the last line is no JSON object."""
    try:
        found = json.loads((text.strip().splitlines() or [""])[-1])
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
