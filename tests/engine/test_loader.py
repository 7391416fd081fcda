"""Checkpoints in every layout, and every way in which one can be broken."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import LLM, SamplingParams
from engine.errors import WeightsError
from tests.engine.checkpoints import write_checkpoint

MOE = "Qwen3_5MoeForCausalLM"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(MOE, 0, directory)
    return directory


@pytest.fixture
def checkpoint(written, tmp_path):
    """A copy of its own."""
    return shutil.copytree(written, tmp_path / "copy")


def load(directory, **options):
    return LLM(directory, device="cpu", kv_tokens=64, **options)


def answer(directory, **options):
    params = SamplingParams(temperature=0, max_tokens=4)
    [output] = load(directory, **options).generate([[5, 6, 7]], params)
    return output.token_ids, output.logprobs


def rewrite(directory, change):
    """Save the tensors that `change` makes of the checkpoint's."""
    file = directory / "model.safetensors"
    tensors = {
        name: tensor.clone().contiguous() for name, tensor in change(load_file(file)).items()
    }
    save_file(tensors, file)


def renamed(old, new):
    return lambda tensors: {re.sub(old, new, name): t for name, t in tensors.items()}


def fused(tensors):
    """The experts of each layer in two tensors."""
    per_expert = re.compile(r"(.*\.experts)\.(\d+)\.(gate_proj|up_proj|down_proj)\.weight")
    kept = {name: t for name, t in tensors.items() if not per_expert.fullmatch(name)}
    found = [m for m in map(per_expert.fullmatch, tensors) if m]
    for prefix in {m[1] for m in found}:
        count = 1 + max(int(m[2]) for m in found if m[1] == prefix)

        def every(part, prefix=prefix, count=count):
            return torch.stack([tensors[f"{prefix}.{i}.{part}.weight"] for i in range(count)])

        kept[f"{prefix}.gate_up_proj"] = torch.cat([every("gate_proj"), every("up_proj")], dim=1)
        kept[f"{prefix}.down_proj"] = every("down_proj")
    return kept


def per_expert(tensors):
    """The experts of each layer in three tensors for each."""
    result = {}
    for name, tensor in tensors.items():
        if name.endswith("gate_up_proj"):
            prefix = name.removesuffix(".gate_up_proj")
            for expert, (gate, up) in enumerate(t.chunk(2) for t in tensor):
                result[f"{prefix}.{expert}.gate_proj.weight"] = gate
                result[f"{prefix}.{expert}.up_proj.weight"] = up
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix(".down_proj")
            result |= {f"{prefix}.{i}.down_proj.weight": t for i, t in enumerate(tensor)}
        else:
            result[name] = tensor
    return result


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: fused(per_expert(tensors)),
        lambda tensors: per_expert(fused(tensors)),
        renamed(r"^model\.", "model.language_model."),
        renamed(r"^(model|lm_head)\.", r"language_model.\1."),
        lambda tensors: {
            **tensors,
            "mtp.layers.0.fc.weight": torch.ones(3),
            "model.visual.patch_embed.weight": torch.ones(3),
            "model.rotary_emb.inv_freq": torch.ones(3),
        },
    ],
    ids=["fused", "per-expert", "text-prefix", "whole-prefix", "parts-not-used"],
)
def test_other_layouts_say_the_same(written, checkpoint, change):
    before = set(load_file(checkpoint / "model.safetensors"))
    rewrite(checkpoint, change)
    names = set(load_file(checkpoint / "model.safetensors"))
    assert answer(checkpoint) == answer(written)
    assert names != before or any(".experts." in name for name in names)


def test_both_expert_layouts_were_seen(written):
    tensors = load_file(written / "model.safetensors")
    assert any(name.endswith("gate_up_proj") for name in fused(tensors))
    assert any(name.endswith("experts.1.up_proj.weight") for name in per_expert(fused(tensors)))


