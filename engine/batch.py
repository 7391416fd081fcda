"""One forward's input: the packed tokens of its sequences and where their state lies.

Made for batches of several sequences; the engine serves one request at a time for now.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.request import Sequence

# Each section of the packed buffer starts on 16 bytes, whatever the lengths before it: a pointer's
# alignment is part of a Triton variant.
SECTION = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Index tensors on the model's device, int32; shapes as in `engine.kernels.reference`.

    `token_ids, positions, slot_mapping: [num_tokens]`; `last_tokens, last_positions: [num_seqs]`
    are the row and the position of each sequence's last token. In a decode batch every sequence
    has one token and a context.
    """

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    cu_seqlens: Tensor
    context_lens: Tensor
    block_table: Tensor
    state_indices: Tensor
    last_tokens: Tensor
    last_positions: Tensor
    max_query_len: int
    is_decode: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `num_tokens` tokens of a sequence, those after the cached ones."""

    sequence: Sequence
    num_tokens: int


def host_sections(chunks: Sequence_[Chunk], page_size: int, table_width: int) -> dict[str, Tensor]:
    """The batch's index tensors on the CPU, int32, in a fixed order."""
    tokens, positions, slots, tables = [], [], [], []
    cu_seqlens = [0]
    for chunk in chunks:
        sequence, begin = chunk.sequence, chunk.sequence.num_cached
        order = torch.arange(begin, begin + chunk.num_tokens, dtype=torch.int32)
        pages = torch.tensor(sequence.pages, dtype=torch.int32)
        tokens.append(
            torch.tensor(sequence.token_ids[begin : begin + chunk.num_tokens], dtype=torch.int32)
        )
        positions.append(order)
        slots.append(pages[order.long() // page_size] * page_size + order % page_size)
        tables.append(torch.nn.functional.pad(pages, (0, table_width - len(sequence.pages))))
        cu_seqlens.append(cu_seqlens[-1] + chunk.num_tokens)
    sequences = [chunk.sequence for chunk in chunks]
    return {
        "token_ids": torch.cat(tokens),
        "positions": torch.cat(positions),
        "slot_mapping": torch.cat(slots),
        "cu_seqlens": torch.tensor(cu_seqlens, dtype=torch.int32),
        "context_lens": torch.tensor([s.num_cached for s in sequences], dtype=torch.int32),
        "block_table": torch.stack(tables),
        "state_indices": torch.tensor([s.state_index for s in sequences], dtype=torch.int32),
        "last_tokens": torch.tensor(cu_seqlens[1:], dtype=torch.int32) - 1,
        "last_positions": torch.stack([order[-1] for order in positions]),
    }


def pack(sections: dict[str, Tensor], *, pinned: bool) -> Tensor:
    """All sections in one int32 CPU tensor, each from a multiple of `SECTION` on."""
    size = sum(padded(section.numel()) for section in sections.values())
    packed = torch.zeros(size, dtype=torch.int32, pin_memory=pinned)
    begin = 0
    for section in sections.values():
        packed[begin : begin + section.numel()] = section.flatten()
        begin += padded(section.numel())
    return packed


def unpack(packed: Tensor, sections: dict[str, Tensor]) -> dict[str, Tensor]:
    """Views of `packed`, on whatever device it lies, shaped like `sections`."""
    views, begin = {}, 0
    for name, section in sections.items():
        views[name] = packed[begin : begin + section.numel()].view(section.shape)
        begin += padded(section.numel())
    return views


def padded(size: int) -> int:
    """`size` rounded up to a whole number of `SECTION`s."""
    return -(-size // SECTION) * SECTION


def is_decode(chunks: Sequence_[Chunk]) -> bool:
    """Whether every sequence adds one token to a context."""
    return all(chunk.num_tokens == 1 and chunk.sequence.num_cached > 0 for chunk in chunks)


def make_batch(chunks: Sequence_[Chunk], page_size: int, table_width: int, device: str) -> Batch:
    """Build the batch on the host and send it to the device in one copy."""
    sections = host_sections(chunks, page_size, table_width)
    on_gpu = device != "cpu"
    packed = pack(sections, pinned=on_gpu).to(device, non_blocking=on_gpu)
    return Batch(
        **unpack(packed, sections),
        max_query_len=max(chunk.num_tokens for chunk in chunks),
        is_decode=is_decode(chunks),
    )
