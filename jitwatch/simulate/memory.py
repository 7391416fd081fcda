"""What the simulated device has allocated, and the record each of its storages carries.

Owns the count of live bytes, the addresses and the out-of-memory error. Does not know
what the bytes hold: values.py writes that into a block.
"""

from __future__ import annotations

import threading
from collections import deque

import torch

_ALIGNMENT_BYTES = 512
_FIRST_ADDRESS = 0x7F00_0000_0000
_MIB = 1 << 20
_GIB = 1 << 30

#: The attribute of a simulated tensor's UntypedStorage that holds its Block. torch keeps a
#: storage's Python object alive as long as the storage, so views and bases share it.
ATTRIBUTE = "_jitwatch_block"


class Block:
    """One live storage: where it lies and, if the host wrote them, its bytes.

    `twin` holds the bytes on the CPU, None when unknown; `known` marks which of them are
    known (all bits set), None meaning all. `float_derived` is set where the contents are a
    condition computed from floating-point data. Freed with the storage.
    """

    __slots__ = ("address", "float_derived", "known", "memory", "nbytes", "twin")

    def __init__(self, memory: Memory, address: int, nbytes: int) -> None:
        self.memory = memory
        self.address = address
        self.nbytes = nbytes
        self.twin: torch.UntypedStorage | None = None
        self.known: torch.UntypedStorage | None = None
        self.float_derived = False

    def __del__(self) -> None:
        self.memory.freed.append(self.nbytes)


class Memory:
    """The bytes in use on one board, each storage rounded up to 512."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        # Blocks die in the middle of anything, a garbage collection inside `take`
        # included: they only append here, and the next reader does the sum.
        self.freed: deque[int] = deque()
        self._allocated_bytes = 0
        self._peak_bytes = 0
        self._next_address = _FIRST_ADDRESS
        self._lock = threading.Lock()

    @property
    def allocated_bytes(self) -> int:
        """Live bytes now."""
        with self._lock:
            self._settle()
            return self._allocated_bytes

    @property
    def peak_bytes(self) -> int:
        """The most live bytes since the start or `reset_peak`."""
        return max(self._peak_bytes, self.allocated_bytes)

    @property
    def free_bytes(self) -> int:
        """What is left of the board's memory."""
        return self.total_bytes - self.allocated_bytes

    def reset_peak(self) -> None:
        """Let the peak start again at what is live now."""
        self._peak_bytes = self.allocated_bytes

    def _settle(self) -> None:
        while self.freed:
            self._allocated_bytes -= self.freed.popleft()

    def take(self, storage: torch.UntypedStorage) -> Block:
        """Count a storage seen for the first time and give it its block.

        Raises:
            torch.OutOfMemoryError: the board has no room for it.
        """
        wanted = storage.nbytes()
        nbytes = (wanted + _ALIGNMENT_BYTES - 1) & -_ALIGNMENT_BYTES
        freed = self.freed
        with self._lock:
            allocated = self._allocated_bytes + nbytes
            while freed:
                allocated -= freed.popleft()
            if allocated > self.total_bytes:
                self._allocated_bytes = allocated - nbytes
                raise self._out_of_memory(wanted)
            self._allocated_bytes = allocated
            if allocated > self._peak_bytes:
                self._peak_bytes = allocated
            address = self._next_address
            self._next_address += max(nbytes, _ALIGNMENT_BYTES)
        block = Block(self, address, nbytes)
        setattr(storage, ATTRIBUTE, block)
        return block

    def _out_of_memory(self, wanted: int) -> torch.OutOfMemoryError:
        free = _size(self.total_bytes - self._allocated_bytes)
        return torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate {_size(wanted)}. GPU 0 has a total capacity "
            f"of {_size(self.total_bytes)} of which {free} is free. Of the allocated memory "
            f"{_size(self._allocated_bytes)} is allocated by PyTorch, and 0 bytes is reserved by "
            "PyTorch but unallocated. (simulated device)"
        )


def block_of(storage: torch.UntypedStorage) -> Block | None:
    """The block of a storage, None where none was given yet."""
    block: Block | None = getattr(storage, ATTRIBUTE, None)
    return block


def _size(nbytes: int) -> str:
    if nbytes >= _GIB:
        return f"{nbytes / _GIB:.2f} GiB"
    return f"{nbytes / _MIB:.2f} MiB"
