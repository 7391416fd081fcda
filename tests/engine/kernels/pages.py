"""Paged caches for attention tests: shuffled pages, and NaN in slots that nothing filled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.engine.kernels.checks import draw, generator, poisoned, strided


@dataclass(frozen=True)
class Heads:
    """A model's attention: query heads are `num_kv_heads * group`."""

    num_kv_heads: int = 2
    group: int = 2
    head_dim: int = 20

    @property
    def num_heads(self) -> int:
        return self.num_kv_heads * self.group


@dataclass(frozen=True)
class Batch:
    """Sequences as (cached tokens, new tokens), and where their keys and values lie."""

    lengths: tuple[tuple[int, int], ...]
    heads: Heads = Heads()
    page_size: int = 16
    gated: bool = True

    def prefill(self, dtype: torch.dtype, device: str, seed: int = 0) -> dict[str, Any]:
        """The arguments of `attention`."""
        random, heads = generator(seed), self.heads
        num_tokens = sum(new for _, new in self.lengths)
        shape = (num_tokens, heads.num_heads, heads.head_dim)
        k_cache, v_cache, block_table = self.caches(dtype, device, random)
        starts = [0]
        for _, new in self.lengths:
            starts.append(starts[-1] + new)
        return {
            "q": draw(shape, dtype, device, random),
            "k_cache": k_cache,
            "v_cache": v_cache,
            "block_table": block_table,
            "cu_seqlens": torch.tensor(starts, dtype=torch.int32, device=device),
            "context_lens": torch.tensor(
                [past for past, _ in self.lengths], dtype=torch.int32, device=device
            ),
            "max_query_len": max(new for _, new in self.lengths),
            "scale": heads.head_dim**-0.5,
            "gate": packed_gate(shape, dtype, device, random) if self.gated else None,
        }

    def decode(self, dtype: torch.dtype, device: str, seed: int = 0) -> dict[str, Any]:
        """The arguments of `attention_update`: every sequence has one new token."""
        one_each = replace(self, lengths=tuple((past, 1) for past, _ in self.lengths))
        arguments = one_each.prefill(dtype, device, seed)
        del arguments["cu_seqlens"], arguments["max_query_len"]
        return arguments

    def caches(
        self, dtype: torch.dtype, device: str, random: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and the table; entries past a sequence's last page name a NaN page."""
        totals = [past + new for past, new in self.lengths]
        counts = [-(-total // self.page_size) for total in totals]
        order = torch.randperm(sum(counts), generator=random).to(torch.int32) + 1
        table = torch.zeros(len(totals), max(counts) + 1, dtype=torch.int32)
        row = (self.heads.num_kv_heads, self.heads.head_dim)
        shape = (sum(counts) + 1, self.page_size, *row)
        k_cache, v_cache = poisoned(shape, dtype, "cpu"), poisoned(shape, dtype, "cpu")
        for index, (total, pages) in enumerate(zip(totals, order.split(counts), strict=True)):
            table[index, : len(pages)] = pages
            places = torch.arange(total)
            slots = pages.long()[places // self.page_size] * self.page_size
            slots += places % self.page_size
            k_cache.flatten(0, 1)[slots] = draw((total, *row), dtype, "cpu", random)
            v_cache.flatten(0, 1)[slots] = draw((total, *row), dtype, "cpu", random)
        return k_cache.to(device), v_cache.to(device), table.to(device)


def packed_gate(
    shape: tuple[int, int, int], dtype: torch.dtype, device: str, random: torch.Generator
) -> Tensor:
    """A gate as a projection leaves it: the second half of each head of a strided row."""
    num_tokens, num_heads, head_dim = shape
    packed = strided(draw((num_tokens, num_heads, 2 * head_dim), dtype, device, random))
    packed[..., :head_dim] = float("nan")
    return packed[..., head_dim:]
