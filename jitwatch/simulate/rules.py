"""How each torch function treats values, told from its name.

Owns the classification: which functions write in place, which produce values nobody
knows, which are custom operators. Knows no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket


def _words(names: str) -> frozenset[str]:
    return frozenset(names.split())


#: Results of these have no value: uninitialized, or drawn at random on the device.
_VALUELESS = _words(
    "empty empty_like empty_strided empty_permuted new_empty new_empty_strided empty_quantized "
    "rand rand_like randn randn_like randint randint_like randperm normal uniform bernoulli "
    "multinomial poisson binomial random cauchy exponential geometric log_normal dropout "
    "alpha_dropout feature_dropout native_dropout rrelu kaiming_uniform kaiming_normal "
    "xavier_uniform xavier_normal trunc_normal resize resize_as"
)

#: These use of their tensor argument the dtype or the shape, never the values.
_LIKE = _words("zeros_like ones_like full_like new_zeros new_ones new_full new_tensor")

#: In-place functions whose result does not depend on what was there before.
_OVERWRITES = frozenset(("fill_", "zero_", "copy_"))

#: End in an underscore, yet change no value.
_METADATA_ONLY = _words(
    "requires_grad_ detach_ unsqueeze_ squeeze_ t_ transpose_ swapaxes_ swapdims_ as_strided_ "
    "set_ rename_ share_memory_ retain_grad_"
)

_IN_PLACE_OPERATORS = frozenset(
    f"__i{name}__"
    for name in _words("add sub mul truediv floordiv mod pow and or xor lshift rshift matmul")
)

_TORCH_NAMESPACES = frozenset(("aten", "prims", "prim", "quantized", "_c10d_functional"))


@dataclass(frozen=True, slots=True)
class Rule:
    """What a function does to values.

    `writes`: it changes its first argument; `overwrites`: whatever that held before.
    `valueless`: what it writes or returns is unknown. `like`: the values of its tensor
    arguments don't matter. `custom`: an operator of some library's own namespace.
    """

    name: str
    writes: bool = False
    overwrites: bool = False
    valueless: bool = False
    like: bool = False
    custom: bool = False


#: The rules worked out so far.
rules: dict[object, Rule] = {}


def rule_of(func: Any) -> Rule:
    """The rule of a torch function, worked out once."""
    rule = rules.get(func)
    if rule is None:
        rule = rules[func] = _classify(func)
    return rule


def _classify(func: Any) -> Rule:
    namespace, name = "aten", getattr(func, "__name__", type(func).__name__)
    if isinstance(func, OpOverload | OpOverloadPacket):
        packet = func.overloadpacket if isinstance(func, OpOverload) else func
        namespace, name = packet._qualified_op_name.split("::")
    in_place = name.endswith("_") and not name.endswith("__") and name not in _METADATA_ONLY
    return Rule(
        name=name,
        writes=in_place or name in _IN_PLACE_OPERATORS,
        overwrites=name in _OVERWRITES,
        valueless=name.strip("_") in _VALUELESS,
        like=name in _LIKE,
        custom=namespace not in _TORCH_NAMESPACES,
    )


def plain_getters() -> list[Any]:
    """The torch functions that only look at a tensor's metadata."""
    methods = _words(
        "size stride dim ndimension numel nelement is_contiguous storage_offset element_size "
        "is_floating_point is_complex is_signed untyped_storage __len__ requires_grad_ "
        "is_conj is_neg is_same_size"
    )
    getters = [getattr(torch.Tensor, name) for name in methods]
    for cls in (torch.Tensor, torch._C.TensorBase):
        for attribute in vars(cls).values():
            if type(attribute).__name__ in ("getset_descriptor", "property"):
                getters.append(attribute.__get__)
    return getters
