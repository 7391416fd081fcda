"""Which prompt lengths to serve so that all from 1 to a maximum are accounted for.

Owns the search, the boundaries it found and the assumptions it leans on. Knows no engine, no
device and no report: serving a length is a call, and what loaded late is judged elsewhere.

Triton keys an int by `== 1`, `% 16 == 0` and the rest, so lengths are compared within a residue
mod 16: a *lane*. Where two neighbours of a lane launch different variants, the pair is halved down
to a length that differs from the one 16 below it: a *cut*. A prompt longer than a chunk is `q`
whole chunks and a *rest*; the lengths of one `q` are a *row*, and rests are compared along `q`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import lcm

from jitwatch.events import Boundary, Proof

LANES = 16
#: Grids count blocks of so many tokens; Triton keys a count that is divisible by 16 differently.
BLOCK_SIZES = tuple(2**k for k in range(1, 11))


#: Beyond so many variants a kernel has one a length: all of them would be served, to say the same.
MOST_VARIANTS = 500


class Unprovable(Exception):
    """The lengths launch so many variants that no few of them speak for all."""


@dataclass(frozen=True, slots=True)
class Served:
    """What one request launched: the ids of its variants, and its first prefill step's tokens.

    `chunk_tokens` is None where the target does not say its steps.
    """

    used: frozenset[int]
    chunk_tokens: int | None


def prove(
    serve: Callable[[int], Served],
    max_tokens: int,
    kernel_of: Callable[[int], str],
    told: Callable[[int, int | None], None] | None = None,
) -> Proof:
    """Serve the lengths that speak for all of 1..`max_tokens`, each at most once.

    A boundary is where variants are launched that no shorter prompt launches. `told` hears after
    each request how many were served and about how many there will be, None before that is known.

    Raises:
        Unprovable: more than `MOST_VARIANTS` were launched.
    """
    assert max_tokens >= 1, max_tokens
    search = _Search(serve, max_tokens, told)
    search.used(max_tokens)
    size = min(search.chunk_tokens or max_tokens, max_tokens)
    chunked = size < max_tokens
    search.planned = (1 + chunked) * len(_grid(size)) * 5 // 4
    cuts = search.row(0, size, _grid(size))
    if chunked:
        search.chunks(size, cuts)
        if any(s.chunk_tokens not in (None, min(n, size)) for n, s in search.served.items()):
            chunked = False
            search.row(0, max_tokens, _grid(max_tokens))
    boundaries = _boundaries(search, kernel_of)  # may serve what lies beside one
    return Proof(
        max_tokens=max_tokens,
        chunk_tokens=search.chunk_tokens,
        served=len(search.served),
        boundaries=boundaries,
        assumptions=_assumptions(search, size if chunked else None),
    )


class _Search:
    """The lengths served so far, each once, and what they launched."""

    def __init__(
        self,
        serve: Callable[[int], Served],
        max_tokens: int,
        told: Callable[[int, int | None], None] | None,
    ) -> None:
        self.serve = serve
        self.max_tokens = max_tokens
        self.told = told
        self.planned: int | None = None
        self.served: dict[int, Served] = {}
        self.first: dict[int, int] = {}  # variant: the shortest length seen to launch it

    @property
    def chunk_tokens(self) -> int | None:
        """The longest first step that any request showed."""
        return max((s.chunk_tokens or 0 for s in self.served.values()), default=0) or None

    def used(self, length: int) -> frozenset[int]:
        """The variants that a prompt of `length` launches."""
        if length not in self.served:
            self.served[length] = served = self.serve(length)
            for variant in served.used:
                self.first[variant] = min(length, self.first.get(variant, length))
            if len(self.first) > MOST_VARIANTS:
                raise Unprovable(
                    f"{len(self.served):,} lengths launched {len(self.first):,} variants: mend "
                    "what makes one for each length, then prove"
                )
            if self.told is not None:
                planned = self.planned and max(self.planned, len(self.served))
                self.told(len(self.served), planned)
        return self.served[length].used

    def is_news(self, length: int) -> bool:
        """Whether it launches a variant that no shorter length served so far does."""
        return any(self.first[variant] == length for variant in self.used(length))

    def row(self, start: int, size: int, rests: set[int], *, probed: bool = True) -> set[int]:
        """Settle a row from `rests`, all its ends included, and from its probes; its cuts.

        A probe joins the row only if it launches what nothing shorter does: else each of the
        divisible counts would be settled.
        """
        end = min(start + size, self.max_tokens)
        lengths = {start + rest for rest in rests if start + rest <= end}
        lengths |= set(range(max(start, end - LANES) + 1, end + 1))
        cuts = self.settle(end, lengths)
        if not probed:
            return cuts
        heads = {start + 1} | _heads(cuts)
        probes = {n for head in heads for base in (0, start) for n in _probes(head, base)}
        news = {n for n in sorted(probes) if n <= end and self.is_news(n)}
        return self.settle(end, lengths | news) if news else cuts

    def settle(self, end: int, lengths: set[int]) -> set[int]:
        """Serve `lengths`, all of one row that ends at `end`, and more until every cut is exact."""
        cuts: set[int] = set()
        low = min(lengths)
        while True:
            lanes = defaultdict(list)
            for length in sorted(lengths):
                self.used(length)
                lanes[length % LANES].append(length)
            for lane in lanes.values():
                for pair in pairwise(lane):
                    self.halve(*pair, LANES, lengths, cuts)
            # What is new in one lane may be new in all, and a probe looks at two of them.
            beside = {n for c in _heads(cuts) for n in range(c - LANES + 1, c + LANES)}
            more = {n for n in beside if low <= n <= end} - lengths
            if not more:
                return cuts
            lengths |= more

    def halve(self, low: int, high: int, step: int, lengths: set[int], cuts: set[int]) -> None:
        """Cut where one length between, `step` apart, launches others than the one before."""
        pairs = [(low, high)]
        while pairs:
            low, high = pairs.pop()
            if self.used(low) == self.used(high):
                continue
            if high - low == step:
                cuts.add(high)
                continue
            middle = _middle(low, high, step, cuts)
            lengths.add(middle)
            pairs += [(middle, high), (low, middle)]

    def chunks(self, size: int, cuts: set[int]) -> None:
        """Settle the lengths above `size`, which run in chunks of it; `cuts` are row 0's."""
        second = self.row(size, size, _grid(size) | _sides(cuts, size))
        cuts = cuts | {cut - size for cut in second}
        sides = _sides(cuts, size)
        probed = self.keyed_by_counts(size)
        step = lcm(size, LANES)  # keeps both the rest and the residue
        for q in range(2, min(1 + step // size, (self.max_tokens - 1) // size) + 1):
            self.row(q * size, size, sides, probed=probed)
        for length in sorted(_probes(1, 0)):
            if 2 * size < length <= self.max_tokens and self.is_news(length):
                self.row((length - 1) // size * size, size, sides)
        for q in sorted(self.changing_rows(size, step, cuts)):
            self.row(q * size, size, sides, probed=probed)

    def keyed_by_counts(self, size: int) -> bool:
        """Whether prompts of one chunk launch a variant at divisible counts only."""
        at: dict[bool, set[int]] = {True: set(), False: set()}
        for length in self.served:
            if length <= size:
                at[_has_divisible_count(length)] |= self.used(length)
        return not at[True] <= at[False]

    def changing_rows(self, size: int, step: int, cuts: set[int]) -> set[int]:
        """The rows from which a rest launches other variants, by the last rests before cuts.

        The last row may end before such a rest: what it ends with stands for it there.
        """
        lasts = {cut - LANES for cut in cuts} | set(range(max(0, size - LANES) + 1, size + 1))
        changes: set[int] = set()
        for rest in sorted(lasts):
            for low in range(2 * size + rest, min(2 * size + step, self.max_tokens) + 1, size):
                high = low + (self.max_tokens - low) // step * step
                self.halve(low, high, step, set(), changes)
        for length in range(max(0, self.max_tokens - LANES) + 1, self.max_tokens + 1):
            rest = (length - 1) % size + 1
            last = min(n for n in lasts if n >= rest and (n - rest) % LANES == 0)
            before = length - rest + last - step
            if last > rest and before > 2 * size and self.used(before) != self.used(length):
                changes.add(length)
        return {(length - 1) // size for length in changes}


def _grid(end: int) -> set[int]:
    """All lanes at about four places an octave, above 128 tokens without a divisible count."""
    starts = [0, 16, 32, 48, *(n << k for k in range(4, end.bit_length()) for n in (4, 5, 6, 7))]
    return {n for start in starts for n in range(start + 1, min(start + LANES, end) + 1)}


def _probes(head: int, base: int) -> set[int]:
    """Lengths from `head` on that stand for the divisible counts of blocks after `base`.

    The last two lengths, one divisible by 16 and one not, of the first two such counts; blocks of
    one token are among them, as every other length of a lane may have a divisible count.
    """
    found = set()
    for period in (LANES * size for size in (1, *BLOCK_SIZES)):
        nth = base + -(-(head - base) // period) * period
        found |= {nth - 1, nth, nth + period - 1, nth + period}
    return found


def _has_divisible_count(length: int) -> bool:
    return any(-(-length // size) % LANES == 0 for size in BLOCK_SIZES)


def _middle(low: int, high: int, step: int, cuts: set[int]) -> int:
    """Where to halve: at another lane's cut, else as central as may be.

    A divisible count is no good: it may look like a change where there is none.
    """
    for cut in sorted(cuts):
        near = cut - (cut - low) % step
        for length in (near, near - step, near + step):
            if low < length < high:
                return length
    between = range(low + step, high, step)
    return min(between, key=lambda n: (_has_divisible_count(n), abs(2 * n - low - high)))


def _heads(cuts: set[int]) -> set[int]:
    """The first of the lanes' cuts at each threshold."""
    return {cut for cut in cuts if cut - 1 not in cuts}


def _sides(cuts: set[int], size: int) -> set[int]:
    """The rests on both sides of each cut, and the first and last of each lane."""
    ends = {*range(1, min(LANES, size) + 1), *range(max(0, size - LANES) + 1, size + 1)}
    return ends | cuts | {cut - LANES for cut in cuts}


def _boundaries(search: _Search, kernel_of: Callable[[int], str]) -> tuple[Boundary, ...]:
    """All kernels' thresholds; those at one place for the same residues are one boundary."""
    firsts: dict[str, dict[int, int]] = defaultdict(dict)
    for variant, length in search.first.items():
        firsts[kernel_of(variant)][variant] = length
    kernels_at = defaultdict(list)
    for kernel, first in sorted(firsts.items()):
        for place in _thresholds(search, first):
            kernels_at[place].append(kernel)
    places = sorted(kernels_at.items())
    return tuple(Boundary(length, residues, tuple(names)) for (length, residues), names in places)


def _thresholds(search: _Search, first: Mapping[int, int]) -> list[tuple[int, tuple[int, ...]]]:
    """One kernel's thresholds and their residues; `first` is each variant's first length."""
    found = []
    left = {variant for variant, length in first.items() if length > 1}
    while left:
        start = min(first[variant] for variant in left)
        fresh = {variant for variant, length in first.items() if length >= start}
        window = range(start, min(start + LANES - 1, search.max_tokens) + 1)
        news = {n: search.used(n) & fresh for n in window}
        # The first of a lane replaces nothing: it belongs here only if it launches the same.
        joined = [n for n in window if news[n] & (news[start] if start <= LANES else fresh)]
        left -= frozenset().union(*(news[n] for n in joined))
        residues = () if len(joined) == len(window) else tuple(sorted(n % LANES for n in joined))
        found.append((start, residues))
    return found


def _assumptions(search: _Search, chunk: int | None) -> tuple[str, ...]:
    """What the claim for all lengths leans on beside the lengths served."""
    found = [
        "what a request launches does not depend on the requests before it",
        "nor on its tokens' values",
        "nor on other requests at the same time: each was served alone",
    ]
    if len(search.served) == search.max_tokens:
        return tuple(found)
    found += [
        "between two served lengths of one residue mod 16 that launch the same variants, every "
        "length of that residue does",
        "but where a count of blocks of 2, 4, 8, … or 1,024 tokens is divisible by 16: the last "
        "two lengths of the first two such counts after a boundary speak for those up to the next",
    ]
    if chunk is not None:
        found += [
            f"a prompt longer than {chunk:,} tokens is run in chunks of {chunk:,}, as its steps "
            "showed",
            "of the rests that launch the same variants after one chunk, the longest of each "
            "residue speaks for all of them after more chunks",
            "between two numbers of chunks after which such a rest launches the same variants, it "
            "does after every number",
        ]
    elif search.chunk_tokens is None:
        found.append("a prompt is run in one step, however long: the target does not say its steps")
    return tuple(found)
