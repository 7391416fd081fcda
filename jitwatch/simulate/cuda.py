"""The simulated device in torch: one call puts it in place, one takes it away.

Owns `install` and what it changes: the mode in this thread and every new one, the
attributes of torch.cuda and its neighbours. The Triton half is driver.py's.

Threads made without the threading module stay outside, and so do objects that other
modules took out of torch.cuda before `install`.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.utils._device
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from jitwatch.errors import SimulationError
from jitwatch.simulate import custom_ops, device_api, graphs, streams
from jitwatch.simulate.assumptions import Assumptions, user_line
from jitwatch.simulate.boards import Board
from jitwatch.simulate.devices import real_device
from jitwatch.simulate.generators import Generator
from jitwatch.simulate.getters import getter_handlers
from jitwatch.simulate.indexing import indexing_handlers
from jitwatch.simulate.memory import Memory, block_of
from jitwatch.simulate.patches import Patches
from jitwatch.simulate.readback import readback_handlers
from jitwatch.simulate.shortcuts import shortcut_handlers
from jitwatch.simulate.strides import like_handlers
from jitwatch.simulate.tensors import SimulatedTensors
from jitwatch.simulate.transfers import transfer_handlers
from jitwatch.simulate.values import kernel_wrote

__all__ = ["SimulatedTorch", "install", "kernel_wrote"]

_installed: SimulatedTorch | None = None

#: Of torch.cuda's public names these keep their meaning: constants, errors, pure Python.
_KEPT_NAMES = (
    "CudaError DeferredCudaCallError cudaStatus check_error has_half has_magma get_gencode_flags "
    "nvtx amp graphs memory random streams sparse profiler nccl jiterator tunable"
)
_KEPT = frozenset(_KEPT_NAMES.split())
#: Functions of torch.cuda that make no context.
_ASK_ONLY = ("is_available", "device_count", "get_arch_list", "_lazy_init", "manual_seed")


class SimulatedTorch:
    """What `install` gives: the simulated device's state, and the way to remove it."""

    def __init__(self, board: Board, strict_values: bool) -> None:
        self.board = board
        self._memory = Memory(board.memory_bytes)
        self._assumptions = Assumptions(strict_values)
        self._patches = Patches()
        handlers = getter_handlers() | readback_handlers()
        handlers |= transfer_handlers() | indexing_handlers()
        handlers |= like_handlers(handlers)
        handlers |= shortcut_handlers(handlers)
        self._mode = SimulatedTensors(
            self._memory, self._assumptions, handlers, streams.is_current_stream_capturing
        )

    @property
    def assumed(self) -> list[str]:
        """`file:line: what` of every read-back answered with zeros, each line once.

        A torch.compile that was left out is listed too."""
        return list(self._assumptions.lines)

    @property
    def allocated_bytes(self) -> int:
        """Live bytes of simulated tensors."""
        return self._memory.allocated_bytes

    @property
    def capturing(self) -> bool:
        """Does the calling thread capture a CUDA graph?"""
        return streams.is_current_stream_capturing()

    def uninstall(self) -> None:
        """Put torch back as it was; again is nothing. Simulated tensors are then meta ones."""
        global _installed
        if not self._mode.active:
            return
        self._mode.active = False
        _leave(self._mode)
        self._patches.undo()
        custom_ops.forget_registrations()
        streams.reset()
        _installed = None

    def _put_in_place(self) -> None:
        patches = self._patches
        _patch_cuda(patches, self.board, self._memory)
        _patch_neighbours(patches, self.board, self._memory)
        patches.set(torch, "compile", _uncompiled(self._assumptions))
        remembering = custom_ops.remember_registrations(torch.library.Library.impl)
        patches.set(torch.library.Library, "impl", remembering)
        patches.set(threading.Thread, "_bootstrap_inner", _in_threads(self._mode))
        self._mode.__enter__()


def install(board: Board, *, strict_values: bool = False) -> SimulatedTorch:
    """Make torch in this process see one `board` that computes nothing.

    `strict_values` makes a read-back of what only a kernel could compute an error.

    Raises:
        SimulationError: one is installed already; CUDA is in use already.
    """
    global _installed
    if _installed is not None:
        raise SimulationError(
            f"a simulated {_installed.board.name} is installed already",
            why="a process has one device, as Triton caches binaries by device index",
            fix="uninstall() the first one, or simulate the other board in a process of its own",
        )
    if torch.cuda.is_initialized():
        raise SimulationError(
            "this process uses the real GPU already",
            why="tensors and modules made before would mix with simulated ones",
            fix="install the simulated device before anything touches CUDA",
        )
    simulated = SimulatedTorch(board, strict_values)
    try:
        simulated._put_in_place()
    except BaseException:
        simulated._patches.undo()
        raise
    _installed = simulated
    return simulated


def _patch_cuda(patches: Patches, board: Board, memory: Memory) -> None:
    stand_ins: dict[str, object] = {
        **device_api.device_stand_ins(board),
        **device_api.memory_stand_ins(memory),
        **device_api.seed_stand_ins(),
        **streams.STAND_INS,
        **graphs.STAND_INS,
        "_lazy_init": _real_device_reached,
    }
    for name in torch.cuda.__all__:
        if name not in stand_ins and _needs_device(name):
            stand_ins[name] = _unsupported(f"torch.cuda.{name}")
    touched = _Touched(memory)
    stand_ins["is_initialized"] = touched.is_initialized
    for name, stand_in in stand_ins.items():
        _replace(patches, torch.cuda, name, touched.by(name, stand_in))
    for name, stand_in in device_api.nvtx_stand_ins().items():
        patches.set(torch.cuda.nvtx, name, stand_in)


