"""The engine's options, checked and resolved for this machine and this model."""

from __future__ import annotations

from types import ModuleType

import torch

from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.kernels import load_operations

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def check_sizes(
    kv_tokens: int, page_size: int, max_model_len: int | None, max_prefill_tokens: int
) -> None:
    """Raise a ConfigError for a size that can't be."""
    sizes = {"kv_tokens": kv_tokens, "max_prefill_tokens": max_prefill_tokens}
    if max_model_len is not None:
        sizes["max_model_len"] = max_model_len
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ConfigError(f"{name}={size!r}: must be a whole number, 1 or more")
    if not isinstance(page_size, int) or page_size < 16 or page_size & (page_size - 1):
        raise ConfigError(f"page_size={page_size!r}: must be a power of two, 16 or more")


def choose_device(device: str) -> str:
    """The device to run on.

    Raises:
        ConfigError: for one that isn't there, or of another kind.
    """
    available = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if available else "cpu"
    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        return device
    if kind != "cuda" or (index and not index.isdigit()):
        raise ConfigError(f"device={device!r}: must be auto, cpu, cuda or cuda:N")
    if not available or int(index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count() if available else 0
        raise ConfigError(f"device={device!r}: torch sees {count} GPUs here; device='cpu' works")
    # Triton launches on the current device.
    torch.cuda.set_device(int(index or 0))
    return device


def choose_dtype(dtype: str, config: ModelConfig, *, on_gpu: bool) -> torch.dtype:
    """The dtype of weights and activations.

    Raises:
        ConfigError: for one that the engine doesn't compute in.
    """
    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        name = config.dtype if on_gpu else "float32"
    if name not in DTYPES:
        raise ConfigError(f"dtype {name!r}: the engine runs {', '.join(DTYPES)}")
    return DTYPES[name]


def choose_context(asked: int | None, config: ModelConfig) -> int:
    """The longest prompt and output together.

    Raises:
        ConfigError: if more is asked for than the model was made for.
    """
    if asked is not None and asked > config.max_positions:
        raise ConfigError(
            f"max_model_len={asked}: {config.architecture} was made for {config.max_positions}"
        )
    return config.max_positions if asked is None else asked


def choose_operations(kernels: str, *, on_gpu: bool) -> ModuleType:
    """The operations to run with.

    Raises:
        ConfigError: for another name.
    """
    if kernels not in ("auto", "fused", "reference"):
        raise ConfigError(f"kernels={kernels!r}: must be auto, fused or reference")
    if kernels == "auto":
        kernels = "fused" if on_gpu else "reference"
    return load_operations(kernels)
