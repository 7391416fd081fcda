"""The engine with one line changed, in four ways, and unchanged: targets for `jitwatch sweep`.

Each function gives the engine's own target; the line is changed before the engine is imported.
"""

from __future__ import annotations

from examples.story.change import change_line
from jitwatch.targets.engine import EngineOptions, EngineTarget


def clean() -> EngineTarget:
    """Nothing changed: what the others are compared with."""
    return EngineTarget()


def constexpr_length() -> EngineTarget:
    """The length of the l2norm is a constexpr: a binary for each.

    The decorator's line does it, as Triton refuses a constexpr that is also in
    `do_not_specialize`.
    """
    change_line(
        "engine.kernels.l2norm",
        '@triton.jit(do_not_specialize=["num_tokens"])',
        '@lambda fn: fn.__annotations__.update(num_tokens="tl.constexpr") or triton.jit(fn)',
    )
    return EngineTarget()


def guessed_ladder() -> EngineTarget:
    """Warmup runs two lengths that somebody guessed, not those that the kernels announce."""
    change_line(
        "engine.warmup",
        "for num_tokens, reasons in sorted(starts.items())",
        "for num_tokens, reasons in ((80, {}), (128, {}))",
    )
    return EngineTarget()


def unwarmed_sampler() -> EngineTarget:
    """Warmup leaves out the sampler. Decode is eager: a graph's capture would have run it."""
    change_line(
        "engine.warmup",
        "for params in runner.operations.SAMPLING_VARIANTS:",
        "for params in ():",
    )
    return EngineTarget(EngineOptions(arguments={"cuda_graphs": False}))


def autotuned_by_length() -> EngineTarget:
    """A norm is autotuned, with the length in its key: tuned again for each.

    By stages, since the launch passes `num_warps` itself and Triton takes it only once.
    """
    change_line(
        "engine.kernels.norm",
        '@triton.jit(do_not_specialize=["num_tokens"])',
        "@lambda fn: triton.autotune([triton.Config({}, None, s) for s in (2, 3)], ['num_tokens'])"
        "(triton.jit(fn, do_not_specialize=['num_tokens']))",
    )
    return EngineTarget()
