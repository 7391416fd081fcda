"""What a Triton specialization is made of, in jitwatch's words.

Owns the translation of Triton's key (signature, constants, attributes, options)
into a `Variant`. Reads Triton's objects by attribute, imports nothing of it.

Source: Triton 3.6 `JITFunction.run`, `native_specialize_impl` and `ASTSource`:
an int of 1 and None become constants of a runtime argument, divisibility by 16
an attribute of its path.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from types import FrameType
from typing import Any

from jitwatch.events import TUNED, Pairs, Variant

#: Options that Triton adds to every call: shown only where they are set.
ADDED_OPTIONS = ("debug", "instrumentation_mode", "fpsan_homomorphic_casts")
DIVISIBLE = "tt.divisibility"


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A kernel's name, its variant, and where it is defined."""

    kernel: str
    variant: Variant | None
    file: str | None
    line: int | None


def compile_info(fn: Any, args: tuple[Any, ...], kwargs: Any, frame: FrameType) -> KernelInfo:
    """The variant that `_do_compile(key, *args)` builds, with the options of the call."""
    names = ("signature", "device", "constexprs", "options", "attrs", "warmup")
    given = dict(zip(names, args, strict=False)) | kwargs
    call, tuner_config = _calling_frames(frame, fn)
    passed = call if call is not None else vars(given["options"])
    parameters = {parameter.name for parameter in fn.params}
    options = {name: value for name, value in passed.items() if name not in parameters}
    target = fn.device_caches[given["device"]][2]
    return _info(
        fn, given["signature"], given["constexprs"], given["attrs"], options, target, tuner_config
    )


def source_info(src: Any, metadata: Any) -> KernelInfo:
    """The variant of an `ASTSource` that was compiled directly: its options are all default."""
    fn = getattr(src, "fn", None)
    if fn is None:
        return KernelInfo(str(getattr(src, "name", "")), None, None, None)
    return _info(fn, src.signature, src.constants, src.attrs, {}, metadata.get("target"), {})


def autotune_info(tuner: Any, passed: Any) -> KernelInfo:
    """The tuning key of the `Autotuner` in whose `_bench` we are, as a variant.

    `constants` holds the key arguments by name, `arguments` the dtypes, which are
    part of Triton's tuning key as well.
    """
    named = {**(tuner.nargs or {}), **passed}
    named = {name: value for name, value in named.items() if name in tuner.arg_names}
    keys = tuple((name, spell(named[name])) for name in tuner.keys if name in named)
    dtypes = tuple((n, str(v.dtype)) for n, v in named.items() if hasattr(v, "dtype"))
    code = tuner.base_fn.__code__
    name = tuner.base_fn.__name__
    variant = Variant("triton.autotune", name, dtypes, keys, (), "")
    return KernelInfo(name, variant, source_file(code), code.co_firstlineno)


def winner(tuner: Any, variant: Variant) -> Pairs:
    """The configuration that `tuner` chose for the key `variant`; empty where it has none."""
    wanted = [value for _, value in variant.constants] + [text for _, text in variant.arguments]
    count = len(variant.constants)
    for key, config in tuner.cache.items():
        if [spell(value) for value in key[:count]] + list(key[count:]) == wanted:
            return choice(config)
    return ()


def choice(config: Any) -> Pairs:
    """An autotuner's configuration as sorted pairs."""
    return tuple(sorted((name, spell(value)) for name, value in config.all_kwargs().items()))


@functools.lru_cache(maxsize=4096)
def _real_path(name: str) -> str:
    return os.path.realpath(name) if os.path.isabs(name) else name


def source_file(code: Any) -> str:
    """The file that `code` was defined in, links followed: as the repository's path is."""
    return _real_path(code.co_filename)


def spell(value: Any) -> str:
    """A constexpr's value as text that holds no path and no address."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"({', '.join(spell(item) for item in value)})"
    if hasattr(value, "__qualname__"):
        return f"{getattr(value, '__module__', '?')}.{value.__qualname__}"
    return str(value).split(" at 0x")[0]


def _info(
    fn: Any, signature: Any, constants: Any, attrs: Any, options: Any, target: Any, tuned: Any
) -> KernelInfo:
    arguments, constexprs = [], []
    types = list(signature.values())
    for index, parameter in enumerate(fn.params):
        name = parameter.name
        if parameter.is_constexpr:
            constexprs.append((name, spell(_constant(constants, (index,), name))))
        else:
            text = _argument_class(types[index], (index,), constants, attrs, name)
            arguments.append((name, text))
    shown = [
        (name, spell(value))
        for name, value in options.items()
        if value is not None and not (name in ADDED_OPTIONS and not value)
    ]
    code = fn.fn.__code__
    variant = Variant(
        compiler="triton",
        kernel=fn.fn.__name__,
        arguments=tuple(arguments),
        constants=_mask(constexprs, tuned),
        options=_mask(shown, tuned),
        arch=_arch(target),
        tuned=tuple(sorted((name, spell(value)) for name, value in tuned.items())),
    )
    return KernelInfo(variant.kernel, variant, source_file(code), code.co_firstlineno)


def _mask(pairs: list[tuple[str, str]], tuned: Any) -> Pairs:
    return tuple((name, TUNED if name in tuned else value) for name, value in sorted(pairs))


def _argument_class(
    kind: Any, path: tuple[int, ...], constants: Any, attrs: Any, name: str = ""
) -> str:
    """The class of one runtime argument: `i32 == 1`, `*bf16 % 16 == 0`, `fp32`, `None`, …"""
    if isinstance(kind, tuple):
        inner = (
            _argument_class(item, (*path, index), constants, attrs)
            for index, item in enumerate(kind)
        )
        return f"({', '.join(inner)})"
    if kind == "constexpr":
        value = _constant(constants, path, name)
        value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
        return "i32 == 1" if value == 1 and not isinstance(value, bool) else spell(value)
    divisible = any(item[0] == DIVISIBLE and item[1] == 16 for item in attrs.get(path, ()))
    return f"{kind} % 16 == 0" if divisible else str(kind)


def _constant(constants: Any, path: tuple[int, ...], name: str) -> Any:
    return constants[path] if path in constants else constants.get(name)


def _arch(target: Any) -> str:
    arch = target.get("arch") if isinstance(target, dict) else getattr(target, "arch", "")
    return f"sm_{arch}" if isinstance(arch, int) else str(arch)


def _calling_frames(frame: FrameType | None, fn: Any) -> tuple[Any, dict[str, Any]]:
    """The keyword arguments of the `JITFunction.run` outside `frame`, and the tuner's choice.

    The choice is empty where no autotuner with several configs made the call.
    """
    call = None
    for _ in range(40):
        if frame is None:
            break
        owner: Any = (
            frame.f_locals.get("self") if frame.f_code.co_name in ("run", "_bench") else None
        )
        if owner is fn and call is None and "kwargs" in frame.f_locals:
            call = frame.f_locals["kwargs"]
        elif hasattr(owner, "configs") and hasattr(owner, "base_fn") and owner.base_fn is fn.fn:
            config = frame.f_locals.get("config")
            return call, config.all_kwargs() if config and len(owner.configs) > 1 else {}
        frame = frame.f_back
    return call, {}
