"""What is almost right: NumPy's numbers, switches that aren't, kernels on a CPU, a shut folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine import LLM, ConfigError, SamplingParams, WeightsError
from engine.hf_config import PRESETS

GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)


def tiny(**options):
    return LLM("tiny", **{"device": "cpu", "kv_tokens": 64, **options})


def refusal(**options):
    with pytest.raises(ConfigError) as caught:
        tiny(**options)
    return str(caught.value)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int64])
def test_numpy_sizes_are_the_numbers_that_they_say(kind):
    given = {"kv_tokens": 64, "page_size": 16, "max_model_len": 48, "max_prefill_tokens": 7}
    given |= {"seed": 3, "layers": 3}
    plain, numpy = tiny(**given), tiny(**{name: kind(size) for name, size in given.items()})
    for llm in (plain, numpy):
        assert (llm.pool.num_pages, llm.pool.page_size, llm.max_model_len) == (4, 16, 48)
        sizes = (llm.pool.num_pages, llm.max_model_len, llm.max_prefill_tokens)
        assert {type(size) for size in sizes} == {int}
        assert len(llm.config.layers) == 3
    prompt = [list(range(1, 21))]
    assert numpy.generate(prompt, GREEDY) == plain.generate(prompt, GREEDY)


def test_numpy_seeds_draw_the_same():
    hot = SamplingParams(temperature=2.0, max_tokens=8, ignore_eos=True)
    drawn = [tiny(seed=seed).generate([[1, 2]], hot) for seed in (3, np.int64(3), 4)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("name", ["dummy_weights", "cuda_graphs"])
def test_switches(name):
    for value in ("no", "", 0, 1, None, np.True_, np.array([1, 2])):
        assert refusal(**{name: value}) == f"{name}={value!r}: must be True or False"
    assert tiny(**{name: False}).device == tiny(**{name: True}).device == "cpu"


def test_arrays_are_no_names():
    array = np.array(["auto", "x"])
    assert refusal(dtype=array) == (
        "dtype \"['auto' 'x']\": the engine runs bfloat16, float16, float32"
    )
    assert refusal(kernels=array) == f"kernels={array!r}: must be auto, fused or reference"
    assert tiny(dtype="auto", kernels="auto").device == "cpu"


def load_fused(**environment):
    """In a process of its own: Triton reads the variable as it defines kernels."""
    code = "from engine import LLM; LLM('tiny', device='cpu', kv_tokens=16, kernels='fused')"
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_kernels_on_a_cpu_need_the_interpreter():
    refused = load_fused()
    assert refused.stderr.splitlines()[-1] == (
        "engine.errors.ConfigError: kernels='fused': Triton runs no kernels on a CPU; "
        "take kernels='reference', or set TRITON_INTERPRET=1 before Python starts"
    )
    assert load_fused(TRITON_INTERPRET="1").returncode == 0
    assert tiny(kernels="reference").device == "cpu"


def test_a_directory_that_cannot_be_listed(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_bytes((PRESETS / "tiny.json").read_bytes())

    def shut(_):
        raise PermissionError(13, "Permission denied")

    # A mode of the directory's wouldn't keep root out.
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", shut)
        patch.setattr(Path, "glob", lambda *_: iter(()))
        with pytest.raises(WeightsError) as caught:
            LLM(tmp_path, device="cpu", kv_tokens=16)
    assert str(caught.value) == f"{tmp_path}: can't be listed: Permission denied"
    with pytest.raises(WeightsError, match="no safetensors files"):
        LLM(tmp_path, device="cpu", kv_tokens=16)
