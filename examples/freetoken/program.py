"""FreeToken as a program of its own: boot, ready, then every prompt length, for `jitwatch run`.

`jitwatch run --package freetoken -- python -m examples.freetoken.program 11-2560`
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import jitwatch
from examples.freetoken.target import Target


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, by its length."""

    prompt_tokens: int
    output_tokens: int = 2


def main() -> None:
    """Serve the lengths given as `11,12,100-200`."""
    target = Target()
    jitwatch.ready()
    for part in sys.argv[1].split(","):
        first, _, last = part.partition("-")
        for length in range(int(first), int(last or first) + 1):
            with jitwatch.request(f"len{length}", length, 2):
                target.serve(Request(length))
    target.close()


if __name__ == "__main__":
    main()
