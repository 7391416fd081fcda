"""What the host wrote into simulated tensors, kept readable on the CPU.

Owns the twins: an integer or bool storage up to 64 KiB may have its bytes on the CPU, and
every view of it reads and writes the same ones. Does not know which torch operation is
running: tensors.py calls it.

All functions here expect torch functions to be undisturbed, that is to run inside the
mode's handler or under `torch._C.DisableTorchFunction`.
"""

from __future__ import annotations

from typing import Any

import torch

from jitwatch.simulate.memory import Block, Memory, block_of

#: Storages above this are never mirrored.
LIMIT_BYTES = 64 * 1024

#: The integer and bool types, with the value whose bits are all set (True for bool).
_ALL_SET: dict[torch.dtype, int | bool] = {
    torch.bool: True,
    torch.uint8: 2**8 - 1,
    torch.int8: -1,
    torch.int16: -1,
    torch.int32: -1,
    torch.int64: -1,
}


def may_be_known(tensor: torch.Tensor) -> bool:
    """Is this a type and a size whose values are followed?"""
    return tensor.dtype in _ALL_SET and tensor.untyped_storage().nbytes() <= LIMIT_BYTES


def block_for(tensor: torch.Tensor, memory: Memory) -> Block:
    """The tensor's block; a storage seen for the first time is counted."""
    storage = tensor.untyped_storage()
    return block_of(storage) or memory.take(storage)


def twin_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor's values as a CPU tensor that shares the twin's bytes, None if unknown."""
    if tensor.dtype not in _ALL_SET:
        return None
    if tensor.numel() == 0:
        return torch.empty(tensor.size(), dtype=tensor.dtype, device="cpu")
    storage = tensor.untyped_storage()
    block = block_of(storage)
    if block is None or block.twin is None:
        return None
    if block.twin.nbytes() != storage.nbytes():
        block.twin = block.known = None  # resized: the old bytes mean nothing now
        return None
    if block.known is not None:
        marks = _view(block.known, tensor)
        if not bool((marks == _ALL_SET[tensor.dtype]).all()):
            return None
    return _view(block.twin, tensor)


def know(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Record that the host wrote `value` (on the CPU, same shape) into the tensor."""
    block = _writable_block(tensor)
    if block is None or block.twin is None:
        return
    _view(block.twin, tensor).copy_(value)
    if block.known is None:
        return
    if _covers_storage(tensor):
        block.known = None
        return
    _view(block.known, tensor).fill_(_ALL_SET[tensor.dtype])
    marks = torch.empty(0, dtype=torch.uint8, device="cpu").set_(block.known)
    if bool((marks == 255).all()):
        block.known = None


def know_items(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Record that the host wrote `tensor[index] = value`; both hold CPU tensors only."""
    block = _writable_block(tensor)
    if block is None or block.twin is None:
        return
    _view(block.twin, tensor)[index] = value
    if block.known is not None:
        _view(block.known, tensor)[index] = _ALL_SET[tensor.dtype]


def forget(tensor: torch.Tensor) -> None:
    """Something unknown was written into the tensor: of its storage the rest stays known."""
    block = block_of(tensor.untyped_storage())
    if block is None or block.twin is None:
        return
    if _covers_storage(tensor) or tensor.dtype not in _ALL_SET:
        block.twin = block.known = None
        return
    if block.known is None:
        block.known = torch.UntypedStorage(block.twin.nbytes(), device="cpu")
        torch.empty(0, dtype=torch.uint8, device="cpu").set_(block.known).fill_(255)
    _view(block.known, tensor).zero_()


def kernel_wrote(tensor: torch.Tensor) -> None:
    """A kernel may have stored to the tensor's memory: its storage has no known value now.

    That goes for every view and base of the storage. Cheap, and does nothing for tensors
    that carry no value.
    """
    with torch._C.DisableTorchFunction():
        block = block_of(tensor.untyped_storage())
        if block is not None:
            block.twin = block.known = None
            block.float_derived = False


def _writable_block(tensor: torch.Tensor) -> Block | None:
    storage = tensor.untyped_storage()
    block = block_of(storage)
    if block is None or not may_be_known(tensor):
        return None
    if block.twin is None or block.twin.nbytes() != storage.nbytes():
        block.twin = torch.UntypedStorage(storage.nbytes(), device="cpu")
        block.known = torch.UntypedStorage(storage.nbytes(), device="cpu").fill_(0)
    return block


def _covers_storage(tensor: torch.Tensor) -> bool:
    nbytes = tensor.numel() * tensor.element_size()
    return bool(nbytes == tensor.untyped_storage().nbytes() and tensor.is_contiguous())


def _view(storage: torch.UntypedStorage, tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of `storage` seen through the tensor's dtype, offset, shape and strides."""
    empty = torch.empty(0, dtype=tensor.dtype, device="cpu")
    return empty.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
