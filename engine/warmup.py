"""Warmup: what runs before the engine is ready, so that no request meets a kernel's first launch.

Owns the ladder, which it derives from what each kernel says of itself for this model
(`engine.kernels.statements`), and the passes over it. Whatever a request can reach is run: a
prompt of each rung, what continues a cached prefix, a decode, the sampler. Does not know how
requests are served.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine.batch import Chunk
from engine.kernels.statements import Shapes, Statement
from engine.kv_cache import PagePool
from engine.request import SamplingParams, Sequence
from engine.runner import SCRATCH_SLOT, Runner
from engine.sampler import make_sampling_tensors

log = logging.getLogger("engine")

# A prefix and what continues it: several tokens, and one alone, which is a decode.
CONTINUATIONS = ((1, 2), (1, 1))


@dataclass(frozen=True, slots=True)
class Rung:
    """A number of prompt tokens that warmup runs, and why."""

    num_tokens: int
    reasons: tuple[str, ...]


def make_ladder(
    statements: Mapping[str, Statement], shapes: Shapes, longest: int
) -> tuple[Rung, ...]:
    """The fewest prompts, ascending, that launch every variant that the kernels announce.

    `longest` is the most tokens that a forward can have; variants that begin beyond it are left
    out.
    """
    starts: dict[int, dict[str, list[str]]] = {1: {}}
    for kernel, statement in statements.items():
        for start in statement(shapes):
            starts.setdefault(start.num_tokens, {}).setdefault(start.why, []).append(kernel)
    return tuple(
        Rung(num_tokens, tuple(f"{', '.join(sorted(k))}: {why}" for why, k in reasons.items()))
        for num_tokens, reasons in sorted(starts.items())
        if num_tokens <= longest
    )


def warm_up(runner: Runner, pool: PagePool, ladder: tuple[Rung, ...], longest: int) -> None:
    """Run everything that a request can reach, once for each variant.

    `longest` is the most tokens that a sequence can have. The caller captures decode graphs
    afterwards: what a capture meets must be warm.
    """
    for rung in ladder:
        log.info("warmup: %d tokens: %s", rung.num_tokens, "; ".join(rung.reasons))
        run(runner, pool, (rung.num_tokens,))
    for chunks in CONTINUATIONS:
        if sum(chunks) <= longest:
            run(runner, pool, chunks)


@torch.inference_mode()
def run(runner: Runner, pool: PagePool, chunks: tuple[int, ...]) -> None:
    """Run a prompt of zeros in these chunks, and draw from the last in every way there is."""
    total = sum(chunks)
    sequence = Sequence([0] * total, total, SamplingParams(), 0, state_index=SCRATCH_SLOT)
    sequence.pages = pool.take(total)
    for num_tokens in chunks:
        batch = runner.batch([Chunk(sequence, num_tokens)])
        logits = runner.logits(batch)
        sequence.num_cached += num_tokens
    for params in runner.operations.SAMPLING_VARIANTS:
        sequence.params = SamplingParams(**params)
        token, _ = runner.draw(logits, batch, make_sampling_tensors([sequence], runner.device))
        token.item()
    pool.give_back(sequence.pages)
