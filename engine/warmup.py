"""Warmup: what runs before the engine is ready, so that no request meets a kernel's first launch.

Owns the ladder, which it derives from what each kernel says of itself for this model
(`engine.kernels.statements`), and the passes over it. Whatever a request can reach is run: a
prompt of each rung, what continues a cached prefix, a decode, the sampler, and the projections at
every size for which cuBLAS has another kernel. Does not know how requests are served.
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


def library_sizes(longest: int) -> list[int]:
    """The token counts up to `longest` at which cuBLAS may take another kernel for a projection.

    Source: over 11 … 2,560 tokens on an H200 (torch 2.11, CUDA 13.0) every one of 237 loads of
    cuBLAS's came at 8k or at 8k + 1 (docs/decisions.md, 17). Fewer than 16 are cheap to run all.
    """
    sizes = {*range(1, 17), *range(8, longest + 1, 8), *range(9, longest + 1, 8), longest}
    return sorted(size for size in sizes if size <= longest)


@torch.inference_mode()
def warm_projections(runner: Runner, longest: int) -> None:
    """Run each shape of projection alone at all of `library_sizes`."""
    sizes, linears = library_sizes(longest), runner.model.linears()
    log.info("warmup: %d projections at %d sizes: cuBLAS", len(linears), len(sizes))
    for linear in linears:
        weight = linear.weight
        x = torch.empty((longest, weight.shape[1]), dtype=weight.dtype, device=weight.device)
        for size in sizes:
            linear(x[:size])


def warm_up(
    runner: Runner, pool: PagePool, ladder: tuple[Rung, ...], longest: int, most: int
) -> None:
    """Run everything that a request can reach, once for each variant.

    `longest` is the most tokens that a sequence can have, `most` that a forward is warmed up for.
    The caller captures decode graphs afterwards: what a capture meets must be warm.
    """
    for rung in ladder:
        log.info("warmup: %d tokens: %s", rung.num_tokens, "; ".join(rung.reasons))
        run(runner, pool, (rung.num_tokens,))
    for chunks in CONTINUATIONS:
        if sum(chunks) <= longest:
            run(runner, pool, chunks)
    warm_projections(runner, most)


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
