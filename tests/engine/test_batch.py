"""A forward's index tensors, from sequences at different places."""

from __future__ import annotations

import pytest
import torch

from engine.batch import SECTION, Chunk, host_sections, is_decode, make_batch, pack, unpack
from engine.request import SamplingParams, Sequence

PAGE = 4


def sequence(token_ids, pages, *, cached=0, slot=1):
    return Sequence(token_ids, len(token_ids), SamplingParams(), 0, pages, slot, num_cached=cached)


@pytest.fixture
def chunks():
    """The middle of one sequence, over a page's edge, and the start of another."""
    one = sequence([10, 11, 12, 13, 14, 15], [5, 2], cached=3, slot=1)
    return [Chunk(one, 2), Chunk(sequence([20, 21, 22], [7], slot=3), 3)]


def as_lists(batch):
    return {
        name: getattr(batch, name).tolist()
        for name in batch.__slots__
        if isinstance(getattr(batch, name), torch.Tensor)
    }


def test_a_batch_of_two(chunks):
    batch = make_batch(chunks, PAGE, 3, "cpu")
    assert as_lists(batch) == {
        "token_ids": [13, 14, 20, 21, 22],
        "positions": [3, 4, 0, 1, 2],
        # The last place of page 5, the first of page 2; then page 7.
        "slot_mapping": [23, 8, 28, 29, 30],
        "cu_seqlens": [0, 2, 5],
        "context_lens": [3, 0],
        "block_table": [[5, 2, 0], [7, 0, 0]],
        "state_indices": [1, 3],
        "last_tokens": [1, 4],
        "last_positions": [4, 2],
    }
    assert (batch.max_query_len, batch.is_decode) == (3, False)
    assert {getattr(batch, name).dtype for name in as_lists(batch)} == {torch.int32}


@pytest.mark.parametrize("count", [1, 3, 4, 5, 17])
def test_every_section_starts_on_16_bytes(count):
    sections = host_sections([Chunk(sequence(list(range(count)), [0, 1, 2, 3, 4]), count)], PAGE, 5)
    packed = pack(sections, pinned=False)
    views = unpack(packed, sections)
    assert list(views) == list(sections)
    for name, view in views.items():
        assert torch.equal(view, sections[name])
        assert view.storage_offset() % SECTION == 0
    assert packed.numel() % SECTION == 0


@pytest.mark.parametrize(
    ("cached", "count", "expected"), [(2, 1, True), (0, 1, False), (1, 2, False)]
)
def test_a_decode_adds_one_token_to_a_context(cached, count, expected):
    chunk = Chunk(sequence([1, 2, 3], [0], cached=cached), count)
    assert is_decode([chunk]) is expected
    assert make_batch([chunk], PAGE, 1, "cpu").is_decode is expected


def test_one_longer_chunk_makes_no_decode():
    one, two = (Chunk(sequence([1, 2, 3], [0], cached=1), count) for count in (1, 2))
    assert is_decode([one, one])
    assert not is_decode([one, two])
