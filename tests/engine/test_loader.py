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
from engine.loader import checkpoint_files, open_file
from tests.engine.checkpoints import write_checkpoint
from tests.engine.test_transformers import logits_of, tokens

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


def stored(directory):
    return list(load_file(directory / "model.safetensors"))


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


def logits(directory):
    """After each of 21 tokens, of which the last two are decoded."""
    return logits_of(load(directory), tokens(0, 21), [19, 1, 1])


def test_a_multimodal_checkpoint_says_the_same_bit_for_bit(written, checkpoint):
    """A vision tower beside the text model, its config nested, experts in the other layout."""
    layout = fused if not any("gate_up_proj" in n for n in stored(written)) else per_expert

    def multimodal(tensors):
        renamed_ = renamed(r"^model\.", "model.language_model.")(layout(tensors))
        others = ("mtp.fc.weight", "mtp.layers.0.mlp.gate.weight", "model.visual.blocks.0.weight")
        return {**renamed_, **dict.fromkeys(others, torch.ones(2))}

    rewrite(checkpoint, multimodal)
    config = json.loads((checkpoint / "config.json").read_text())
    config = {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "text_config": config}
    (checkpoint / "config.json").write_text(json.dumps(config))
    assert not set(stored(checkpoint)) & (set(stored(written)) - {"lm_head.weight"})
    assert torch.equal(logits(checkpoint), logits(written))


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


def test_layers_of_shards(checkpoint):
    index = shard(checkpoint)
    assert len(load(checkpoint, layers=1).runner.model.layers) == 1
    # A name in the index decides nothing; a file does.
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    assert len(load(checkpoint, layers=1).runner.model.layers) == 1


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "[" * 100_000, '{"weight_map": 3}', '{"weight_map": {"a": 1}}']
    + [json.dumps({"weight_map": {"a": name}}) for name in ("../x", "/x.safetensors", "", "\0")]
    + [json.dumps({"weight_map": {"a": "x" * 300 + ".safetensors"}})],
)
def test_an_index_that_is_none(written, checkpoint, text):
    index = shard(checkpoint)
    sound = index.read_text()
    index.write_text(text)
    start = rf"^{re.escape(str(index))}: not a safetensors index: .*; download it again$"
    with pytest.raises(WeightsError, match=start):
        load(checkpoint)
    index.write_text(sound)
    assert answer(checkpoint) == answer(written)


def test_files_that_may_not_be_read(checkpoint, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    # Nothing is forbidden to root, who may run this.
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.open", refuse)
        file = checkpoint / "model.safetensors"
        with pytest.raises(WeightsError) as caught:
            open_file(file)
    assert str(caught.value) == f"{file}: can't be read: Permission denied"
    index = shard(checkpoint)
    monkeypatch.setattr("pathlib.Path.read_text", refuse)
    with pytest.raises(WeightsError) as caught:
        checkpoint_files(checkpoint)
    assert str(caught.value) == f"{index}: can't be read: Permission denied"


def cuts(directory):
    """Lengths at and beside each border in a safetensors file."""
    content = (directory / "model.safetensors").read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    return [0, 1, 7, 8, 9, header - 1, header, header + 1, len(content) // 2, len(content) - 1]


def test_a_file_cut_short(written, checkpoint):
    file = checkpoint / "model.safetensors"
    whole = file.read_bytes()
    start = rf"^{re.escape(str(file))}: not a whole safetensors file \(.*\); download it again$"
    for kept in cuts(checkpoint):
        file.write_bytes(whole[:kept])
        with pytest.raises(WeightsError, match=start):
            load(checkpoint)
    file.write_bytes(whole)
    assert answer(checkpoint) == answer(written)


def test_a_shard_cut_short(checkpoint):
    shard(checkpoint)
    file = checkpoint / "b.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=rf"^{re.escape(str(file))}: not a whole safetensors"):
        load(checkpoint)


def test_no_weights_at_all(checkpoint):
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(WeightsError) as caught:
        load(checkpoint)
    assert str(caught.value) == (
        f"{checkpoint}: no safetensors files; give a complete checkpoint, or ask for made-up "
        "weights with dummy_weights=True"
    )
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


@pytest.mark.parametrize("shape", [(), (3,), (36,), (1, 18)])
def test_another_shape(checkpoint, shape):
    rewrite(checkpoint, lambda tensors: {**tensors, "model.norm.weight": torch.ones(shape)})
    with pytest.raises(WeightsError) as caught:
        load(checkpoint)
    assert str(caught.value) == (
        f"{checkpoint / 'model.safetensors'}: model.norm.weight has shape {shape}, the "
        "configuration makes it (18,); config.json and weights don't belong together"
    )


def test_a_tensor_twice(written, checkpoint):
    other = checkpoint / "other.safetensors"
    save_file({"model.norm.weight": torch.ones(3)}, other)
    with pytest.raises(WeightsError) as caught:
        load(checkpoint)
    assert str(caught.value) == (
        f"{checkpoint}: model.norm.weight is in model.safetensors and in other.safetensors; "
        "remove the file that doesn't belong to this checkpoint"
    )
    other.unlink()
    assert answer(checkpoint) == answer(written)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_a_quantization_that_only_the_weights_show(checkpoint, dtype):
    def quantized(tensors):
        return {**tensors, "model.norm.weight": tensors["model.norm.weight"].to(dtype)}

    rewrite(checkpoint, quantized)
    with pytest.raises(WeightsError) as caught:
        load(checkpoint)
    assert str(caught.value) == (
        f"{checkpoint / 'model.safetensors'}: model.norm.weight holds "
        f"{str(dtype).removeprefix('torch.')} values; "
        "take the checkpoint in bfloat16, float16 or float32"
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_widths(checkpoint, dtype):
    rewrite(checkpoint, lambda tensors: {name: t.to(dtype) for name, t in tensors.items()})
    narrow = load(checkpoint).runner.model.embeddings
    assert narrow.dtype == torch.float32
    kept = load_file(checkpoint / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(narrow, kept.float())


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
