"""Recurrent and convolution state of the linear-attention layers, a slot for each request."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import LinearAttentionConfig


@dataclass(frozen=True, slots=True)
class StateLayer:
    """One layer's state.

    `conv: [num_slots, channels, kernel - 1]` in the model's dtype;
    `recurrent: [num_slots, num_v_heads, k_dim, v_dim]` float32. A slot's content is undefined
    until a sequence's first chunk has run.
    """

    conv: Tensor
    recurrent: Tensor


def make_state_layer(
    config: LinearAttentionConfig, num_slots: int, dtype: torch.dtype, device: str
) -> StateLayer:
    """Empty slots."""
    conv = (num_slots, config.conv_channels, config.conv_kernel - 1)
    recurrent = (num_slots, config.num_v_heads, config.k_dim, config.v_dim)
    return StateLayer(
        torch.empty(conv, dtype=dtype, device=device),
        torch.empty(recurrent, dtype=torch.float32, device=device),
    )
