"""Options of the engine: what each resolves to, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.errors import ConfigError
from engine.hf_config import parse, read_config_file
from engine.kernels import reference
from engine.models.registry import family_of
from engine.options import (
    LARGEST_SIZE,
    check_sizes,
    choose_context,
    choose_device,
    choose_dtype,
    choose_operations,
)

SIZES = {"kv_tokens": 64, "page_size": 16, "max_model_len": None, "max_prefill_tokens": 8}
SIZES |= {"seed": 0}


@pytest.fixture(scope="module")
def config():
    file = read_config_file("tiny")
    return family_of(file).read_config(parse(file))


@pytest.fixture
def two_gpus(monkeypatch):
    """What torch says where it sees two; returns the devices that were made current."""
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def message(call, *args, **options):
    with pytest.raises(ConfigError) as caught:
        call(*args, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", ["kv_tokens", "max_model_len", "max_prefill_tokens"])
def test_sizes(name):
    for size in (1, LARGEST_SIZE, np.int64(5)):
        check_sizes(**{**SIZES, name: size})
    others = [0, -1, LARGEST_SIZE + 1, 2**70, True, 1.0, "64", [64], float("nan")]
    for size in others + ([] if name == "max_model_len" else [None]):
        said = message(check_sizes, **{**SIZES, name: size})
        assert said == f"{name}={size!r}: must be a whole number from 1 to 1073741824"


def test_page_sizes():
    for size in (16, 32, 1024):
        check_sizes(**{**SIZES, "page_size": size})
    for size in (0, 8, 24, -16, 2**31, 16.0, "16", None, True):
        said = message(check_sizes, **{**SIZES, "page_size": size})
        assert said == f"page_size={size!r}: must be a power of two, 16 or more"


def test_seeds():
    check_sizes(**{**SIZES, "seed": 2**63 - 1})
    for seed in (-1, 2**63, None, "x", 1.5, True):
        said = message(check_sizes, **{**SIZES, "seed": seed})
        assert said == f"seed={seed!r}: must be a whole number from 0 to 2**63 - 1"


def test_a_cpu():
    assert choose_device("cpu") == choose_device(torch.device("cpu")) == "cpu"


def test_gpus(two_gpus):
    assert choose_device("auto") == choose_device("cuda") == "cuda"
    assert choose_device("cuda:1") == choose_device(torch.device("cuda", 1)) == "cuda:1"
    assert two_gpus == [0, 1, 1]
    assert message(choose_device, "cuda:2") == (
        "device='cuda:2': torch sees 2 GPUs here; device='cpu' works"
    )


@pytest.mark.parametrize("device", ["", "CPU", "cpu:0", "cuda:x", "cuda:-1", "cuda:²", None, 5])
def test_what_is_no_device(two_gpus, device):
    assert message(choose_device, device) == (
        f"device={str(device)!r}: must be auto, cpu, cuda or cuda:N"
    )


def test_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == "cpu"
    assert message(choose_device, "cuda:0") == (
        "device='cuda:0': torch sees 0 GPUs here; device='cpu' works"
    )


def test_dtypes(config):
    stored = replace(config, dtype="float16")
    assert choose_dtype("auto", stored, on_gpu=True) == torch.float16
    assert choose_dtype("auto", stored, on_gpu=False) == torch.float32
    for given in ("bfloat16", "torch.bfloat16", torch.bfloat16):
        assert choose_dtype(given, stored, on_gpu=True) == torch.bfloat16
    for given in ("int8", torch.int8):
        assert message(choose_dtype, given, stored, on_gpu=True) == (
            "dtype 'int8': the engine runs bfloat16, float16, float32"
        )


def test_a_dtype_of_the_checkpoint_that_does_not_run(config):
    odd = replace(config, dtype="float8_e4m3fn")
    assert message(choose_dtype, "auto", odd, on_gpu=True) == (
        "dtype 'float8_e4m3fn' of config.json: the engine runs bfloat16, float16, float32; "
        "choose one with dtype='bfloat16'"
    )
    assert choose_dtype("bfloat16", odd, on_gpu=True) == torch.bfloat16


def test_contexts(config):
    assert (choose_context(None, config), choose_context(7, config)) == (4096, 7)
    assert message(choose_context, 4097, config) == (
        "max_model_len=4097: Qwen3_5MoeForCausalLM was made for 4096; leave it out to have them all"
    )


def test_operations():
    assert choose_operations("auto", on_gpu=False) is reference
    assert choose_operations("reference", on_gpu=True) is reference
    for name in ("fast", None, [], 5):
        said = message(choose_operations, name, on_gpu=False)
        assert said == f"kernels={name!r}: must be auto, fused or reference"
