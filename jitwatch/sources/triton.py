"""Triton as a source: compiles, disk hits, loads, launcher builds, autotuning.

Owns the hooks into Triton (3.5 to 3.9) and chains what was there before. Every
hook sits on a cache-miss path: nothing stays on the launch path. Knows nothing
of judging; what a variant is made of is in `triton_variant.py`.

Hooks used, and why these: `JITFunction._do_compile` (called on a key miss only)
gives the begin of a compile and the options as the call passed them;
`knobs.compilation.listener` tells a compile from a disk hit;
`kernel_load_start_hook`/`_end_hook` frame a load, and a compiled kernel's first
`_init_handles` around them ends one that raises (later calls of it stand on the
launch path of Triton 3.6 and are left alone); `triton.runtime.build._build` is gcc
at work; `Autotuner._bench` runs once per candidate. `jit_cache_hook` and
`jit_post_compile_hook` are never used: on 3.6 any hook there serialises the
constants, and a kernel with a function as constexpr then raises TypeError.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict
from types import FrameType
from typing import Any

from jitwatch.events import Kind, SourceState, Variant
from jitwatch.recorder import Recorder
from jitwatch.sources.triton_variant import (
    KernelInfo,
    autotune_info,
    compile_info,
    source_info,
    winner,
)

#: Frames kept of a stack; deeper ones say little and cost 8 µs each.
STACK_DEPTH = 30
LAUNCHER = "__triton_launcher"


class TritonSource:
    """Arms Triton's hooks for one process and writes what they see to `recorder`.

    `explain` is told True when a load begins that this source explains, and False
    when it is over: the driver hook then takes no stack of its own.
    """

    def __init__(self, recorder: Recorder, explain: Callable[[bool], None] | None = None) -> None:
        self.recorder = recorder
        self.explain = explain or (lambda _: None)
        self.listener_displaced = False
        self._infos: weakref.WeakKeyDictionary[Any, KernelInfo] = weakref.WeakKeyDictionary()
        self._infos_by_hash: dict[str, KernelInfo] = {}
        self._tuning: dict[tuple[int, Variant], int] = {}
        self._tuners: dict[int, Any] = {}
        self._local = threading.local()
        self._undo: list[Callable[[], None]] = []

    def arm(self) -> SourceState:
        """Install the hooks; without a usable Triton say why not. Arming twice changes nothing."""
        try:
            import triton
        except ImportError as error:
            return SourceState("triton", False, reason=f"triton can't be imported: {error}")
        if self._undo:
            return SourceState("triton", True, triton.__version__)
        from triton import knobs

        if knobs.runtime.interpret:
            reason = "TRITON_INTERPRET=1: the interpreter compiles and loads nothing"
            return SourceState("triton", False, triton.__version__, reason)
        if not hasattr(knobs.runtime, "kernel_load_start_hook"):
            reason = "this Triton has no load hooks; 3.5 or newer has"
            return SourceState("triton", False, triton.__version__, reason)
        self._arm_hooks(knobs)
        self._arm_methods()
        return SourceState("triton", True, triton.__version__)

    @property
    def displaced(self) -> bool:
        """Whether another tool took our load hooks out: loads since then are unexplained."""
        from triton import knobs

        runtime = knobs.runtime
        return bool(self._undo) and not (
            self._load_start in getattr(runtime.kernel_load_start_hook, "calls", ())
            and self._load_end in getattr(runtime.kernel_load_end_hook, "calls", ())
        )

    def disarm(self) -> None:
        """Put back what was there before."""
        while self._undo:
            self._undo.pop()()

    def winners(self) -> list[dict[str, Any]]:
        """What each tuning key seen chose: `{key: the autotune variant, choice: its pairs}`."""
        found = []
        for tuner_id, variant in self._tuning:
            choice = winner(self._tuners[tuner_id], variant)
            if choice:
                found.append({"key": asdict(variant), "choice": choice})
        return found

    def _arm_hooks(self, knobs: Any) -> None:
        previous = knobs.compilation.listener

        def listener(**kwargs: Any) -> None:
            self._guard(self._compiled, **kwargs)
            if previous is not None:
                previous(**kwargs)

        def restore() -> None:
            if knobs.compilation.listener is listener:
                knobs.compilation.listener = previous

        knobs.compilation.listener = listener
        knobs.runtime.kernel_load_start_hook.add(self._load_start)
        knobs.runtime.kernel_load_end_hook.add(self._load_end)
        self._undo += [
            restore,
            lambda: knobs.runtime.kernel_load_start_hook.remove(self._load_start),
            lambda: knobs.runtime.kernel_load_end_hook.remove(self._load_end),
        ]

    def _arm_methods(self) -> None:
        from triton.runtime import autotuner, build, jit

        self._wrap(jit.JITFunction, "_do_compile", self._do_compile)
        self._wrap(build, "_build", self._build)
        self._wrap(autotuner.Autotuner, "_bench", self._bench)

    def _wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        wrapped.__wrapped__ = original  # type: ignore[attr-defined]
        setattr(owner, name, wrapped)

        def restore() -> None:
            if getattr(owner, name) is wrapped:
                setattr(owner, name, original)

        self._undo.append(restore)

    # -- compiles -----------------------------------------------------------------

    def _do_compile(
        self, original: Callable[..., Any], fn: Any, key: Any, *args: Any, **kwargs: Any
    ) -> Any:
        frame = sys._getframe(2)  # ours, the wrapper, then JITFunction.run
        info = self._guard(compile_info, fn, args, kwargs, frame)
        if info is None:
            return original(fn, key, *args, **kwargs)
        seq = self._begin("compile", info, frame)
        outer = getattr(self._local, "compiled", None)
        self._local.compiled = None
        try:
            kernel = original(fn, key, *args, **kwargs)
        except BaseException as error:
            self._end(seq, detail=f"raised {type(error).__name__}")
            raise
        finally:
            seen: Kind | None = self._local.compiled
            self._local.compiled = outer
        if kernel is None or hasattr(kernel, "future"):
            # Another hook took it over, or a pool compiles it.
            self._guard(self.recorder.discard, seq)
        else:
            self.listener_displaced |= seen is None
            self._end(seq, kind=seen)
            self._guard(self._infos.__setitem__, kernel, info)
            self._guard(self._watch_first_load, kernel)
        return kernel

    def _compiled(self, *, src: Any, metadata: Any, times: Any, cache_hit: bool, **_: Any) -> None:
        kind: Kind = "disk_hit" if cache_hit else "compile"
        info = source_info(src, metadata)
        digest = str(metadata.get("hash", ""))
        if hasattr(self._local, "compiled") and self._in_do_compile():
            self._local.compiled = kind
            self._infos_by_hash.setdefault(digest, info)
            return
        self._infos_by_hash[digest] = info
        took_ns = 1000 * int(getattr(times, "total", 0) or 0)
        start = self.recorder.clock() - took_ns
        self._end(self._begin(kind, info, sys._getframe(3), start_ns=start))

    def _in_do_compile(self) -> bool:
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code is TritonSource._do_compile.__code__:
                return True
            frame = frame.f_back
        return False

    # -- loads --------------------------------------------------------------------

    def _load_start(self, *args: Any, **kwargs: Any) -> None:
        self._guard(self._begin_load, sys._getframe(1), *args, **kwargs)

    def _begin_load(
        self, frame: FrameType, module: Any, function: Any, name: str, group: Any, digest: str
    ) -> None:
        kernel = _init_handles_self(frame)
        info = self._infos.get(kernel) if kernel is not None else None
        info = info or self._infos_by_hash.get(digest)
        if info is None:
            info = KernelInfo(name, None, None, None)
        nbytes = len(vars(kernel).get("kernel") or b"") if kernel is not None else 0
        self.explain(True)
        self._local.load = self._begin("load", info, frame, nbytes=nbytes)

    def _load_end(self, *args: Any, **kwargs: Any) -> None:
        self.explain(False)
        seq = getattr(self._local, "load", None)
        if seq is not None:
            self._local.load = None
            self._end(seq)

    def _watch_first_load(self, kernel: Any) -> None:
        """Put a wrapper on this kernel alone that goes away when it is first called."""
        original = kernel._init_handles

        def once(*args: Any) -> Any:
            vars(kernel).pop("_init_handles", None)
            try:
                return original(*args)
            except BaseException:
                seq = getattr(self._local, "load", None)
                if seq is not None:
                    self._local.load = None
                    self.explain(False)
                    self._end(seq, detail="raised")
                raise

        kernel._init_handles = once

    # -- launcher builds, autotuning ------------------------------------------------

    def _build(self, original: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(2)
        info = self._guard(self._info_around, frame)
        is_launcher = name == LAUNCHER
        if info is None:
            info = KernelInfo(name if not is_launcher else "", None, None, None)
        kind: Kind = "launcher_build" if is_launcher else "subprocess"
        seq = self._begin(kind, info, frame, detail="" if is_launcher else f"cc {name}")
        try:
            return original(name, *args, **kwargs)
        finally:
            self._end(seq)

    def _info_around(self, frame: FrameType) -> KernelInfo | None:
        kernel = _init_handles_self(frame)
        return self._infos.get(kernel) if kernel is not None else None

    def _bench(self, original: Callable[..., Any], tuner: Any, *args: Any, **kwargs: Any) -> Any:
        info = self._guard(autotune_info, tuner, kwargs)
        if info is None or info.variant is None:
            return original(tuner, *args, **kwargs)
        self._tuners[id(tuner)] = tuner
        key = (id(tuner), info.variant)
        seq = self._tuning.get(key)
        if seq is None:
            seq = self._begin("autotune", info, sys._getframe(2))
            if seq is not None:
                self._tuning[key] = seq
        else:
            self._guard(self.recorder.reenter, seq)
        try:
            return original(tuner, *args, **kwargs)
        finally:
            self._end(seq)

    # -- inside ---------------------------------------------------------------------

    def _begin(self, kind: Kind, info: KernelInfo, frame: FrameType, **extra: Any) -> int | None:
        """Begin an event; None where that failed, which `_end` takes as well."""
        seq: int | None = self._guard(self._write_begin, kind, info, frame, **extra)
        return seq

    def _end(self, seq: int | None, **how: Any) -> None:
        if seq is not None:
            self._guard(self.recorder.end, seq, **how)

    def _write_begin(self, kind: Kind, info: KernelInfo, frame: FrameType, **extra: Any) -> int:
        return self.recorder.begin(
            kind,
            "triton",
            info.kernel,
            variant=info.variant,
            file=info.file,
            line=info.line,
            stack=stack_of(frame),
            **extra,
        )

    def _guard(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call our own code inside a hook: its failure is recorded, never raised into the host."""
        try:
            return function(*args, **kwargs)
        except Exception as error:
            name = getattr(function, "__name__", "hook")
            self.recorder.fact("hook_error", f"{name}: {type(error).__name__}: {error}")
            return None


def stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """The Python stack from `frame` outwards, innermost first, as `file:line function`."""
    lines: list[str] = []
    while frame is not None and len(lines) < STACK_DEPTH:
        code = frame.f_code
        if code.co_filename == __file__:
            frame = frame.f_back  # our own wrappers
            continue
        lines.append(f"{code.co_filename}:{frame.f_lineno} {code.co_name}")
        frame = frame.f_back
    return tuple(lines)


def _init_handles_self(frame: FrameType | None) -> Any:
    """The CompiledKernel whose `_init_handles` is running, up to eight frames out."""
    for _ in range(8):
        if frame is None:
            return None
        if frame.f_code.co_name == "_init_handles":
            return frame.f_locals.get("self")
        frame = frame.f_back
    return None