def shard(directory):
    """Two files and an index."""
    file = directory / "model.safetensors"
    tensors = sorted(load_file(file).items())
    weight_map = {}
    for name, part in (("a.safetensors", tensors[::2]), ("b.safetensors", tensors[1::2])):
        save_file(dict(part), directory / name)
        weight_map |= dict.fromkeys(dict(part), name)
    file.unlink()
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return index


def test_shards(written, checkpoint):
    shard(checkpoint)
    assert answer(checkpoint) == answer(written)


def test_a_shard_that_is_missing(checkpoint):
    shard(checkpoint)
    (checkpoint / "b.safetensors").unlink()
    with pytest.raises(WeightsError) as caught:
        load(checkpoint)
    assert str(caught.value) == (
        f"{checkpoint}: 1 of 2 files are missing: b.safetensors; download the checkpoint again"
    )


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'])
def test_an_index_that_is_none(checkpoint, text):
    shard(checkpoint).write_text(text)
    with pytest.raises(WeightsError, match="not a safetensors index"):
        load(checkpoint)


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_file_cut_short(checkpoint, kept):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(
        WeightsError, match=r"not a whole safetensors file \(.*\); download it again"
    ):
        load(checkpoint)


def test_no_weights_at_all(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="dummy_weights=True"):
        load(checkpoint)
    assert len(answer(checkpoint, dummy_weights=True)[0]) == 4


def test_a_tensor_too_many(checkpoint):
    rewrite(checkpoint, lambda tensors: {**tensors, "model.layers.9.x.weight": torch.ones(1)})
    with pytest.raises(WeightsError) as caught:
        load(checkpoint)
    assert str(caught.value) == (
        f"{checkpoint}: 1 tensors that the configuration has no place for: "
        "model.layers.9.x.weight; config.json and weights don't belong together"
    )


def test_a_tensor_too_few(checkpoint):
    rewrite(checkpoint, renamed(r"^model\.norm\.weight", "model.norms.weight"))
    with pytest.raises(WeightsError) as caught:
        load(checkpoint)
    assert str(caught.value) == (
        f"{checkpoint}: model.norm.weight is missing; the nearest name there is "
        "model.norms.weight; config.json and weights don't belong together, or a file isn't there: "
        "download the checkpoint again"
    )


def test_another_shape(checkpoint):
    rewrite(checkpoint, lambda tensors: {**tensors, "model.norm.weight": torch.ones(3)})
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has shape \(3,\), the config"):
        load(checkpoint)


def test_a_tensor_twice(checkpoint):
    save_file({"model.norm.weight": torch.ones(3)}, checkpoint / "other.safetensors")
    with pytest.raises(WeightsError, match=r"model\.norm\.weight is in model\.safetensors and in"):
        load(checkpoint)


def test_the_first_layers_of_a_checkpoint(checkpoint):
    llm = load(checkpoint, layers=1)
    assert len(llm.runner.model.layers) == 1
    # The same layer as in the whole model.
    whole = load(checkpoint)
    first, second = (m.runner.model.layers[0].mixer_norm.weight for m in (llm, whole))
    assert torch.equal(first, second)


def test_a_head_beside_tied_embeddings_is_left(tmp_path):
    write_checkpoint(MOE, 1, tmp_path)
    expected = answer(tmp_path)
    head = torch.ones(97, 84)
    rewrite(tmp_path, lambda tensors: {**tensors, "lm_head.weight": head})
    assert answer(tmp_path) == expected


def test_a_directory_with_a_name_of_its_own(written, tmp_path):
    copy = shutil.copytree(written, tmp_path / "модель 模型 [1]")
    assert answer(copy) == answer(written)


def test_a_quantization_that_only_the_weights_show(checkpoint):
    def quantized(tensors):
        return {**tensors, "model.norm.weight": tensors["model.norm.weight"].to(torch.int8)}

    rewrite(checkpoint, quantized)
    with pytest.raises(
        WeightsError, match=r"model\.norm\.weight holds int8 values; take the check"
    ):
        load(checkpoint)
