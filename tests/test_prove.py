"""The search against engines that are functions of the length, checked by brute force."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from functools import cache

import pytest

from jitwatch.events import Boundary, Proof
from jitwatch.prove import Served, prove

#: What a kernel is keyed by in a step of `tokens` behind `context`; None: it isn't launched.
Key = Callable[[int, int], Hashable]

MAX = 262_144
CHUNK = 8192
ALONE = (
    "what a request launches does not depend on the requests before it",
    "nor on its tokens' values",
    "nor on other requests at the same time: each was served alone",
)
BETWEEN = (
    "between two served lengths of one residue mod 16 that launch the same variants, every "
    "length of that residue does"
)
COUNTS = (
    "but where a count of blocks of 2, 4, 8, … or 1,024 tokens is divisible by 16: the last two "
    "lengths of the first two such counts after a boundary speak for those up to the next"
)


class Engine:
    """Launches every kernel in every step of a prompt, in chunks where `chunk` is given."""

    def __init__(self, chunk: int | None = None, *, says: bool = True, **kernels: Key) -> None:
        self.chunk = chunk
        self.says = says
        self.kernels = kernels
        self.ids: dict[tuple[str, Hashable], int] = {}
        self.served: dict[int, frozenset[int]] = {}

    def used(self, length: int) -> frozenset[int]:
        size = self.chunk or length
        keys = {
            (name, key(min(size, length - context), context))
            for context in range(0, length, size)
            for name, key in self.kernels.items()
        }
        launched = [key for key in keys if key[1] is not None]
        return frozenset(self.ids.setdefault(key, len(self.ids)) for key in launched)

    def serve(self, length: int) -> Served:
        assert length not in self.served, f"{length} is served twice"
        self.served[length] = self.used(length)
        return Served(self.served[length], min(length, self.chunk or length) if self.says else None)

    def kernel_of(self, variant: int) -> str:
        return list(self.ids)[variant][0]

    def prove(self, max_tokens: int) -> Proof:
        return prove(self.serve, max_tokens, self.kernel_of)


def table(*thresholds: int) -> Key:
    return lambda tokens, context: sum(tokens >= threshold for threshold in thresholds)


def triton_class(value: int) -> str:
    return "== 1" if value == 1 else "% 16 == 0" if value % 16 == 0 else "any"


def cdiv(value: int, size: int) -> int:
    return -(-value // size)


NOT_16 = tuple(range(1, 16))


def faults(engine: Engine, proof: Proof) -> list[str]:
    """What brute force has against the union of what was served, and against each boundary."""
    used = {length: engine.used(length) for length in range(1, proof.max_tokens + 1)}
    first: dict[int, int] = {}
    for length, variants in used.items():
        for variant in variants:
            first.setdefault(variant, length)
    found = [
        f"{engine.kernel_of(variant)} at {length} is missed"
        for variant, length in first.items()
        if variant not in frozenset().union(*engine.served.values())
    ]
    places: dict[str, set[int]] = {}
    for boundary in proof.boundaries:
        start = boundary.prompt_tokens
        window = range(start, min(start + 15, proof.max_tokens) + 1)
        for kernel in boundary.kernels:
            places.setdefault(kernel, set()).update(window)
            own = {v for v in first if engine.kernel_of(v) == kernel}
            fresh = {variant for variant in own if first[variant] >= start}
            starting = {variant for variant in own if first[variant] == start}
            if not starting:
                found.append(f"nothing of {kernel} begins at {start}")
            changed = {n % 16 for n in window if used[n] & (starting if start <= 16 else fresh)}
            if changed != set(boundary.residues or (n % 16 for n in window)):
                found.append(f"{kernel} at {start}: {sorted(changed)}, not {boundary.residues}")
    found += [
        f"{engine.kernel_of(variant)} at {length} is in no boundary"
        for variant, length in first.items()
        if length > 1 and length not in places.get(engine.kernel_of(variant), ())
    ]
    return found


def test_no_boundary() -> None:
    engine = Engine(CHUNK, k=lambda tokens, context: 0)
    proof = engine.prove(MAX)
    assert proof == Proof(
        max_tokens=MAX,
        chunk_tokens=CHUNK,
        served=len(engine.served),
        boundaries=(),
        assumptions=(
            *ALONE,
            BETWEEN,
            COUNTS,
            "a prompt longer than 8,192 tokens is run in chunks of 8,192, as its steps showed",
            "of the rests that launch the same variants after one chunk, the longest of each "
            "residue speaks for all of them after more chunks",
            "between two numbers of chunks after which such a rest launches the same variants, "
            "it does after every number",
        ),
    )
    assert set(range(MAX - 15, MAX + 1)) <= set(engine.served)


def test_thresholds_cost_few_and_short_requests() -> None:
    engine = Engine(CHUNK, k=table(257, 2049))
    proof = engine.prove(MAX)
    assert proof.boundaries == (Boundary(257, (), ("k",)), Boundary(2049, (), ("k",)))
    assert proof.served < 1400
    assert sum(engine.served) < 21_000_000
    # The last rest of three kinds in sixteen lanes; those of the last kind are MAX-15..MAX.
    assert sum(length > 5 * CHUNK for length in engine.served) == 48


def test_thresholds_without_chunks() -> None:
    engine = Engine(k=table(257, 2049, 100_000))
    proof = engine.prove(MAX)
    starts = [(b.prompt_tokens, b.residues) for b in proof.boundaries]
    assert starts == [(257, ()), (2049, ()), (100_000, ())]
    assert proof.chunk_tokens == MAX
    assert proof.assumptions == (*ALONE, BETWEEN, COUNTS)
    assert proof.served < 1000


def test_a_threshold_off_the_grid_is_exact_and_one_for_all_residues() -> None:
    engine = Engine(
        k=lambda tokens, context: (tokens >= 3333, triton_class(tokens)),
        other=table(3333),
        near=table(3340),
    )
    proof = engine.prove(5000)
    assert proof.boundaries == (
        Boundary(2, NOT_16, ("k",)),
        Boundary(16, (0,), ("k",)),
        Boundary(3333, (), ("k", "other")),
        Boundary(3340, (), ("near",)),
    )
    assert faults(engine, proof) == []


def test_a_length_divisible_by_16() -> None:
    proof = Engine(CHUNK, k=lambda tokens, context: tokens % 16 == 0).prove(20_000)
    assert proof.boundaries == (Boundary(16, (0,), ("k",)),)


def test_a_length_of_one() -> None:
    proof = Engine(CHUNK, k=lambda tokens, context: tokens == 1).prove(20_000)
    assert proof.boundaries == (Boundary(2, (), ("k",)),)


def test_a_rest_of_one_is_a_kind_of_its_own_behind_every_number_of_chunks() -> None:
    engine = Engine(
        256, k=lambda tokens, context: tokens == 1 and ("long" if context >= 2500 else "short")
    )
    assert engine.prove(5000).boundaries == (
        Boundary(2, (), ("k",)),
        Boundary(2561, (1,), ("k",)),
    )


@pytest.mark.parametrize("chunk", [None, CHUNK])
def test_a_boundary_for_one_residue_only(chunk: int | None) -> None:
    engine = Engine(chunk, k=lambda tokens, context: tokens >= 1000 and tokens % 16 == 5)
    assert engine.prove(MAX).boundaries == (Boundary(1013, (5,), ("k",)),)


def test_buckets_of_powers_of_two() -> None:
    engine = Engine(k=lambda tokens, context: (tokens - 1).bit_length())
    proof = engine.prove(MAX)
    assert proof.boundaries == (
        Boundary(2, (2,), ("k",)),
        Boundary(3, (3, 4), ("k",)),
        Boundary(5, (5, 6, 7, 8), ("k",)),
        Boundary(9, (0, *range(9, 16)), ("k",)),
        *(Boundary(2**i + 1, (), ("k",)) for i in range(4, 18)),
    )
    assert proof.served < 1300


@pytest.mark.parametrize("chunk", [None, 1024, 1000])
def test_a_threshold_at_the_last_length(chunk: int | None) -> None:
    engine = Engine(chunk, k=lambda tokens, context: tokens + context >= 5000)
    assert engine.prove(5000).boundaries == (Boundary(5000, (), ("k",)),)


@pytest.mark.parametrize("chunk", [None, 8, 64])
@pytest.mark.parametrize("max_tokens", [1, 5, 16, 17, 100])
def test_all_of_a_short_range_is_served(max_tokens: int, chunk: int | None) -> None:
    engine = Engine(
        chunk,
        k=lambda tokens, context: (triton_class(tokens), context > 0),
        n=lambda tokens, context: tokens + context >= 90,
    )
    proof = engine.prove(max_tokens)
    assert faults(engine, proof) == []
    if chunk is None:
        assert sorted(engine.served) == list(range(1, max_tokens + 1))
        assert proof.assumptions == ALONE
        assert [b.prompt_tokens for b in proof.boundaries] == [
            n for n in (2, 16, 90) if n <= max_tokens
        ]


def test_a_short_rest_behind_a_chunk() -> None:
    engine = Engine(
        CHUNK,
        k=table(257),
        tail=lambda tokens, context: "split" if context and tokens < 40 else "whole",
        context=lambda tokens, context: bool(context),
    )
    assert engine.prove(MAX).boundaries == (
        Boundary(257, (), ("k",)),
        Boundary(8193, (), ("context", "tail")),
    )


def test_a_threshold_that_only_a_rest_has() -> None:
    engine = Engine(CHUNK, k=lambda tokens, context: bool(context) and tokens + 7 >= 1000)
    # A second whole chunk launches it too, so that is all.
    assert engine.prove(MAX).boundaries == (Boundary(8192 + 993, (), ("k",)),)


def test_a_rest_that_returns_to_known_variants() -> None:
    engine = Engine(CHUNK, k=lambda tokens, context: context > 0 and 2100 <= tokens < 4000)
    assert engine.prove(MAX).boundaries == (Boundary(CHUNK + 2100, (), ("k",)),)


def test_a_narrow_kind_of_the_first_chunk_is_looked_at_behind_one_too() -> None:
    engine = Engine(
        CHUNK,
        first=lambda tokens, context: None if context else table(5000, 5040)(tokens, 0),
        rest=lambda tokens, context: True if context and 5000 <= tokens < 5040 else None,
    )
    assert engine.prove(MAX).boundaries == (
        Boundary(5000, (), ("first",)),
        Boundary(5040, (), ("first",)),
        Boundary(CHUNK + 5000, (), ("rest",)),
    )


def test_a_kind_that_only_rests_have_is_followed_along_the_chunks() -> None:
    engine = Engine(
        CHUNK,
        k=lambda tokens, context: (
            context > 0 and tokens >= 1000,
            context > 0,
            tokens + context >= 12 * CHUNK + 5000,
        ),
    )
    assert [b.prompt_tokens for b in engine.prove(MAX).boundaries] == [
        CHUNK + 1,
        CHUNK + 1000,
        12 * CHUNK + 5000,
        13 * CHUNK + 1,
    ]


def test_a_context_threshold_is_exact_whatever_the_rest() -> None:
    engine = Engine(
        CHUNK,
        k=lambda tokens, context: (tokens >= 257, tokens >= 2049, tokens + context >= 100_000),
        context=lambda tokens, context: tokens + context >= 100_000,
    )
    # 100,000 is 12 chunks and 1,696: rests of 257 to 2,048 are there first, then longer ones,
    # and the shortest after the next chunk.
    assert engine.prove(MAX).boundaries == (
        Boundary(257, (), ("k",)),
        Boundary(2049, (), ("k",)),
        Boundary(100_000, (), ("context", "k")),
        Boundary(12 * CHUNK + 2049, (), ("k",)),
        Boundary(13 * CHUNK + 1, (), ("k",)),
    )
    assert len(engine.served) < 2000


def test_a_context_threshold_beyond_the_last_rest_of_its_kind() -> None:
    engine = Engine(1024, k=lambda tokens, context: (tokens >= 257, tokens + context >= 4380))
    # The last row, 4,097 to 4,400, ends before the longest rest of the second kind.
    assert engine.prove(4400).boundaries == (
        Boundary(257, (), ("k",)),
        Boundary(4380, (), ("k",)),
    )


@pytest.mark.parametrize("chunk", [None, CHUNK])
def test_a_count_of_blocks_divisible_by_16(chunk: int | None) -> None:
    engine = Engine(chunk, k=lambda tokens, context: triton_class(cdiv(tokens, 64)))
    proof = engine.prove(MAX)
    assert proof.boundaries == (Boundary(65, (), ("k",)), Boundary(961, (), ("k",)))
    assert proof.served < 1600
    assert sum(engine.served) < 40_000_000


def test_counts_of_blocks_are_probed_behind_every_boundary() -> None:
    engine = Engine(k=lambda tokens, context: (tokens >= 5000, triton_class(cdiv(tokens, 64))))
    starts = [b.prompt_tokens for b in engine.prove(MAX).boundaries]
    assert starts == [65, 961, 5000, 5120 - 63]


def test_counts_of_two_block_sizes_are_told_apart() -> None:
    engine = Engine(
        k=lambda tokens, context: (
            tokens >= 1500,
            triton_class(cdiv(tokens, 64)),
            triton_class(cdiv(tokens, 128)),
        )
    )
    proof = engine.prove(6000)
    # 2,048 is divisible for both, 3,072 for blocks of 64 only.
    assert [b.prompt_tokens for b in proof.boundaries][-4:] == [1500, 1921, 1985, 3009]
    assert faults(engine, proof) == []


@pytest.mark.parametrize("counts_context", [False, True])
def test_counts_of_a_rest_and_of_a_context_are_probed_behind_a_chunk(counts_context: bool) -> None:
    engine = Engine(
        1000,
        k=lambda tokens, context: (
            context > 0 and tokens >= 300,
            triton_class(cdiv(tokens + counts_context * context, 16)),
        ),
    )
    proof = engine.prove(5000)
    first = 1521 if counts_context else 1000 + 497
    assert Boundary(first, (), ("k",)) in proof.boundaries
    assert faults(engine, proof) == []


@pytest.mark.parametrize("chunk", [1536, 1100])
def test_a_count_that_is_first_divisible_in_the_midst_of_a_later_row(chunk: int) -> None:
    engine = Engine(chunk, k=lambda tokens, context: triton_class(cdiv(tokens + context, 256)))
    assert engine.prove(7000).boundaries == (
        Boundary(257, (), ("k",)),
        Boundary(3841, (), ("k",)),
    )


def test_a_divisible_count_is_seen_where_a_length_divisible_by_16_launches_nothing() -> None:
    engine = Engine(
        k=lambda tokens, context: triton_class(cdiv(tokens, 64)) if tokens % 16 else None
    )
    assert engine.prove(9000).boundaries == (
        Boundary(65, NOT_16, ("k",)),
        Boundary(961, NOT_16, ("k",)),
    )


def test_counts_are_probed_behind_a_context_threshold_where_they_matter() -> None:
    engine = Engine(
        1024,
        k=lambda tokens, context: (triton_class(cdiv(tokens, 16)), tokens + context >= 5420),
    )
    assert engine.prove(9000).boundaries == (
        Boundary(17, (), ("k",)),
        Boundary(241, (), ("k",)),
        Boundary(5420, (), ("k",)),
        Boundary(5 * 1024 + 497, (), ("k",)),
        Boundary(6 * 1024 + 1, (), ("k",)),
    )


def test_a_count_of_small_blocks_alternates_within_a_lane() -> None:
    engine = Engine(k=lambda tokens, context: (tokens >= 3000, triton_class(cdiv(tokens, 2))))
    proof = engine.prove(6000)
    assert proof.boundaries == (
        Boundary(3, (), ("k",)),
        Boundary(31, (0, 15), ("k",)),
        Boundary(3000, (), ("k",)),  # 3,007 and 3,008 too
    )
    assert faults(engine, proof) == []


def test_a_chunk_that_is_no_multiple_of_16() -> None:
    engine = Engine(1000, k=table(257), n=lambda tokens, context: triton_class(tokens + context))
    proof = engine.prove(6000)
    assert proof.chunk_tokens == 1000
    assert proof.boundaries == (
        Boundary(2, NOT_16, ("n",)),
        Boundary(16, (0,), ("n",)),
        Boundary(257, (), ("k",)),
    )


def test_a_residue_of_the_length_that_a_rest_meets_after_some_chunks_only() -> None:
    engine = Engine(101, k=lambda tokens, context: tokens == 1 and triton_class(tokens + context))
    proof = engine.prove(8000)
    # 3 chunks and 1: 304, divisible by 16, which a rest of one meets once in sixteen chunks.
    assert Boundary(304, (0,), ("k",)) in proof.boundaries
    assert faults(engine, proof) == []


def test_a_lane_whose_every_other_length_has_a_divisible_count() -> None:
    engine = Engine(
        512,
        k=lambda tokens, context: (
            table(342, 471)(tokens, 0),
            context > 0,
            triton_class(cdiv(tokens, 2)),
            triton_class(tokens + context),
        ),
    )
    assert faults(engine, engine.prove(1117)) == []


def test_a_return_to_known_variants_is_no_boundary() -> None:
    engine = Engine(k=lambda tokens, context: 257 <= tokens < 2049)
    proof = engine.prove(5000)
    assert proof.boundaries == (Boundary(257, (), ("k",)),)
    assert {2048, 2049} <= set(engine.served)


def test_steps_that_contradict_the_chunk_make_one_axis_of_all() -> None:
    engine = Engine(k=table(257, 3333))

    def serve(length: int) -> Served:
        return Served(engine.serve(length).used, cdiv(length, cdiv(length, 1024)))

    proof = prove(serve, 5000, engine.kernel_of)
    assert [b.prompt_tokens for b in proof.boundaries] == [257, 3333]
    assert proof.assumptions == (*ALONE, BETWEEN, COUNTS)
    assert proof.chunk_tokens == 1024


def test_a_target_that_does_not_say_its_steps() -> None:
    proof = Engine(says=False, k=table(257)).prove(5000)
    assert (proof.chunk_tokens, proof.boundaries) == (None, (Boundary(257, (), ("k",)),))
    assert proof.assumptions == (
        *ALONE,
        BETWEEN,
        COUNTS,
        "a prompt is run in one step, however long: the target does not say its steps",
    )


def test_what_breaks_an_assumption_is_missed_and_the_assumption_is_listed() -> None:
    engine = Engine(k=lambda tokens, context: tokens == 5003)
    proof = engine.prove(MAX)
    assert 5003 not in engine.served
    assert proof.boundaries == ()
    assert BETWEEN in proof.assumptions
    assert BETWEEN not in Engine(k=lambda tokens, context: 0).prove(100).assumptions


def test_progress_is_told_after_each_request() -> None:
    engine = Engine(CHUNK, k=lambda tokens, context: (tokens - 1).bit_length())
    told: list[tuple[int, int | None]] = []
    proof = prove(engine.serve, MAX, engine.kernel_of, lambda *now: told.append(now))
    assert [served for served, _ in told] == list(range(1, proof.served + 1))
    assert told[:2] == [(1, None), (2, 1280)]
    assert [planned for _, planned in told[1:]] == [max(1280, n) for n, _ in told[1:]]
    assert proof.served > 1280


def thresholds_below(chance: random.Random, limit: int, most: int) -> list[int]:
    found: list[int] = []
    for _ in range(chance.randint(0, most)):
        threshold = chance.randint(2, limit)
        if all(abs(threshold - other) >= 32 for other in found):
            found.append(threshold)
    return found


def random_kernel(chance: random.Random, step_tokens: int, max_tokens: int) -> Key:
    """A kernel keyed by a table of its tokens and by some of what engines key by."""
    parts: list[Key] = [table(*thresholds_below(chance, step_tokens, 3))]
    only = None
    if chance.random() < 0.4:
        parts.append(lambda tokens, context: context > 0)
    if chance.random() < 0.4:
        parts.append(lambda tokens, context: triton_class(tokens))
    if chance.random() < 0.4:
        size = 2 ** chance.randint(1, 10)
        parts.append(lambda tokens, context: triton_class(cdiv(tokens, size)))
    elif chance.random() < 0.3:
        only = chance.randrange(16)
    if chance.random() < 0.4:
        long = table(*thresholds_below(chance, max_tokens, 2))
        parts.append(lambda tokens, context: long(tokens + context, 0))
    elif chance.random() < 0.3:
        parts.append(lambda tokens, context: triton_class(tokens + context))

    @cache
    def key(tokens: int, context: int) -> Hashable:
        if only not in (None, tokens % 16):
            return None
        return tuple(part(tokens, context) for part in parts)

    return key


@pytest.mark.parametrize("seed", range(200))
def test_what_was_served_speaks_for_all_of_a_random_engine(seed: int) -> None:
    chance = random.Random(seed)
    max_tokens = chance.randint(100, 3000)
    chunk = chance.choice([None, None, 100, 128, 256, 512, 768, 1000, 1024, 2048])
    step_tokens = min(chunk or max_tokens, max_tokens)
    kernels = {
        f"k{i}": random_kernel(chance, step_tokens, max_tokens) for i in range(chance.randint(1, 3))
    }
    engine = Engine(chunk, **kernels)
    assert faults(engine, engine.prove(max_tokens)) == []
