"""Where weights come from: a checkpoint's safetensors files, or made up on the device.

Layers ask for tensors by the checkpoint's names and with the shape that the configuration gives;
what nobody asked for, or what isn't there, is an error.
"""

from __future__ import annotations

import difflib
import json
import re
import reprlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import WeightsError

Shape = tuple[int, ...]
Init = Callable[[Tensor, torch.Generator], object]

# Other dtypes are a quantization's, which converting would take for the weights themselves.
STORED_DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Parts of a checkpoint that text generation doesn't use.
UNUSED = re.compile(r"^(mtp\.|model\.visual\.|visual\.|model\.vision_tower\.)|\.inv_freq$")
# A file beside its index.
FILE_NAME = re.compile(r"[\w.-]{1,200}\.safetensors")
LAYER = re.compile(r"^model\.layers\.(\d+)\.")


def normal(tensor: Tensor, generator: torch.Generator) -> None:
    """The usual initialisation of a projection, where weights are made up."""
    tensor.normal_(0.0, 0.02, generator=generator)


class Weights(Protocol):
    """A source of tensors."""

    def take(
        self, name: str, shape: Shape, init: Init = normal, dtype: torch.dtype | None = None
    ) -> Tensor:
        """The tensor of that name on the engine's device, in `dtype` or the model's dtype."""

    def has(self, name: str) -> bool:
        """Whether `take(name)` would find a tensor."""

    def skip(self, name: str) -> None:
        """Leave a tensor that may be there and isn't used."""

    def finish(self) -> None:
        """Called when the model is built: an error if tensors are left that nobody took."""


class DummyWeights:
    """Random weights from a seed, made where they are used."""

    def __init__(self, device: str, dtype: torch.dtype, seed: int = 0) -> None:
        self.device = device
        self.dtype = dtype
        self.generator = torch.Generator(device=device).manual_seed(seed)

    def take(
        self, name: str, shape: Shape, init: Init = normal, dtype: torch.dtype | None = None
    ) -> Tensor:
        del name
        tensor = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        init(tensor, self.generator)
        return tensor

    def has(self, name: str) -> bool:
        # Experts in one tensor are the cheaper layout to make.
        return not re.search(r"\.experts\.\d+\.", name)

    def skip(self, name: str) -> None:
        del name

    def finish(self) -> None:
        """Nothing can be left."""


class SafetensorsWeights:
    """The tensors of a checkpoint directory, with or without an index file.

    `num_layers` is the number of layers that the engine builds: a shortened model leaves the
    later layers' tensors alone.
    """

    def __init__(
        self, directory: Path, device: str, dtype: torch.dtype, num_layers: int, shortened: bool
    ) -> None:
        self.directory = directory
        self.device = device
        self.dtype = dtype
        self.first_unused_layer = num_layers if shortened else None
        self.files = {path: open_file(path) for path in checkpoint_files(directory)}
        self.location: dict[str, tuple[Path, str]] = {}
        for path, file in self.files.items():
            for stored in file.keys():  # noqa: SIM118 - safe_open is not a mapping
                self._index(path, stored)
        self.taken: set[str] = set()

    def _index(self, path: Path, stored: str) -> None:
        name = canonical(stored)
        if UNUSED.search(name):
            return
        layer = LAYER.match(name)
        first_unused = self.first_unused_layer
        if layer and first_unused is not None and int(layer.group(1)) >= first_unused:
            return
        if name in self.location:
            other = self.location[name][0].name
            raise WeightsError(
                f"{self.directory}: {name} is in {other} and in {path.name}; "
                "remove the file that doesn't belong to this checkpoint"
            )
        self.location[name] = (path, stored)

    def has(self, name: str) -> bool:
        return name in self.location

    def take(
        self, name: str, shape: Shape, init: Init = normal, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Raises WeightsError if the tensor is missing or has another shape."""
        del init
        if name not in self.location:
            raise WeightsError(
                f"{self.directory}: {name} is missing{self._near(name)}; config.json and weights "
                "don't belong together, or a file isn't there: download the checkpoint again"
            )
        path, stored = self.location[name]
        try:
            tensor = self.files[path].get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise WeightsError(f"{path}: {stored} can't be read: {error}") from None
        if tuple(tensor.shape) != shape:
            raise WeightsError(
                f"{path}: {stored} has shape {tuple(tensor.shape)}, "
                f"the configuration makes it {shape}; config.json and weights don't belong together"
            )
        if tensor.dtype not in STORED_DTYPES:
            raise WeightsError(
                f"{path}: {stored} holds {str(tensor.dtype).removeprefix('torch.')} values; "
                "take the checkpoint in bfloat16, float16 or float32"
            )
        self.taken.add(name)
        return tensor.to(device=self.device, dtype=dtype or self.dtype)

    def _near(self, name: str) -> str:
        near = difflib.get_close_matches(name, self.location, n=1)
        return f"; the nearest name there is {near[0]}" if near else ""

    def skip(self, name: str) -> None:
        self.taken.add(name)

    def finish(self) -> None:
        """Raises WeightsError if the checkpoint holds tensors that the model has no place for."""
        surplus = sorted(set(self.location) - self.taken)
        if surplus:
            shown = ", ".join(surplus[:5]) + (", …" if len(surplus) > 5 else "")
            raise WeightsError(
                f"{self.directory}: {len(surplus)} tensors that the configuration has no place "
                f"for: {shown}; config.json and weights don't belong together"
            )


def canonical(stored: str) -> str:
    """A tensor's name without the prefix that multimodal checkpoints put before the text model."""
    name = re.sub(r"^model\.language_model\.", "model.", stored)
    name = re.sub(r"^language_model\.model\.", "model.", name)
    return re.sub(r"^language_model\.lm_head\.", "lm_head.", name)


def checkpoint_files(directory: Path) -> list[Path]:
    """The safetensors files of a checkpoint, those of its index where it has one.

    Raises:
        WeightsError: if there are none, one of the index is missing, or it can't be listed.
    """
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        paths = indexed_files(index)
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            raise WeightsError(
                f"{directory}: {len(missing)} of {len(paths)} files are missing: "
                f"{', '.join(missing[:5])}; download the checkpoint again"
            )
        return paths
    try:
        # A glob says of a directory that can't be listed that it is empty.
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".safetensors")
    except OSError as error:
        raise WeightsError(f"{directory}: can't be listed: {error.strerror}") from None
    if not paths:
        raise WeightsError(
            f"{directory}: no safetensors files; give a complete checkpoint, or ask for made-up "
            "weights with dummy_weights=True"
        )
    return paths


def indexed_files(index: Path) -> list[Path]:
    """The files that an index names.

    Raises:
        WeightsError: if it can't be read or is something else.
    """
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        if any(not isinstance(name, str) or not FILE_NAME.fullmatch(name) for name in names):
            raise ValueError(f"names files {reprlib.repr(names)}")
    except OSError as error:
        raise WeightsError(f"{index}: can't be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(
            f"{index}: not a safetensors index: {error!r}; download it again"
        ) from None
    return sorted(index.parent / name for name in names)


def open_file(path: Path) -> Any:
    """A safetensors file, memory-mapped.

    Raises:
        WeightsError: if it is cut short or is something else.
    """
    try:
        # safetensors says "no such file" of one that may not be read.
        path.open("rb").close()
    except OSError as error:
        raise WeightsError(f"{path}: can't be read: {error.strerror}") from None
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path}: not a whole safetensors file ({error}); download it again"
        ) from None
