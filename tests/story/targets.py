"""Targets around the story's faults: near misses, and the changed kernels alone.

A near miss changes a line in the same way where it does no harm, or the same line where something
else makes up for it.
"""

from __future__ import annotations

import importlib

import torch

from examples.story import faults
from examples.story.change import change_line
from jitwatch.targets.engine import EngineOptions, EngineTarget


def constexpr_stride():
    """What a model fixes, not a prompt, is a constexpr."""
    change_line(
        "engine.kernels.l2norm",
        "head_stride,",
        "head_stride: tl.constexpr,",
        after="def l2norm_kernel(",
    )
    return EngineTarget()


def lucky_ladder():
    """Guessed lengths, one in the reach of each tile."""
    change_line(
        "engine.warmup",
        "for num_tokens, reasons in sorted(starts.items())",
        "for num_tokens, reasons in ((80, {}), (300, {}), (4096, {}))",
    )
    return EngineTarget()


def captured_sampler():
    """Warmup leaves the sampler out, and the capture of decode runs it."""
    faults.unwarmed_sampler()
    return EngineTarget()


def eager():
    """The options of `unwarmed_sampler` without its line."""
    return EngineTarget(EngineOptions(arguments={"cuda_graphs": False}))


def autotuned_by_width():
    """What a model fixes is in the tuning key."""
    change_line(
        "engine.kernels.norm",
        '@triton.jit(do_not_specialize=["num_tokens"])',
        "@lambda fn: triton.autotune([triton.Config({}, None, s) for s in (2, 3)], ['DIM'])"
        "(triton.jit(fn, do_not_specialize=['num_tokens']))",
    )
    return EngineTarget()


class OneKernel:
    """An operation on the heads of as many tokens as asked for, warmed up with one."""

    def __init__(self, run):
        self.run = run

    def warmup(self):
        self.run(heads(1))

    def serve(self, request):
        self.run(heads(request.prompt_tokens))


def heads(num_tokens):
    return torch.empty((num_tokens, 32, 128), dtype=torch.bfloat16, device="cuda")


def constexpr_length_alone():
    faults.constexpr_length()
    return OneKernel(importlib.import_module("engine.kernels.l2norm").l2_norm)


def autotuned_by_length_alone():
    faults.autotuned_by_length()
    norm = importlib.import_module("engine.kernels.norm").gated_rms_norm
    weight = torch.empty((128,), dtype=torch.bfloat16, device="cuda")
    return OneKernel(lambda x: norm(x, x, weight, 1e-6))
