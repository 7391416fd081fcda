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
    """The l2norm's length as a constexpr, as the public pull request found it."""
    change_line(
        "engine.kernels.l2norm",
        "num_tokens,",
        "num_tokens: tl.constexpr,",
        after="def l2norm_kernel(",
    )
    return EngineTarget()


def guessed_ladder() -> EngineTarget:
    """Warmup at two lengths that somebody guessed."""
    change_line(
        "engine.warmup",
        "for num_tokens, reasons in sorted(starts.items())",
        "for num_tokens, reasons in ((80, {}), (128, {}))",
    )
    return EngineTarget()


def unwarmed_sampler() -> EngineTarget:
    """Warmup without the sampler; decode is eager, as a graph's capture would run it."""
    change_line(
        "engine.warmup",
        "for params in runner.operations.SAMPLING_VARIANTS:",
        "for params in ():",
    )
    return EngineTarget(EngineOptions(arguments={"cuda_graphs": False}))


def autotuned_by_length() -> EngineTarget:
    """A kernel that is autotuned for every length."""
    change_line(
        "engine.kernels.norm",
        '@triton.jit(do_not_specialize=["num_tokens"])',
        "@lambda fn: triton.autotune([triton.Config({}, None, s) for s in (2, 3)], ['num_tokens'])"
        "(triton.jit(fn, do_not_specialize=['num_tokens']))",
    )
    return EngineTarget()
