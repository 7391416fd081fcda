"""Random tiny checkpoints written by transformers, which is the oracle of the engine's numerics."""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def import_plain(*models: str) -> None:
    """Import models of transformers with the plain torch that makes them an oracle.

    transformers takes GPU kernels of these packages where it finds them as it defines a model.
    """
    kernels = ("fla", "causal_conv1d")
    hidden = {name: sys.modules.pop(name, None) for name in kernels}
    sys.modules.update(dict.fromkeys(kernels))  # type: ignore[arg-type]
    for model in models:
        importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    for name, module in hidden.items():
        del sys.modules[name]
        if module is not None:
            sys.modules[name] = module


import_plain("qwen3_next", "qwen3_5", "qwen3_5_moe")

VOCAB = 97

ARCHITECTURES = (
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
)
CONFIGS = {
    "LlamaForCausalLM": "LlamaConfig",
    "Qwen3ForCausalLM": "Qwen3Config",
    "Qwen3MoeForCausalLM": "Qwen3MoeConfig",
    "Qwen3NextForCausalLM": "Qwen3NextConfig",
    "Qwen3_5ForCausalLM": "Qwen3_5TextConfig",
    "Qwen3_5MoeForCausalLM": "Qwen3_5MoeTextConfig",
}
HYBRID = ("Qwen3NextForCausalLM", "Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM")


def draw_fields(architecture: str, seed: int) -> dict[str, Any]:
    """A configuration's fields: head counts, odd sizes, layer pattern, tied or not."""
    choose = random.Random(f"{architecture}-{seed}")
    num_kv_heads = choose.choice([1, 2, 3])
    num_heads = num_kv_heads * choose.choice([1, 2, 4])
    num_layers = choose.choice([2, 3, 4])
    fields: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": num_heads * choose.choice([5, 7, 9]),
        "intermediate_size": choose.choice([31, 50, 70]),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": choose.choice([8, 16, 24, 32, 40]),
        "max_position_embeddings": 256,
        "rms_norm_eps": choose.choice([1e-6, 1e-5]),
        "tie_word_embeddings": bool(seed % 2),
        "attention_bias": choose.random() < 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if architecture == "LlamaForCausalLM":
        fields |= llama_fields(choose, seed)
    if "Moe" in architecture or "Next" in architecture:
        fields |= moe_fields(choose, num_layers, architecture)
    if architecture in HYBRID:
        fields |= hybrid_fields(choose, num_layers)
    return fields


def llama_fields(choose: random.Random, seed: int) -> dict[str, Any]:
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 5_000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    linear = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
    plain = {"rope_type": "default", "rope_theta": 10_000.0}
    return {
        "mlp_bias": choose.random() < 0.5,
        "rope_parameters": (scaled, linear, plain)[seed % 3],
    }


def moe_fields(choose: random.Random, num_layers: int, architecture: str) -> dict[str, Any]:
    num_experts = choose.choice([4, 5, 8, 9])
    fields = {
        "num_experts": num_experts,
        "num_experts_per_tok": choose.randint(1, 4),
        "moe_intermediate_size": choose.choice([18, 27, 40]),
    }
    if architecture != "Qwen3MoeForCausalLM":
        fields["shared_expert_intermediate_size"] = choose.choice([20, 33])
    if architecture != "Qwen3_5MoeForCausalLM":
        fields["norm_topk_prob"] = choose.random() < 0.5
        fields["decoder_sparse_step"] = choose.choice([1, 2])
        fields["mlp_only_layers"] = choose.choice([[], [num_layers - 1]])
    return fields


def hybrid_fields(choose: random.Random, num_layers: int) -> dict[str, Any]:
    kinds = ["linear_attention", "full_attention"]
    kinds += choose.choices(kinds, k=num_layers - 2)
    choose.shuffle(kinds)
    num_k_heads = choose.choice([1, 2, 3])
    return {
        "layer_types": kinds,
        "linear_num_key_heads": num_k_heads,
        "linear_num_value_heads": num_k_heads * choose.choice([1, 2, 4]),
        "linear_key_head_dim": choose.choice([8, 16, 20]),
        "linear_value_head_dim": choose.choice([8, 16, 24]),
        "linear_conv_kernel_dim": choose.choice([2, 3, 4]),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": choose.choice([0.25, 0.5]),
        },
    }


def make_model(architecture: str, seed: int) -> Any:
    """A transformers model on the CPU in float32, in eval mode.

    Norm weights and routers are perturbed: their initial values hide a missing `1 + w` and leave
    every expert equally likely.
    """
    torch.manual_seed(seed)
    config = getattr(transformers, CONFIGS[architecture])(**draw_fields(architecture, seed))
    # The other implementation of experts wants widths that are multiples of 16 bytes.
    config._experts_implementation = "eager"
    model = getattr(transformers, architecture)(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.12)
            elif name.endswith((".gate.weight", "expert_gate.weight", ".bias")):
                parameter.copy_(torch.randn_like(parameter) * 0.5)
            elif parameter.dim() > 1:
                parameter.copy_(torch.randn_like(parameter) * 0.12)
    return model


def write_checkpoint(architecture: str, seed: int, directory: Path) -> Any:
    """Save a random model's checkpoint into `directory`; returns the model."""
    model = make_model(architecture, seed)
    model.save_pretrained(directory)
    return model


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """The oracle's greedy continuation."""
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False
        )
    return out[0, len(prompt) :].tolist()


def all_logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    """The oracle's logits after every token: `[num_tokens, vocab_size]`."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]
