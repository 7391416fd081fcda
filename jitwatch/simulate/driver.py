"""The Triton driver of a device that isn't there.

Owns a `DriverBase` for a `Board`: what would be loaded is recorded as a driver
load, what would be launched is counted and does nothing, autotuning sees constant
times. Compiling is Triton's own. Knows nothing of torch's stand-ins (`cuda.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import _allocation, autotuner, build
from triton.runtime import driver as driver_config

from jitwatch.events import Variant
from jitwatch.recorder import Recorder
from jitwatch.simulate import launched
from jitwatch.simulate.boards import Board
from jitwatch.simulate.cubin import registers_and_spills
from jitwatch.simulate.writes import written_parameters
from jitwatch.sources.triton import LAUNCHER
from jitwatch.sources.triton_variant import autotune_info, choice

#: What every benchmark reports, in ms. Equal times: the first valid candidate wins.
CONSTANT_MS = 1.0
REPLAYED_MS = 0.5
#: Threads of a block that a kernel compiled with its `reqntid` may have.
MAX_THREADS = 1024

Winners = Mapping[Variant, tuple[tuple[str, str], ...]]


class SimulatedUtils:
    """Stands for Triton's C helper: loads are recorded, properties are the board's."""

    def __init__(self, board: Board, recorder: Recorder) -> None:
        self.board = board
        self.recorder = recorder
        self._handles = itertools.count(1)
        #: The load event of each function, and the kernel of each load event.
        self.loads: dict[int, int] = {}
        self.kernels: dict[int, str] = {}

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Record a load; returns (module, function, registers, spills, max threads)."""
        detail = "simulated cuModuleLoadData"
        seq = self.recorder.begin("load", "driver", name, nbytes=len(kernel), detail=detail)
        registers, spills = registers_and_spills(kernel, name)
        handle = next(self._handles)
        self.loads[handle], self.kernels[seq] = seq, name
        self.recorder.end(seq)
        return handle, handle, registers, spills, MAX_THREADS

    def unload_module(self, module: int) -> None:
        """Nothing to unload."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """What Triton asks of a device, from the board's data sheet."""
        board = self.board
        return {
            "max_shared_mem": board.shared_memory_per_block_optin,
            "max_num_regs": board.registers_per_multiprocessor,
            "multiprocessor_count": board.multiprocessors,
            "warpSize": board.warp_size,
            "sm_clock_rate": board.clock_rate_khz,
            "mem_clock_rate": board.memory_clock_rate_khz,
            "mem_bus_width": board.memory_bus_width_bits,
        }

    def fill_tma_descriptor(self, *_: Any) -> object:
        """A tensor map that nobody reads."""
        return object()

    fill_tma_descriptor_tiled = fill_tma_descriptor_im2col = fill_tma_descriptor

    def set_printf_fifo_size(self, size: int) -> None:
        """No printf buffer to size."""


class SimulatedDriver(DriverBase):
    """Triton's active driver for a board. `launches` counts what would have been launched.

    `kernel_wrote` is told each tensor that a launched kernel may have written.
    """

    def __init__(
        self, board: Board, recorder: Recorder, kernel_wrote: Callable[[Any], None]
    ) -> None:
        super().__init__()
        self.board = board
        self.utils = SimulatedUtils(board, recorder)
        self.kernel_wrote = kernel_wrote
        self.launches = 0
        self._count = itertools.count(1)

    @classmethod
    def is_active(cls) -> bool:
        """Only where it was set."""
        return False

    def launcher_cls(self, src: Any, metadata: Any) -> SimulatedLauncher:
        """Triton calls this at a kernel's first launch, before its load."""
        predict_launcher_build(src, getattr(metadata, "tensordesc_meta", None))
        return SimulatedLauncher(self, src, metadata)

    def launched(self, function: int) -> None:
        """Count one launch."""
        self.launches = next(self._count)
        launched.launch(function)

    def take_used(self) -> frozenset[int]:
        """The load events of what was launched since the last call."""
        return frozenset(self.utils.loads[function] for function in launched.take())

    def get_current_target(self) -> GPUTarget:
        """The board's architecture."""
        return GPUTarget("cuda", self.board.arch, self.board.warp_size)

    def get_current_device(self) -> int:
        """There is one device."""
        return 0

    def set_current_device(self, device: int) -> None:
        """There is one device."""

    def get_current_stream(self, device: int | None = None) -> int:
        """The default stream."""
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        """The board's compute capability."""
        return self.board.capability

    def get_active_torch_device(self) -> Any:
        """torch's name of the device."""
        import torch

        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        """torch.cuda, with its stand-ins."""
        import torch

        return torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> str:
        """As NVIDIA's driver says."""
        from triton.backends.nvidia.driver import ty_to_cpp

        return str(ty_to_cpp(ty))

    def get_benchmarker(self) -> Callable[..., Any]:
        """Every candidate takes the same time."""
        return constant_bench

    def get_empty_cache_for_benchmark(self) -> None:
        """No L2 to clear."""

    def clear_cache(self, cache: Any) -> None:
        """No L2 to clear."""

    def assemble_tensormap_to_arg(self, tensormaps_info: Any, args: Any) -> Any:
        """As Triton's GPU driver does."""
        return args


