"""What a program means by a device: the simulated one, the CPU or one that isn't there.

Owns the translation of `"cuda"`, `"cuda:0"`, `0`, `torch.device` to the meta device that
simulated tensors live on. Knows nothing of tensors' values.
"""

from __future__ import annotations

import torch

#: Where simulated tensors really live, and where they say they live.
META = torch.device("meta")
CUDA = torch.device("cuda", 0)

_KNOWN: dict[object, torch.device] = dict.fromkeys(
    ("cuda", "cuda:0", "meta", torch.device("cuda"), CUDA, META), META
)


def real_device(device: object) -> object:
    """The device to hand to torch: meta for the simulated one, others unchanged.

    Raises:
        torch.AcceleratorError: an ordinal that a one-GPU board has not.
    """
    if isinstance(device, int) and not isinstance(device, bool):
        device = torch.device("cuda", device)
    known = _KNOWN.get(device)
    if known is not None:
        return known
    parsed = torch.device(device) if isinstance(device, str) else device
    if isinstance(parsed, torch.device) and parsed.type == "cuda":
        raise invalid_ordinal()
    return device


def check_ordinal(device: object) -> int:
    """The index of the simulated device that `device` names (None: the current one): 0.

    Raises:
        ValueError: it names another kind of device.
        torch.AcceleratorError: an ordinal that a one-GPU board has not.
    """
    if device is None:
        return 0
    with torch._C.DisableTorchFunction():
        if real_device(device) == META:
            return 0
    raise ValueError(f"Expected a cuda device, but got: {device}")


def invalid_ordinal() -> RuntimeError:
    """What CUDA answers to a device that the machine has not."""
    return accelerator_error("CUDA error: invalid device ordinal")


def accelerator_error(text: str) -> RuntimeError:
    """torch's own error for a failed CUDA call."""
    kind: type[RuntimeError] = getattr(torch, "AcceleratorError", RuntimeError)
    return kind(f"{text} (simulated device)")
