"""Runs a model over batches: one eager forward, and decode through a CUDA graph where there is one.

Knows tensors and caches; which tokens run when is its caller's business.
"""

from __future__ import annotations

from collections.abc import Sequence as Sequence_
from types import ModuleType

import torch
from torch import Tensor

from engine.batch import Batch, Chunk, make_batch
from engine.config import ModelConfig
from engine.graphs import DecodeGraph
from engine.kv_cache import KvLayer, PagePool, make_kv_layer
from engine.models.decoder import Decoder
from engine.observe import Observer
from engine.request import Sequence
from engine.sampler import SamplingTensors, draw, make_sampling_tensors
from engine.state_cache import StateLayer, make_state_layer

# The slot that graph capture writes to; requests have the others.
SCRATCH_SLOT = 0


class Runner:
    """A model with its caches.

    `num_slots` counts the requests that can hold state at once. `observer` is told of each forward
    that a request waits for.
    """

    def __init__(
        self,
        model: Decoder,
        operations: ModuleType,
        pool: PagePool,
        table_width: int,
        num_slots: int,
        dtype: torch.dtype,
        device: str,
        observer: Observer,
    ) -> None:
        self.model = model
        self.operations = operations
        self.page_size = pool.page_size
        self.table_width = table_width
        self.device = device
        self.observer = observer
        self.caches = make_caches(model.config, pool, num_slots + 1, dtype, device)
        self.graph: DecodeGraph | None = None

    def capture(self) -> None:
        """Capture the decode step of one request; from then on `decode` replays it."""
        self.graph = DecodeGraph(
            self.forward, SCRATCH_SLOT, self.page_size, self.table_width, self.device
        )

    def forward(self, batch: Batch, sampling: SamplingTensors) -> tuple[Tensor, Tensor]:
        """Run the batch and draw each sequence's next token: tokens and log-probabilities."""
        return self.draw(self.logits(batch), batch, sampling)

    def logits(self, batch: Batch) -> Tensor:
        """Run the batch: `[num_seqs, vocab_size]`."""
        return self.model.logits(self.model.hidden(batch, self.caches), batch)

    def draw(
        self, logits: Tensor, batch: Batch, sampling: SamplingTensors
    ) -> tuple[Tensor, Tensor]:
        """Each sequence's next token and its log-probability."""
        return draw(self.operations, logits, sampling, batch.last_positions)

    def batch(self, chunks: Sequence_[Chunk]) -> Batch:
        """The chunks as tensors on the device."""
        return make_batch(chunks, self.page_size, self.table_width, self.device)

    @torch.inference_mode()
    def prefill(self, sequence: Sequence, chunk_tokens: int) -> tuple[int, float]:
        """Run all of a sequence's tokens that aren't cached, in chunks; draw the next token."""
        remaining = len(sequence.token_ids) - sequence.num_cached
        while remaining > chunk_tokens:
            with self.observer.step("prefill", (sequence.id,), chunk_tokens):
                self.model.hidden(self.batch([Chunk(sequence, chunk_tokens)]), self.caches)
            sequence.num_cached += chunk_tokens
            remaining -= chunk_tokens
        with self.observer.step("prefill", (sequence.id,), remaining):
            sampling = make_sampling_tensors([sequence], self.device)
            tokens, logprobs = self.forward(self.batch([Chunk(sequence, remaining)]), sampling)
            sequence.num_cached += remaining
            if self.graph is not None:
                self.graph.begin(sequence, sampling)
            return int(tokens.item()), float(logprobs.item())

    @torch.inference_mode()
    def decode(self, sequence: Sequence) -> tuple[int, float]:
        """Run a sequence's one uncached token; draw the next."""
        with self.observer.step("decode", (sequence.id,), 1):
            if self.graph is not None:
                tokens, logprobs = self.graph.step(sequence)
            else:
                batch = self.batch([Chunk(sequence, 1)])
                sampling = make_sampling_tensors([sequence], self.device)
                tokens, logprobs = self.forward(batch, sampling)
            sequence.num_cached += 1
            return int(tokens.item()), float(logprobs.item())


def make_caches(
    config: ModelConfig, pool: PagePool, num_slots: int, dtype: torch.dtype, device: str
) -> list[KvLayer | StateLayer]:
    """Each layer's cache, in the layers' order."""
    caches: list[KvLayer | StateLayer] = []
    for layer in config.layers:
        if layer.mixer == "full_attention":
            caches.append(
                make_kv_layer(config.attention, pool.num_pages, pool.page_size, dtype, device)
            )
        else:
            assert config.linear_attention is not None
            caches.append(make_state_layer(config.linear_attention, num_slots, dtype, device))
    return caches
