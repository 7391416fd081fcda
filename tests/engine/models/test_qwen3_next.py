"""Qwen3-Next's packed projections, unpacked."""

from __future__ import annotations

import pytest
import torch

from engine.config import LinearAttentionConfig
from engine.models.qwen3_next import load_packed

HIDDEN = 3


class Numbered:
    """Weights whose every row is its own number, from 1000 on in `in_proj_ba`."""

    def take(self, name, shape, *_):
        first = 1000 if name == "layer.in_proj_ba.weight" else 0
        return torch.arange(first, first + shape[0]).float()[:, None].expand(shape)


@pytest.mark.parametrize("groups", [1, 3])
def test_rows_by_kind(groups):
    """Each key head's [q | k | v | z] and [b | a], one kind after the other."""
    config = LinearAttentionConfig(2, 2 * groups, k_dim=4, v_dim=5, conv_kernel=4)
    rows = load_packed(config, HIDDEN, Numbered(), "layer").weight[:, 0].int().tolist()
    per_head = 4 + 4 + 2 * groups * 5
    heads = [list(range(start, start + per_head)) for start in (0, per_head)]
    pairs = [list(range(start, start + 2 * groups)) for start in (1000, 1000 + 2 * groups)]
    values = 8 + groups * 5
    borders = [(0, 4), (4, 8), (8, values), (values, per_head)]
    expected = [row for low, high in borders for head in heads for row in head[low:high]]
    expected += [row for pair in pairs for row in pair[:groups]]
    expected += [row for pair in pairs for row in pair[groups:]]
    assert rows == expected
