"""The boards that can be simulated, as data.

Owns what a board is called and what its properties are. Knows nothing of torch or
Triton, and imports neither.

Source: NVIDIA's datasheets (memory, clocks, bus width, multiprocessors) and the CUDA C++
programming guide's table of technical specifications per compute capability (shared
memory, registers, threads). The h200 is as torch 2.11 describes a real one.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from jitwatch.errors import UsageError

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB


@dataclass(frozen=True, slots=True)
class Board:
    """One GPU as its driver would describe it; sizes in bytes, clocks in kHz.

    `memory_bytes` is what a program gets to see, a little less than the datasheet's
    figure where the driver keeps some for itself.
    """

    name: str
    product: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    max_threads_per_multiprocessor: int
    l2_cache_bytes: int
    clock_rate_khz: int
    memory_clock_rate_khz: int
    memory_bus_width_bits: int
    registers_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 * _KIB
    max_threads_per_block: int = 1024
    warp_size: int = 32

    @property
    def arch(self) -> int:
        """The capability as one number, as Triton has it: 90 for (9, 0)."""
        major, minor = self.capability
        return major * 10 + minor


def _gib(size: float) -> int:
    return int(size * _GIB)


def _board(
    name: str,
    product: str,
    arch: int,
    multiprocessors: int,
    memory_bytes: int,
    l2_mib: int,
    clocks_mhz: tuple[int, int],
    bus_bits: int,
) -> Board:
    per_block_kib, per_multiprocessor_kib, threads = _PER_ARCH[arch]
    return Board(
        name=name,
        product=product,
        capability=(arch // 10, arch % 10),
        multiprocessors=multiprocessors,
        memory_bytes=memory_bytes,
        shared_memory_per_block_optin=per_block_kib * _KIB,
        shared_memory_per_multiprocessor=per_multiprocessor_kib * _KIB,
        max_threads_per_multiprocessor=threads,
        l2_cache_bytes=l2_mib * _MIB,
        clock_rate_khz=clocks_mhz[0] * 1000,
        memory_clock_rate_khz=clocks_mhz[1] * 1000,
        memory_bus_width_bits=bus_bits,
    )


#: arch: shared KiB a block can opt in to, shared KiB and threads of a multiprocessor.
_PER_ARCH = {
    80: (163, 164, 2048),
    89: (99, 100, 1536),
    90: (227, 228, 2048),
    100: (227, 228, 2048),
    120: (99, 100, 1536),
}

BOARDS: dict[str, Board] = {
    board.name: board
    for board in (
        _board("h200", "NVIDIA H200", 90, 132, 150_109_880_320, 60, (1980, 3201), 6016),
        _board("h100", "NVIDIA H100 80GB HBM3", 90, 132, _gib(79.1), 50, (1980, 2619), 5120),
        _board("a100", "NVIDIA A100-SXM4-80GB", 80, 108, _gib(79.1), 40, (1410, 1593), 5120),
        _board("l4", "NVIDIA L4", 89, 58, _gib(22.0), 48, (2040, 6251), 192),
        _board("l40s", "NVIDIA L40S", 89, 142, _gib(44.4), 96, (2520, 9001), 384),
        _board("rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, _gib(23.5), 72, (2520, 10501), 384),
        _board("b200", "NVIDIA B200", 100, 148, _gib(178.3), 126, (1965, 3996), 8192),
        _board("rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, _gib(31.4), 96, (2407, 14001), 512),
    )
}

#: The board that stands for an architecture in `sim:sm_NN`: the data-center one, and the
#: smallest of them (l4) for sm_89, where boards differ in nothing a binary depends on.
BOARD_OF_ARCH: dict[int, str] = {80: "a100", 89: "l4", 90: "h200", 100: "b200", 120: "rtx5090"}


def get_board(spec: str) -> Board:
    """The board that `sim:h200`, `h200` or `sim:sm_90` names; case does not matter.

    Raises:
        UsageError: no such board; the text lists the known ones.
    """
    name = spec.strip().lower().removeprefix("sim:")
    arch = re.fullmatch(r"sm_?(\d+)a?", name)
    if arch is not None:
        name = BOARD_OF_ARCH.get(int(arch.group(1)), name)
    board = BOARDS.get(name)
    if board is None:
        raise _unknown_board(spec, name)
    return board


def _unknown_board(spec: str, name: str) -> UsageError:
    known = [*BOARDS, *(f"sm_{arch}" for arch in BOARD_OF_ARCH)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    return UsageError(
        f"there is no simulated board {spec!r}",
        why="known are " + ", ".join(f"sim:{one}" for one in known),
        fix=f"use sim:{close[0]}" if close else "use one of these",
    )
