"""Random number generators of the simulated device.

Owns their seeds. They draw nothing: simulated tensors filled at random have no values.
"""

from __future__ import annotations

import struct
from typing import Any

import torch

from jitwatch.simulate.devices import CUDA, META, real_device

_DEFAULT_SEED = 67280421310721
_STATE_BYTES = 16


class SimulatedGenerator(torch._C.Generator):
    """What `torch.Generator(device="cuda")` gives: a seed and an offset.

    One of torch's own, as torch checks the type of what it gets for `generator`; its own
    state stays unused.
    """

    def __new__(cls) -> SimulatedGenerator:
        """A generator with CUDA's default seed."""
        generator: SimulatedGenerator = super().__new__(cls, device="cpu")
        generator._seed, generator._offset = _DEFAULT_SEED, 0
        return generator

    def __init__(self) -> None:
        """All is done in `__new__`, where torch's generators take their device."""

    _seed: int
    _offset: int

    @property
    def device(self) -> torch.device:
        """The simulated device."""
        return CUDA

    def manual_seed(self, seed: int) -> SimulatedGenerator:
        """Set the seed and start again; returns the generator."""
        self._seed, self._offset = int(seed) % 2**64, 0
        return self

    def seed(self) -> int:
        """Take a seed from the CPU's source of entropy and return it."""
        self.manual_seed(torch._C.Generator().seed())
        return self._seed

    def initial_seed(self) -> int:
        """The seed in use."""
        return self._seed

    def get_state(self) -> torch.Tensor:
        """Seed and offset as 16 bytes on the CPU, as CUDA's generators have it."""
        state = struct.pack("<QQ", self._seed, self._offset)
        return torch.tensor(list(state), dtype=torch.uint8, device="cpu")

    def set_state(self, state: torch.Tensor) -> SimulatedGenerator:
        """Take back what `get_state` gave.

        Raises:
            RuntimeError: not 16 bytes.
        """
        if state.numel() != _STATE_BYTES:
            raise RuntimeError("RNG state is wrong size")
        self._seed, self._offset = struct.unpack("<QQ", bytes(state.tolist()))
        return self

    def clone_state(self) -> SimulatedGenerator:
        """A generator of its own with this one's state."""
        return SimulatedGenerator().set_state(self.get_state())

    def get_offset(self) -> int:
        """How far the generator has advanced; only `set_offset` moves it."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Move the generator."""
        self._offset = int(offset)


class _GeneratorType(type(torch._C.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_GeneratorType):
    """Stands in for `torch.Generator`: all generators are instances of it."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """A simulated generator for the simulated device, else torch's own."""
        with torch._C.DisableTorchFunction():
            if real_device(device) == META:
                return SimulatedGenerator()
            return torch._C.Generator(device=device)