class SimulatedLauncher:
    """Counts a kernel's launches; asks for scratch memory as the real launcher does."""

    def __init__(self, driver: SimulatedDriver, src: Any, metadata: Any) -> None:
        self.driver = driver
        self.scratch = (
            getattr(metadata, "global_scratch_size", 0),
            getattr(metadata, "global_scratch_align", 1),
            getattr(metadata, "num_ctas", 1),
        )
        written = written_parameters(src.fn)
        self.written = [i for i, name in enumerate(src.fn.arg_names) if name in written]

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *args: Any) -> None:
        """`args`: packed metadata, launch metadata, enter and exit hooks, then the kernel's own."""
        launch_metadata, enter, leave = args[1:4]
        values = args[4:]
        if enter is not None:
            enter(launch_metadata)
        if x * y * z > 0:
            size, align, num_ctas = self.scratch
            if size:
                _allocation._allocator.get()(x * y * z * num_ctas * size, align, stream)
            self.driver.launched(function)
            for index in self.written:
                if hasattr(values[index], "untyped_storage"):
                    self.driver.kernel_wrote(values[index])
        if leave is not None:
            leave(launch_metadata)


def constant_bench(
    call: Callable[[], Any], *_: Any, quantiles: Sequence[float] | None = None, **__: Any
) -> Any:
    """Run a candidate once, so that it compiles and loads, and say that it took a constant time."""
    call()
    return [CONSTANT_MS] * len(quantiles) if quantiles else CONSTANT_MS


_built_launchers: set[str] = set()


def predict_launcher_build(src: Any, tensordesc_meta: Any) -> None:
    """Build the launcher that Triton 3.7 and older would build here on a cold cache.

    One for each new source text; no compiler runs. Goes through Triton's own
    `_build`, so that the same hook sees it as on a real device.
    """
    from triton import knobs
    from triton.backends.nvidia import driver as nvidia

    if not hasattr(nvidia, "make_launcher"):
        return
    constants = {
        (src.fn.arg_names.index(path),) if isinstance(path, str) else path: value
        for path, value in src.constants.items()
    }
    text = nvidia.make_launcher(constants, dict(src.signature), tensordesc_meta)
    if text in _built_launchers:
        return
    _built_launchers.add(text)
    previous, knobs.build.impl = knobs.build.impl, lambda *_, **__: ""
    try:
        build._build(LAUNCHER, text, "", [], [], [], [])
    finally:
        knobs.build.impl = previous


def activate(driver: SimulatedDriver, winners: Winners | None = None) -> Callable[[], None]:
    """Make `driver` Triton's active one and autotuning constant; returns what undoes it.

    `winners` replays the configurations that a real run chose, by tuning key.
    Autotune results on disk are neither read nor written: timings of a device that
    isn't there would poison real runs.
    """
    config = driver_config
    before = (config._default, config._active)
    config._default = config._active = driver
    _built_launchers.clear()
    bench = autotuner.Autotuner._bench
    undo = [
        _patch(triton.testing, "do_bench", constant_bench),
        _patch(triton.testing, "do_bench_cudagraph", constant_bench),
        _patch(autotuner.Autotuner, "check_disk_cache", _no_disk_results),
    ]
    if winners:
        undo.append(_patch(autotuner.Autotuner, "_bench", _replaying(bench, winners)))

    def deactivate() -> None:
        for restore in reversed(undo):
            restore()
        config._default, config._active = before

    return deactivate


def _no_disk_results(tuner: Any, key: Any, configs: Any, benchmark: Callable[[], Any]) -> bool:
    benchmark()
    return False


def _replaying(bench: Callable[..., Any], winners: Winners) -> Callable[..., Any]:
    def replay(tuner: Any, *args: Any, config: Any, **meta: Any) -> Any:
        times = bench(tuner, *args, config=config, **meta)
        variant = autotune_info(tuner, meta).variant
        chosen = winners.get(variant) if variant is not None else None
        if choice(config) == chosen and times[0] != float("inf"):
            return [REPLAYED_MS] * len(times)
        return times

    return replay


def _patch(owner: Any, name: str, value: Any) -> Callable[[], None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, original)
