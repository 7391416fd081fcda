"""How every benchmark ends: one JSON object as the last line, or why there is none."""

from __future__ import annotations

import json
import shlex
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, str(Path(__file__).parent.parent))

from jitwatch.provenance import commit_of, without_outputs


def publish(result: dict[str, Any], out: Path | None) -> None:
    """Print `result` on one line, and write it to `out`, indented, where one was asked for.

    What is written says which command made it, from which commit.
    """
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        result = {"environment": environment(), **result}
        out.write_text(json.dumps(result, indent=2) + "\n")
    sys.stderr.flush()
    print(json.dumps(result), flush=True)


def environment() -> dict[str, Any]:
    """The command without where it wrote to, the commit of this checkout, the date."""
    script = Path(sys.argv[0])
    commit, dirty = commit_of(script.resolve().parent)
    return {
        "command": shlex.join(
            ["python", f"benchmarks/{script.name}", *without_outputs(sys.argv[1:])]
        ),
        "commit": commit,
        "dirty": dirty,
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


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
