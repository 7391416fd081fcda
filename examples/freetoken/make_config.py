"""Writes a model folder with the widths of Qwen3.6-35B-A3B, fewer layers and no weights.

Owns the numbers and the two shapes of config.json that FreeToken's versions read. Knows nothing
of FreeToken itself. `python -m examples.freetoken.make_config FOLDER --freetoken 0.1.3`
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

FULL_ATTENTION_INTERVAL = 4
EOS_TOKEN_ID = 248_044

#: Source: the checkpoint's config.json, `text_config`, less what depends on the number of layers.
TEXT_CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "vocab_size": 248_320,
    "hidden_size": 2048,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "hidden_act": "silu",
    "max_position_embeddings": 262_144,
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "use_cache": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_output_gate": True,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "mamba_ssm_dtype": "float32",
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "router_aux_loss_coef": 0.001,
    "full_attention_interval": FULL_ATTENTION_INTERVAL,
    "dtype": "bfloat16",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000_000,
        "partial_rotary_factor": 0.25,
        "mrope_section": [11, 11, 10],
        "mrope_interleaved": True,
    },
    "bos_token_id": None,
    "eos_token_id": EOS_TOKEN_ID,
}

#: Two tokens: prompts are token ids and the answer's text is not read.
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [
        {
            "id": token_id,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token_id, content in enumerate(["<unk>", "<eos>"])
    ],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "<eos>": 1}, "unk_token": "<unk>"},
}
TOKENIZER_CONFIG: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
    "eos_token": "<eos>",
    "model_max_length": TEXT_CONFIG["max_position_embeddings"],
}
GENERATION_CONFIG: dict[str, Any] = {"do_sample": False, "eos_token_id": EOS_TOKEN_ID}


def version_parts(version: str) -> tuple[int, ...]:
    """`0.1.3+cu130` → `(0, 1, 3)`.

    Raises:
        ValueError: a part of the release is not a number.
    """
    return tuple(int(part) for part in version.partition("+")[0].split("."))


def text_config(num_layers: int) -> dict[str, Any]:
    """The widths, cut to `num_layers`: three linear-attention layers, then a full one."""
    layer_types = [
        "linear_attention" if (i + 1) % FULL_ATTENTION_INTERVAL else "full_attention"
        for i in range(num_layers)
    ]
    return {**TEXT_CONFIG, "num_hidden_layers": num_layers, "layer_types": layer_types}


def model_config(num_layers: int, freetoken_version: str) -> dict[str, Any]:
    """config.json as that FreeToken reads it: flat and text-only from 0.1.3, nested before."""
    text = text_config(num_layers)
    if version_parts(freetoken_version) >= (0, 1, 3):
        return {"architectures": ["Qwen3_5MoeForCausalLM"], **text}
    return {
        "architectures": ["Qwen3_5MoeForConditionalGeneration"],
        "model_type": "qwen3_5_moe",
        "text_config": text,
        "tie_word_embeddings": False,
        "dtype": text["dtype"],
    }


def write_model(folder: Path, *, num_layers: int, freetoken_version: str) -> None:
    """Write the files that FreeToken reads at boot with dummy weights into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": model_config(num_layers, freetoken_version),
        "generation_config.json": GENERATION_CONFIG,
        "tokenizer.json": TOKENIZER,
        "tokenizer_config.json": TOKENIZER_CONFIG,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--freetoken", required=True, metavar="VERSION", help="such as 0.1.3")
    parser.add_argument("--layers", type=int, default=8)
    arguments = parser.parse_args()
    write_model(
        arguments.folder, num_layers=arguments.layers, freetoken_version=arguments.freetoken
    )


if __name__ == "__main__":
    main()
