"""The paged cache of keys and values: a fixed number of pages, handed out and taken back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.config import AttentionConfig


@dataclass(frozen=True, slots=True)
class KvLayer:
    """One layer's cache: `k, v: [num_pages, page_size, num_kv_heads, head_dim]`."""

    k: Tensor
    v: Tensor


def make_kv_layer(
    config: AttentionConfig, num_pages: int, page_size: int, dtype: torch.dtype, device: str
) -> KvLayer:
    """An empty cache; a page's content is undefined until it is written."""
    shape = (num_pages, page_size, config.num_kv_heads, config.head_dim)
    return KvLayer(
        torch.empty(shape, dtype=dtype, device=device),
        torch.empty(shape, dtype=dtype, device=device),
    )


class PagePool:
    """Page numbers, the lowest free ones first."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.num_pages = num_pages
        self.page_size = page_size
        self.free = list(range(num_pages - 1, -1, -1))

    def pages_for(self, num_tokens: int) -> int:
        """How many pages hold that many tokens."""
        return -(-num_tokens // self.page_size)

    def take(self, num_tokens: int) -> list[int]:
        """Pages for that many tokens; the caller has checked that there are enough."""
        count = self.pages_for(num_tokens)
        assert count <= len(self.free), f"{count} pages asked of {len(self.free)}"
        return [self.free.pop() for _ in range(count)]

    def give_back(self, pages: list[int]) -> None:
        """Take pages back."""
        self.free.extend(reversed(pages))
