"""Tensors without data that pass for CUDA tensors.

Owns the torch function mode: simulated tensors are plain meta tensors, and while the mode
is on they report `cuda:0`, `device="cuda"` makes them, their memory is counted and what
the host wrote into them is followed. The functions that need more than that are in
getters.py, readback.py and indexing.py; torch.cuda itself is cuda.py's.

A real meta tensor can't be told from a simulated one and passes for CUDA too.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from jitwatch.simulate import custom_ops
from jitwatch.simulate.assumptions import Assumptions, unknown_shape
from jitwatch.simulate.devices import META, real_device
from jitwatch.simulate.generators import SimulatedGenerator
from jitwatch.simulate.memory import ATTRIBUTE, Memory, block_of
from jitwatch.simulate.rules import Rule, rule_of, rules
from jitwatch.simulate.values import block_for, forget, know, may_be_known, twin_of

Arguments = tuple[Any, ...]
Keywords = dict[str, Any]
Handler = Callable[["SimulatedTensors", Any, Arguments, Keywords], Any]

_CPU = torch.device("cpu")
_SEQUENCES = (tuple, list)
_NUMBERS = frozenset((bool, int, float))

#: What torch says where a meta tensor's values would be needed.
_NO_DATA = (
    "on meta tensors",
    "meta tensor",
    "Meta tensors",
    "raises unimplemented by default",
    "Cannot copy out of meta",
)


def only_looks(mode: SimulatedTensors, func: Any, args: Arguments, kwargs: Keywords) -> Any:
    """The handler of functions that look at metadata which simulated tensors have right."""
    return func(*args, **kwargs)


class _Unknown(Exception):
    """A value is needed that no twin has."""


class SimulatedTensors(TorchFunctionMode):
    """The mode; one object serves all threads that enter it.

    `handlers` are looked up by torch function; all others go through `run`. `capturing`
    tells whether the current thread captures a graph.
    """

    def __init__(
        self,
        memory: Memory,
        assumptions: Assumptions,
        handlers: dict[Any, Handler],
        capturing: Callable[[], bool],
    ) -> None:
        super().__init__()
        self.memory = memory
        self.assumptions = assumptions
        self.capturing = capturing
        self.active = True
        self._handlers = handlers

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Arguments = (), kwargs: Any = None
    ) -> Any:
        handler = self._handlers.get(func)
        if handler is only_looks or not self.active:
            # Most calls end here, and each is on the way of every launch.
            return func(*args, **kwargs) if kwargs else func(*args)
        if handler is None:
            return self.run(func, args, kwargs or {})
        return handler(self, func, args, kwargs or {})

    def run(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Call a torch function, count the memory and follow the values of what it makes."""
        if kwargs:
            kwargs = real_keywords(kwargs)
        rule = rules.get(func) or rule_of(func)
        if rule.custom:
            implementation = custom_ops.cuda_implementation(func)
            if implementation is not None:
                return self.reenter(implementation, args, kwargs)
        try:
            result = func(*args, **kwargs)
        except RuntimeError as error:
            result = self._with_values(func, args, kwargs, rule, error)
        if rule.writes:
            self._wrote(func, args, kwargs, rule)
        elif kwargs and kwargs.get("out") is not None:
            self._wrote_out(func, args, kwargs, rule)
        self.adopt(func, args, kwargs, rule, result)
        return result

    def reenter(self, func: Any, args: Arguments, kwargs: Keywords) -> Any:
        """Call a Python function with the mode on inside it."""
        with self:
            return func(*args, **kwargs)

    def adopt(self, func: Any, args: Arguments, kwargs: Keywords, rule: Rule, result: Any) -> None:
        """Count the storages in a result that are new, and give them the values known."""
        if isinstance(result, torch.Tensor):
            # The common case, and on every operation's path: no list, no second look.
            if self.count(result) and may_be_known(result):
                self._evaluate(func, args, kwargs, rule, result, [result])
            return
        if isinstance(result, _SEQUENCES):
            fresh = [
                one
                for one in tensors_in(result)
                if one.is_meta and block_of(one.untyped_storage()) is None
            ]
            for one in fresh:
                block_for(one, self.memory)
            if any(may_be_known(one) for one in fresh):
                self._evaluate(func, args, kwargs, rule, result, fresh)

    def count(self, tensor: torch.Tensor) -> bool:
        """Count the storage of a simulated tensor where it is new; was it?"""
        if not tensor.is_meta:
            return False
        try:
            storage = tensor.untyped_storage()
        except NotImplementedError:
            return False  # sparse, or inside vmap: no storage of its own, and no values
        if getattr(storage, ATTRIBUTE, None) is not None:
            return False
        self.memory.take(storage)
        return True

    def _evaluate(
        self,
        func: Any,
        args: Arguments,
        kwargs: Keywords,
        rule: Rule,
        result: Any,
        fresh: list[torch.Tensor],
    ) -> None:
        values = None if rule.valueless else self.on_host(func, args, kwargs, rule)
        if values is None:
            self._mark_conditions(args, kwargs, fresh)
            return
        new = {id(one) for one in fresh}
        for tensor, value in zip(tensors_in(result), tensors_in(values), strict=False):
            if id(tensor) in new and tensor.shape == value.shape and may_be_known(tensor):
                know(tensor, value)

    def on_host(self, func: Any, args: Arguments, kwargs: Keywords, rule: Rule) -> Any:
        """The function's result on the twins of its arguments, None where one is unknown."""
        try:
            host_args = on_cpu(args, rule)
            host_kwargs = on_cpu(kwargs, rule)
        except _Unknown:
            return None
        # What the CPU refuses (an index out of range, an operator it lacks) the device
        # would not have computed either, or only it could: unknown.
        with torch._C.DisableTorchFunction(), suppress(RuntimeError, IndexError):
            return func(*host_args, **host_kwargs)
        return None

    def upload(self, value: Any) -> Any:
        """CPU tensors, nested in tuples or lists, as simulated ones that hold the values."""
        if isinstance(value, tuple | list):
            return type(value)(self.upload(one) for one in value)
        if not isinstance(value, torch.Tensor) or value.is_meta:
            return value
        result = value.to(META)
        block_for(result, self.memory)
        know(result, value)
        return result

    def _with_values(
        self, func: Any, args: Arguments, kwargs: Keywords, rule: Rule, error: RuntimeError
    ) -> Any:
        """A function that failed for want of data: again, with the values the host knows."""
        if not any(words in str(error) for words in _NO_DATA):
            raise error
        inputs = [one for one in tensors_in((args, kwargs)) if one.is_meta]
        if not inputs:
            raise error
        with suppress(_Unknown):
            plain_args, plain_kwargs = _scalars_known(args), _scalars_known(kwargs)
            if len(tensors_in((plain_args, plain_kwargs))) < len(tensors_in((args, kwargs))):
                return func(*plain_args, **plain_kwargs)
        values = None if rule.writes else self.on_host(func, args, kwargs, rule)
        if values is None:
            raise unknown_shape(f"{rule.name}()") from error
        return self.upload(values)

    def _wrote(self, func: Any, args: Arguments, kwargs: Keywords, rule: Rule) -> None:
        targets = tensors_in(args[:1]) or tensors_in(list(kwargs.values())[:1])
        targets = [one for one in targets if one.is_meta and may_be_known(one)]
        for target in targets:
            block_for(target, self.memory)
        if rule.overwrites and targets:
            self._overwrote(func, targets[0], args, kwargs, rule)
            return
        unknown = rule.valueless or any(twin_of(one) is None for one in targets)
        # On the twins the same in-place call writes through to the shared bytes.
        if targets and (unknown or self.on_host(func, args, kwargs, rule) is None):
            for target in targets:
                forget(target)

    def _overwrote(
        self, func: Any, target: torch.Tensor, args: Arguments, kwargs: Keywords, rule: Rule
    ) -> None:
        value = torch.empty(target.shape, dtype=target.dtype, device=_CPU)
        if self.on_host(func, (value, *args[1:]), kwargs, rule) is None:
            forget(target)
        else:
            know(target, value)

    def _wrote_out(self, func: Any, args: Arguments, kwargs: Keywords, rule: Rule) -> None:
        others = {name: value for name, value in kwargs.items() if name != "out"}
        values = None if rule.valueless else self.on_host(func, args, others, rule)
        outs, results = tensors_in(kwargs["out"]), tensors_in(values)
        for number, out in enumerate(outs):
            if not out.is_meta or not may_be_known(out):
                continue
            block_for(out, self.memory)
            if number < len(results):
                know(out, results[number])
            else:
                forget(out)

    def _mark_conditions(
        self, args: Arguments, kwargs: Keywords, fresh: list[torch.Tensor]
    ) -> None:
        """Remember which results are conditions on floats: no branch may depend on them."""
        inputs = [one for one in tensors_in((args, kwargs)) if one.is_meta]
        from_floats = any(one.is_floating_point() or one.is_complex() for one in inputs)
        inherited = any(block_for(one, self.memory).float_derived for one in inputs)
        for one in fresh:
            conditional = one.dtype == torch.bool and from_floats
            block_for(one, self.memory).float_derived = inherited or conditional


