"""Decode of one request as a CUDA graph: every launch of a step, replayed by one call.

The graph reads its inputs from buffers that stay where they are; a step writes the few numbers
that change into a pinned copy and sends it over.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.batch import Batch, Chunk, host_sections, pack, unpack
from engine.request import SamplingParams, Sequence
from engine.sampler import SamplingTensors, make_sampling_tensors

Forward = Callable[[Batch, SamplingTensors], tuple[Tensor, Tensor]]

# Runs before the capture: what the first run compiles, loads or allocates isn't capturable.
WARM_RUNS = 2


class DecodeGraph:
    """The captured step, and the buffers that it reads and writes."""

    def __init__(
        self,
        forward: Forward,
        scratch_slot: int,
        page_size: int,
        table_width: int,
        device: str,
    ) -> None:
        self.page_size = page_size
        scratch = Sequence([0, 0], 1, SamplingParams(), 0, [0], scratch_slot, num_cached=1)
        sections = host_sections([Chunk(scratch, 1)], page_size, table_width)
        # Nothing is stored: page 0 belongs to a request.
        sections["slot_mapping"].fill_(-1)
        self.host = pack(sections, pinned=True)
        self.views = {name: view.numpy() for name, view in unpack(self.host, sections).items()}
        self.packed = self.host.to(device)
        self.batch = Batch(**unpack(self.packed, sections), max_query_len=1, is_decode=True)
        self.sampling = make_sampling_tensors([scratch], device)
        self.graph = torch.cuda.CUDAGraph()
        self.tokens, self.logprobs = self.capture(forward)

    @torch.inference_mode()
    def capture(self, forward: Forward) -> tuple[Tensor, Tensor]:
        """Run `forward` until it is warm, then capture it; returns the outputs' buffers."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_RUNS):
                forward(self.batch, self.sampling)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graph):
            return forward(self.batch, self.sampling)

    def begin(self, sequence: Sequence, sampling: SamplingTensors) -> None:
        """Take over what stays the same for a request's decode steps."""
        self.views["block_table"][0, : len(sequence.pages)] = sequence.pages
        self.views["state_indices"][0] = sequence.state_index
        self.sampling.copy_(sampling)

    def step(self, sequence: Sequence) -> tuple[Tensor, Tensor]:
        """Replay for the sequence's one uncached token.

        The caller must read the result before the next step: the buffers are the same ones.
        """
        position = sequence.num_cached
        page = sequence.pages[position // self.page_size]
        self.views["token_ids"][0] = sequence.token_ids[position]
        self.views["positions"][0] = position
        self.views["last_positions"][0] = position
        self.views["context_lens"][0] = position
        self.views["slot_mapping"][0] = page * self.page_size + position % self.page_size
        self.packed.copy_(self.host, non_blocking=True)
        self.graph.replay()
        return self.tokens, self.logprobs
