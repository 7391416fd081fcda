"""How one variant differs from another, and which warm one is closest.

Pure functions. The words are for people: `n == 1`, `n % 16 == 0`, `any other n`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from jitwatch.events import TUNED, DiffRow, Variant

NOT_PASSED = "not passed"

#: Kinds of difference with the code of their cause, the gravest first: where a
#: variant differs in several ways, the first names the stall.
KINDS = {
    "dtype": "JW107",
    "optional": "JW109",
    "number": "JW110",
    "constexpr": "JW103",
    "option": "JW104",
    "integer": "JW102",
    "alignment": "JW108",
}
_ORDER = {kind: rank for rank, kind in enumerate(KINDS)}
#: How far apart a difference of each kind sets two variants: milder ones are closer.
_WEIGHT = {kind: 1 + (len(KINDS) - rank) / 100 for kind, rank in _ORDER.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """One differing argument, constexpr or option, with its kind (a key of `KINDS`)."""

    kind: str
    row: DiffRow


def differences(now: Variant, before: Variant) -> list[Difference]:
    """What differs, gravest first; what an autotuner chose is not compared."""
    found = []
    old = dict(before.arguments)
    for name, text in now.arguments:
        was = old.get(name, "None")
        if text != was:
            found.append(_argument(name, text, was))
    for kind in ("constants", "options"):
        new, old = dict(getattr(now, kind)), dict(getattr(before, kind))
        for name in dict.fromkeys(chain(new, old)):
            pair = new.get(name, NOT_PASSED), old.get(name, NOT_PASSED)
            if pair[0] != pair[1] and TUNED not in pair:
                label = "constexpr" if kind == "constants" else "option"
                found.append(Difference(label, DiffRow(name, *pair)))
    return sorted(found, key=lambda difference: _ORDER[difference.kind])


def tuned_differences(now: Variant, before: Variant) -> list[Difference]:
    """What an autotuner chose otherwise."""
    new, old = dict(now.tuned), dict(before.tuned)
    return [
        Difference("option", DiffRow(name, new.get(name, NOT_PASSED), old.get(name, NOT_PASSED)))
        for name in dict.fromkeys(chain(new, old))
        if new.get(name) != old.get(name)
    ]


def closest(variant: Variant, candidates: Sequence[Variant]) -> Variant | None:
    """The candidate with the fewest and mildest differences; the earliest of equals."""

    def distance(candidate: Variant) -> float:
        return sum(_WEIGHT[item.kind] for item in differences(variant, candidate))

    return min(candidates, key=distance, default=None)


def describe(variant: Variant) -> str:
    """One line: `n_kernel(x: *fp32 % 16 == 0, n: i32, BLOCK=64, num_warps=4)`."""
    parts = [f"{name}: {text}" for name, text in variant.arguments]
    parts += [f"{name}={value}" for name, value in (*variant.constants, *variant.options)]
    return f"{variant.kernel}({', '.join(parts)})"


def read_variant(data: dict[str, Any]) -> Variant:
    """A variant from the dict that `dataclasses.asdict` makes of it."""
    pairs = {
        name: tuple((key, value) for key, value in data.get(name, ()))
        for name in ("arguments", "constants", "options", "tuned")
    }
    return Variant(
        compiler=data["compiler"],
        kernel=data["kernel"],
        arguments=pairs["arguments"],
        constants=pairs["constants"],
        options=pairs["options"],
        arch=data["arch"],
        tuned=pairs["tuned"],
    )


def _argument(name: str, now: str, before: str) -> Difference:
    if "None" in (now, before):
        rows = DiffRow(name, _presence(name, now), _presence(name, before))
        return Difference("optional", rows)
    families = _family(now), _family(before)
    if families == ("pointer", "pointer"):
        if _base(now) != _base(before):
            return Difference("dtype", DiffRow(name, _base(now), _base(before)))
        return Difference("alignment", DiffRow(name, _aligned(name, now), _aligned(name, before)))
    if families == ("int", "int"):
        return Difference("integer", DiffRow(name, _integer(name, now), _integer(name, before)))
    kind = "number" if "pointer" not in families else "dtype"
    return Difference(kind, DiffRow(name, _base(now), _base(before)))


def _base(text: str) -> str:
    return text.split(" ")[0]


def _family(text: str) -> str:
    base = _base(text)
    if base.startswith("*"):
        return "pointer"
    return "int" if base[:1] in ("i", "u") and base[1:].isdigit() and base != "u1" else base


def _presence(name: str, text: str) -> str:
    return f"{name} is None" if text == "None" else f"{name} given ({_base(text)})"


def _aligned(name: str, text: str) -> str:
    return f"{name} 16-byte aligned" if "% 16" in text else f"{name} not 16-byte aligned"


def _integer(name: str, text: str) -> str:
    if text.endswith("== 1"):
        said = f"{name} == 1"
    elif text.endswith("% 16 == 0"):
        said = f"{name} % 16 == 0"
    else:
        said = f"any other {name}"
    return f"{said}, 2**31 or more" if _base(text) in ("i64", "u64") else said
