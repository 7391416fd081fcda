"""What torch.cuda and torch.accelerator say of the simulated device.

Owns the stand-ins for the functions about devices, their properties, memory and seeds.
Does not install them: cuda.py does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from jitwatch.simulate import streams
from jitwatch.simulate.boards import Board
from jitwatch.simulate.devices import check_ordinal
from jitwatch.simulate.generators import SimulatedGenerator
from jitwatch.simulate.memory import Memory

StandIns = dict[str, object]


@dataclass(frozen=True)
class DeviceProperties:
    """Stands in for what `torch.cuda.get_device_properties` returns; the same names."""

    name: str
    major: int
    minor: int
    total_memory: int
    multi_processor_count: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    regs_per_multiprocessor: int
    max_threads_per_multi_processor: int
    max_threads_per_block: int
    warp_size: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    gcnArchName: str
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_bus_id: int = 1
    pci_device_id: int = 0
    pci_domain_id: int = 0
    uuid: str = "00000000-0000-0000-0000-000000000000"


def properties_of(board: Board) -> DeviceProperties:
    """The board in torch's words."""
    return DeviceProperties(
        name=board.product,
        major=board.capability[0],
        minor=board.capability[1],
        total_memory=board.memory_bytes,
        multi_processor_count=board.multiprocessors,
        shared_memory_per_block=board.shared_memory_per_block,
        shared_memory_per_block_optin=board.shared_memory_per_block_optin,
        shared_memory_per_multiprocessor=board.shared_memory_per_multiprocessor,
        regs_per_multiprocessor=board.registers_per_multiprocessor,
        max_threads_per_multi_processor=board.max_threads_per_multiprocessor,
        max_threads_per_block=board.max_threads_per_block,
        warp_size=board.warp_size,
        L2_cache_size=board.l2_cache_bytes,
        clock_rate=board.clock_rate_khz,
        memory_clock_rate=board.memory_clock_rate_khz,
        memory_bus_width=board.memory_bus_width_bits,
        gcnArchName=board.product,
    )


class DeviceContext:
    """Stands in for `torch.cuda.device`: there is one device to choose."""

    def __init__(self, device: Any) -> None:
        self.idx = -1 if device is None or device == -1 else check_ordinal(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = 0

    def __exit__(self, *_: object) -> None:
        self.prev_idx = -1


class DeviceOf(DeviceContext):
    """Stands in for `torch.cuda.device_of`."""

    def __init__(self, obj: Any) -> None:
        super().__init__(0 if obj.is_cuda else None)


def of_device(answer: Callable[[], object]) -> Callable[..., object]:
    """A function of an optional device that checks it and answers for the one there is."""

    def stand_in(device: Any = None, *args: Any, **kwargs: Any) -> object:
        check_ordinal(device)
        return answer()

    return stand_in


def _nothing(*args: Any, **kwargs: Any) -> None:
    """What has no effect here."""


def device_stand_ins(board: Board) -> StandIns:
    """Functions about which devices there are and what they can do."""
    properties = properties_of(board)
    return {
        "is_available": lambda: True,
        "init": _nothing,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": of_device(lambda: None),
        "get_device_name": of_device(lambda: board.product),
        "get_device_capability": of_device(lambda: board.capability),
        "get_device_properties": of_device(lambda: properties),
        "get_arch_list": lambda: [f"sm_{board.arch}"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "synchronize": of_device(lambda: None),
        "device": DeviceContext,
        "device_of": DeviceOf,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "get_sync_debug_mode": lambda: 0,
    }


def memory_stand_ins(memory: Memory) -> StandIns:
    """Functions about memory, answered from the simulated allocations."""
    allocated = of_device(lambda: memory.allocated_bytes)
    peak = of_device(lambda: memory.peak_bytes)

    def statistics() -> dict[str, int]:
        now, most = memory.allocated_bytes, memory.peak_bytes
        kinds = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
        figures = {f"{kind}.all.current": now for kind in kinds}
        return figures | {f"{kind}.all.peak": most for kind in kinds}

    return {
        "mem_get_info": of_device(lambda: (memory.free_bytes, memory.total_bytes)),
        "memory_allocated": allocated,
        "memory_reserved": allocated,
        "memory_cached": allocated,
        "max_memory_allocated": peak,
        "max_memory_reserved": peak,
        "max_memory_cached": peak,
        "memory_stats": of_device(statistics),
        "device_memory_used": allocated,
        "reset_peak_memory_stats": of_device(memory.reset_peak),
        "reset_max_memory_allocated": of_device(memory.reset_peak),
        "reset_max_memory_cached": of_device(memory.reset_peak),
        "reset_accumulated_memory_stats": of_device(lambda: None),
        "empty_cache": _nothing,
        "ipc_collect": _nothing,
        "get_allocator_backend": lambda: "native",
    }


def seed_stand_ins() -> StandIns:
    """Functions about random seeds, on the one default generator."""
    generator = SimulatedGenerator()

    def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
        check_ordinal(device)
        generator.set_state(new_state)

    return {
        "default_generators": (generator,),
        "manual_seed": lambda seed: _nothing(generator.manual_seed(seed)),
        "manual_seed_all": lambda seed: _nothing(generator.manual_seed(seed)),
        "seed": lambda: _nothing(generator.seed()),
        "seed_all": lambda: _nothing(generator.seed()),
        "initial_seed": generator.initial_seed,
        "get_rng_state": of_device(generator.get_state),
        "get_rng_state_all": lambda: [generator.get_state()],
        "set_rng_state": set_rng_state,
        "set_rng_state_all": lambda new_states: set_rng_state(new_states[0]),
    }


def accelerator_stand_ins(board: Board, memory: Memory) -> StandIns:
    """What torch.accelerator has, in terms of torch.cuda's stand-ins."""
    on_memory = memory_stand_ins(memory)
    names = (
        "memory_allocated memory_reserved max_memory_allocated max_memory_reserved memory_stats "
        "reset_peak_memory_stats reset_accumulated_memory_stats empty_cache"
    )
    return {name: on_memory[name] for name in names.split()} | {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": of_device(lambda: None),
        "set_device_idx": of_device(lambda: None),
        "device_index": DeviceContext,
        "synchronize": of_device(lambda: None),
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "get_memory_info": on_memory["mem_get_info"],
    }


def native_stand_ins() -> StandIns:
    """Functions of torch._C that code outside torch calls directly."""
    return {
        "_cuda_getCurrentRawStream": streams.current_raw_stream,
        "_cuda_isCurrentStreamCapturing": streams.is_current_stream_capturing,
        "_cuda_getDevice": lambda: 0,
        "_cuda_setDevice": check_ordinal,
        "_cuda_getDeviceCount": lambda: 1,
        "_cuda_exchangeDevice": lambda device: 0,
        "_cuda_maybeExchangeDevice": lambda device: 0,
        "_cuda_synchronize": _nothing,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: 0,
        "_accelerator_setDeviceIndex": check_ordinal,
        "_accelerator_exchangeDevice": lambda device: 0,
        "_accelerator_maybeExchangeDevice": lambda device: 0,
        "_accelerator_synchronizeDevice": _nothing,
    }


def nvtx_stand_ins() -> StandIns:
    """Annotations that nobody sees; the depth that range_push returns is always 0."""
    return {
        "range_push": lambda msg: 0,
        "range_pop": lambda: 0,
        "range_start": lambda msg: 0,
        "range_end": _nothing,
        "mark": _nothing,
        "_device_range_start": _nothing,
        "_device_range_end": _nothing,
    }