class _Touched:
    """Whether the process has used the device: torch.cuda.is_initialized() before that is False."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._called = False

    def is_initialized(self) -> bool:
        """True from the first tensor or call on that would have made a context."""
        return self._called or self._memory.peak_bytes > 0

    def by(self, name: str, stand_in: object) -> object:
        """`stand_in`, which marks the device as used where torch's own function would."""
        if not inspect.isfunction(stand_in) or name in _ASK_ONLY:
            return stand_in

        @functools.wraps(stand_in)
        def marking(*args: Any, **kwargs: Any) -> Any:
            self._called = True
            return stand_in(*args, **kwargs)

        return marking


def _replace(patches: Patches, module: ModuleType, name: str, stand_in: object) -> None:
    """Replace a name of torch.cuda, in the submodule that defines it too."""
    before = vars(module).get(name)
    for submodule in ("memory", "streams", "graphs", "random"):
        owner = getattr(module, submodule)
        if before is not None and vars(owner).get(name) is before:
            patches.set(owner, name, stand_in)
    patches.set(module, name, stand_in)


def _needs_device(name: str) -> bool:
    value = getattr(torch.cuda, name, None)
    legacy = name.endswith(("Tensor", "Storage"))
    return callable(value) and not inspect.ismodule(value) and not legacy and name not in _KEPT


def _patch_neighbours(patches: Patches, board: Board, memory: Memory) -> None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        for name, stand_in in device_api.accelerator_stand_ins(board, memory).items():
            if hasattr(accelerator, name):
                patches.set(accelerator, name, stand_in)
    for name, stand_in in device_api.native_stand_ins().items():
        if name.startswith("_cuda") or hasattr(torch._C, name):
            patches.set(torch._C, name, stand_in)
    patches.set(torch, "Generator", Generator)
    patches.set(torch, "Stream", streams.Stream)
    patches.set(torch, "Event", streams.Event)
    if torch.version.cuda is None:
        patches.set(torch.version, "cuda", "13.0")
    patches.set(torch.backends.cuda, "is_built", lambda: True)
    patches.set(torch.autocast, "__enter__", _no_autocast(torch.autocast.__enter__))
    # torch checks the stream's type before any mode is asked.
    patches.set(torch.Tensor, "record_stream", lambda self, stream: None)
    patches.set(torch.UntypedStorage, "data_ptr", _storage_pointer(torch.UntypedStorage.data_ptr))
    patches.set(DeviceContext, "__init__", _on_meta(DeviceContext.__init__))


def _in_threads(mode: SimulatedTensors) -> Callable[[threading.Thread], None]:
    """The body of every thread, `run` overridden or not, with the mode on."""
    before: Callable[[threading.Thread], None]
    before = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    @functools.wraps(before)
    def bootstrap(self: threading.Thread) -> None:
        with mode:
            before(self)

    return bootstrap


def _leave(mode: SimulatedTensors) -> None:
    """Take the mode off this thread's stack, wherever on it it lies."""
    above = []
    while mode in _get_current_function_mode_stack():
        above.append(torch._C._pop_torch_function_stack())
    for other in reversed(above):
        if other is not mode:
            torch._C._push_on_torch_function_stack(other)


def _on_meta(init: Callable[..., None]) -> Callable[..., None]:
    """`with torch.device("cuda")` and set_default_device make simulated tensors."""

    @functools.wraps(init)
    def stand_in(self: DeviceContext, device: Any) -> None:
        init(self, real_device(device))

    return stand_in


def _uncompiled(assumptions: Assumptions) -> Callable[..., Any]:
    """torch.compile can't trace under the mode: what it is given runs as it is written.

    The kernels it would have made are not simulated; they are no in-repo ones.
    """

    @functools.wraps(torch.compile)
    def stand_in(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        if model is None:
            return lambda decorated: stand_in(decorated, *args, **kwargs)
        assumptions.note("torch.compile() left out, its argument runs uncompiled")
        return model

    return stand_in


def _storage_pointer(data_ptr: Callable[..., int]) -> Callable[..., int]:
    """A simulated storage's address: code tells shared storages by it."""

    @functools.wraps(data_ptr)
    def stand_in(self: torch.UntypedStorage) -> int:
        block = block_of(self)
        return data_ptr(self) if block is None else block.address

    return stand_in


def _no_autocast(enter: Callable[..., Any]) -> Callable[..., Any]:
    """Simulated tensors ignore autocast, and their dtypes would be wrong without a word."""

    @functools.wraps(enter)
    def stand_in(self: Any) -> Any:
        if self.device == "cuda" and self._enabled:
            raise SimulationError(
                f"{user_line()}: autocast on the simulated device",
                why="tensors without data ignore it, so kernels would see other dtypes",
                fix="convert weights and inputs to the dtype meant, or use a real GPU",
            )
        return enter(self)

    return stand_in


def _unsupported(name: str) -> Callable[..., Any]:
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        raise SimulationError(
            f"{user_line()}: {name} on the simulated device",
            why="it has no stand-in there",
            fix="leave the call out under --device sim:*, or use a real GPU",
        )

    return stand_in


def _real_device_reached() -> None:
    raise SimulationError(
        f"{user_line()}: torch reached for a real GPU",
        why="a tensor was made or moved outside the simulated device's reach: in a thread not "
        "started by the threading module, or by a call no torch function mode sees (torch.load "
        "with map_location='cuda', torch.cuda.FloatTensor)",
        fix="make it on the CPU and move it with .to('cuda')",
    )
