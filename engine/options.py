"""The engine's options, checked and resolved for this machine and this model."""

from __future__ import annotations

import os
from types import ModuleType

import torch

from engine.checks import is_whole
from engine.config import ModelConfig
from engine.errors import ConfigError
from engine.kernels import load_operations

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


# Sizes and slots are int32 numbers on the device.
LARGEST_SIZE = 2**30

WARMUP_LIMIT = "ENGINE_WARMUP_MAX_LEN"


def check_sizes(
    *,
    kv_tokens: int,
    page_size: int,
    max_model_len: int | None,
    max_prefill_tokens: int,
    seed: int,
) -> None:
    """Raise a ConfigError for a size or a seed that can't be."""
    sizes = {"kv_tokens": kv_tokens, "max_prefill_tokens": max_prefill_tokens}
    if max_model_len is not None:
        sizes["max_model_len"] = max_model_len
    for name, size in sizes.items():
        if not is_whole(size) or not 1 <= size <= LARGEST_SIZE:
            raise ConfigError(f"{name}={size!r}: must be a whole number from 1 to {LARGEST_SIZE}")
    in_range = is_whole(page_size) and 16 <= page_size <= LARGEST_SIZE
    if not in_range or page_size & (page_size - 1):
        raise ConfigError(f"page_size={page_size!r}: must be a power of two, 16 or more")
    if not is_whole(seed) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed={seed!r}: must be a whole number from 0 to 2**63 - 1")


def check_flags(**flags: bool) -> None:
    """Raise a ConfigError for a switch that is neither True nor False: `'no'` would switch on."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigError(f"{name}={flag!r}: must be True or False")


def check_observer(observer: object) -> None:
    """Raise a ConfigError for an observer that can't be told everything; None is nobody."""
    missing = [n for n in ("step", "first_token") if not callable(getattr(observer, n, None))]
    if observer is not None and missing:
        raise ConfigError(
            f"observer={observer!r}: has no {' and no '.join(missing)}; engine.observe.Observer "
            "says what one needs"
        )


def choose_device(device: str | torch.device) -> str:
    """The device to run on.

    Raises:
        ConfigError: for one that isn't there, or of another kind.
    """
    device = str(device)
    available = torch.cuda.is_available()
    if device == "auto":
        return "cuda" if available else "cpu"
    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        return device
    if kind != "cuda" or (index and not index.isdecimal()):
        raise ConfigError(f"device={device!r}: must be auto, cpu, cuda or cuda:N")
    if not available or int(index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count() if available else 0
        raise ConfigError(f"device={device!r}: torch sees {count} GPUs here; device='cpu' works")
    # Triton launches on the current device.
    torch.cuda.set_device(int(index or 0))
    return device


def choose_dtype(dtype: str | torch.dtype, config: ModelConfig, *, on_gpu: bool) -> torch.dtype:
    """The dtype of weights and activations.

    Raises:
        ConfigError: for one that the engine doesn't compute in.
    """
    name = str(dtype).removeprefix("torch.")
    if name == "auto" and on_gpu and config.dtype not in DTYPES:
        raise ConfigError(
            f"dtype {config.dtype!r} of config.json: the engine runs {', '.join(DTYPES)}; "
            "choose one with dtype='bfloat16'"
        )
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
            f"max_model_len={asked}: {config.architecture} was made for {config.max_positions}; "
            "leave it out to have them all"
        )
    return config.max_positions if asked is None else int(asked)


def choose_operations(kernels: str, *, on_gpu: bool) -> ModuleType:
    """The operations to run with.

    Raises:
        ConfigError: for another name, or kernels where Triton has nothing to run them on.
    """
    if not isinstance(kernels, str) or kernels not in ("auto", "fused", "reference"):
        raise ConfigError(f"kernels={kernels!r}: must be auto, fused or reference")
    if kernels == "auto":
        kernels = "fused" if on_gpu else "reference"
    operations = load_operations(kernels)
    if kernels == "fused" and not on_gpu and not is_interpreted():
        raise ConfigError(
            "kernels='fused': Triton runs no kernels on a CPU; take kernels='reference', or set "
            "TRITON_INTERPRET=1 before Python starts"
        )
    return operations


def is_interpreted() -> bool:
    """Whether Triton interprets kernels in Python rather than compiling them."""
    # A CPU run without kernels doesn't import triton.
    from triton import knobs

    return bool(knobs.runtime.interpret)


def warmup_limit() -> int:
    """The longest prompt that warmup may run, from the environment.

    Raises:
        ConfigError: if that isn't a whole number of 1 or more.
    """
    text = os.environ.get(WARMUP_LIMIT)
    if text is None:
        return LARGEST_SIZE
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > 12 or not 1 <= int(digits) <= LARGEST_SIZE:
        raise ConfigError(
            f"{WARMUP_LIMIT}={text!r} in the environment: must be a whole number from 1 to "
            f"{LARGEST_SIZE}; unset it to warm up at every length that a kernel names"
        )
    return int(text)