def real_keywords(kwargs: Keywords) -> Keywords:
    """Keyword arguments for torch: the device translated, what only CUDA knows dropped."""
    device = kwargs.get("device")
    if device is not None:
        real = real_device(device)
        if real is not device:
            kwargs = {**kwargs, "device": real}
    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}
    if isinstance(kwargs.get("generator"), SimulatedGenerator):
        kwargs = {name: value for name, value in kwargs.items() if name != "generator"}
    return kwargs


def tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts, in order."""
    found: list[torch.Tensor] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, _SEQUENCES):
        # A prompt is a list of thousands of numbers: the types of all, before each by itself.
        if not _NUMBERS.issuperset(map(type, value)):
            for one in value:
                _gather(one, found)
    elif isinstance(value, dict):
        for one in value.values():
            _gather(one, found)


def on_cpu(value: Any, rule: Rule) -> Any:
    """The arguments with simulated tensors replaced by their twins and meta by cpu.

    Raises:
        _Unknown: one of them has no known value.
    """
    if isinstance(value, torch.Tensor):
        if not value.is_meta:
            return value
        twin = twin_of(value)
        if twin is None and rule.like:
            shape = value.shape if rule.name.endswith("_like") else (0,)
            return torch.empty(shape, dtype=value.dtype, device=_CPU)
        if twin is None:
            raise _Unknown
        return twin
    if type(value) in (tuple, list):
        return type(value)(on_cpu(one, rule) for one in value)
    if type(value) is dict:
        return {name: on_cpu(one, rule) for name, one in value.items()}
    if isinstance(value, torch.device) and value.type == "meta":
        return _CPU
    return value


def _scalars_known(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_meta and value.dim() == 0:
        if value.is_floating_point() or value.is_complex():
            return value
        twin = twin_of(value)
        if twin is None:
            raise _Unknown
        return twin.item()
    if type(value) in (tuple, list):
        return type(value)(_scalars_known(one) for one in value)
    if type(value) is dict:
        return {name: _scalars_known(one) for name, one in value.items()}
    return value


def without_override(func: types.FunctionType) -> Callable[..., Any]:
    """A copy of a torch function written in Python that runs its body under the mode.

    Such a function hands itself to the mode first; called from there, its body would run
    with the mode off. In the copy, that check says no.
    """
    checks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
    blind: Keywords = dict.fromkeys(checks, lambda *_: False)
    copy = types.FunctionType(
        func.__code__,
        {**func.__globals__, **blind},
        func.__name__,
        func.__defaults__,
        func.__closure__,
    )
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
