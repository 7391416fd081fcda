"""The operations of `engine.kernels.reference` as Triton kernels."""

from __future__ import annotations

import importlib

from engine.kernels.activation import silu_and_mul
from engine.kernels.attention import attention
from engine.kernels.attention_update import attention_update
from engine.kernels.conv import causal_conv1d, causal_conv1d_update
from engine.kernels.delta_rule import gated_delta_rule
from engine.kernels.delta_rule_update import gated_delta_rule_update
from engine.kernels.experts import experts
from engine.kernels.l2norm import l2_norm
from engine.kernels.norm import add_rms_norm, gated_rms_norm, rms_norm
from engine.kernels.rope import rope_and_store
from engine.kernels.routing import route
from engine.kernels.sampling import SAMPLING_VARIANTS, sample
from engine.kernels.statements import Statement

__all__ = [
    "SAMPLING_VARIANTS",
    "STATEMENTS",
    "add_rms_norm",
    "attention",
    "attention_update",
    "causal_conv1d",
    "causal_conv1d_update",
    "experts",
    "gated_delta_rule",
    "gated_delta_rule_update",
    "gated_rms_norm",
    "l2_norm",
    "rms_norm",
    "rope_and_store",
    "route",
    "sample",
    "silu_and_mul",
]

MODULES = (
    "activation",
    "attention",
    "attention_update",
    "conv",
    "delta_rule",
    "delta_rule_chunks",
    "delta_rule_update",
    "experts",
    "grouped_matmul",
    "l2norm",
    "norm",
    "rope",
    "routing",
    "sampling",
)

# What every kernel says of its variants, by the kernel's name.
STATEMENTS: dict[str, Statement] = {
    kernel: statement
    for name in MODULES
    for kernel, statement in importlib.import_module(f"engine.kernels.{name}").STATEMENTS.items()
}
