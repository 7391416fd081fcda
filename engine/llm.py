"""The engine as a library: build a model, serve prompts."""

from __future__ import annotations

import numbers
import operator
import random
from collections.abc import Sequence as Sequence_
from pathlib import Path
from typing import Literal

import torch

from engine.errors import RequestError
from engine.hf_config import preset_names, read_hf_config
from engine.kv_cache import PagePool
from engine.loader import DummyWeights, SafetensorsWeights, Weights
from engine.models.decoder import Decoder
from engine.models.registry import family_of
from engine.options import (
    check_sizes,
    choose_context,
    choose_device,
    choose_dtype,
    choose_operations,
)
from engine.request import FinishReason, RequestOutput, SamplingParams, Sequence
from engine.runner import SCRATCH_SLOT, Runner
from engine.tokenizer import read_tokenizer

Prompt = str | Sequence_[int]


class LLM:
    """A model ready to generate.

    `model` is a preset's name or a checkpoint directory. `device` is `cuda`, `cuda:N`, `cpu`, or
    `auto`: the GPU where there is one. `dtype` is `bfloat16`, `float16`, `float32`, or `auto`: the
    checkpoint's on a GPU, float32 on a CPU. `layers` keeps that many of the model's layers.
    `dummy_weights` makes weights up from `seed`; a preset has no others. `kv_tokens` is the room
    of the paged cache, a fixed number: free memory must not decide which kernels run.
    `max_model_len` caps prompt and output together, at most the model's context.
    `max_prefill_tokens` is the longest chunk that a prompt is run in. `kernels` is `fused`
    (Triton), `reference` (plain torch), or `auto` by device. `cuda_graphs` captures decode.

    Raises:
        ConfigError: for a model or an option that the engine can't run.
        WeightsError: for a checkpoint that doesn't hold the model.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        layers: int | None = None,
        dummy_weights: bool = False,
        seed: int = 0,
        kv_tokens: int = 65_536,
        page_size: int = 16,
        max_model_len: int | None = None,
        max_prefill_tokens: int = 8192,
        kernels: Literal["auto", "fused", "reference"] = "auto",
        cuda_graphs: bool = True,
    ) -> None:
        check_sizes(kv_tokens, page_size, max_model_len, max_prefill_tokens)
        self.device = choose_device(device)
        on_gpu = self.device != "cpu"
        hf = read_hf_config(model)
        family = family_of(hf)
        full = family.read_config(hf)
        self.config = full if layers is None else full.shortened(layers)
        self.dtype = choose_dtype(dtype, self.config, on_gpu=on_gpu)
        self.pool = PagePool(-(-kv_tokens // page_size), page_size)
        self.max_model_len = choose_context(max_model_len, self.config)
        self.max_prefill_tokens = max_prefill_tokens
        self.random = random.Random(seed)

        directory = Path(model)
        is_preset = str(model) in preset_names()
        self.tokenizer = None if is_preset else read_tokenizer(directory)
        weights: Weights
        if dummy_weights or is_preset:
            weights = DummyWeights(self.device, self.dtype, seed)
        else:
            num_layers = len(self.config.layers)
            shortened = num_layers < len(full.layers)
            weights = SafetensorsWeights(directory, self.device, self.dtype, num_layers, shortened)
        operations = choose_operations(kernels, on_gpu=on_gpu)
        longest = min(self.max_model_len, self.pool.num_pages * page_size)
        with torch.inference_mode():
            cos_sin = self.config.rope.table(longest).to(self.device)
            decoder = Decoder(self.config, weights, operations, cos_sin, family.load_projection)
        self.runner = Runner(
            decoder,
            operations,
            self.pool,
            self.pool.pages_for(longest),
            num_slots=1,
            dtype=self.dtype,
            device=self.device,
        )
        if on_gpu and cuda_graphs:
            self.runner.capture()

    def generate(
        self,
        prompts: Prompt | Sequence_[Prompt],
        params: SamplingParams | Sequence_[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Serve the prompts in order: texts, or lists of token ids; one alone is a list of one.

        `params` holds for all prompts, or is one for each. Nothing runs unless every request can
        be served.

        Raises:
            RequestError: naming the prompt and what is wrong with it.
        """
        listed = as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            every = [params or SamplingParams()] * len(listed)
        else:
            every = list(params)
        if len(every) != len(listed):
            raise RequestError(f"{len(listed)} prompts and {len(every)} sampling parameters")
        sequences = [
            self.admit(index, prompt, param)
            for index, (prompt, param) in enumerate(zip(listed, every, strict=True))
        ]
        return [self.serve(sequence) for sequence in sequences]

    def admit(self, index: int, prompt: Prompt, params: SamplingParams) -> Sequence:
        """Check a request against the vocabulary, the context and the cache."""
        token_ids = self.encode(index, prompt)
        if not token_ids:
            raise RequestError(f"prompt {index} is empty; give it at least one token")
        for place, token in enumerate(token_ids):
            if not 0 <= token < self.config.vocab_size:
                raise RequestError(
                    f"prompt {index}: token id {token} at place {place} is outside the "
                    f"vocabulary of {self.config.vocab_size}"
                )
        if len(token_ids) >= self.max_model_len:
            raise RequestError(
                f"prompt {index} has {len(token_ids)} tokens; with one to generate that is beyond "
                f"the context of {self.max_model_len}"
            )
        pages = self.pool.pages_for(self.room(len(token_ids), params))
        if pages > self.pool.num_pages:
            raise RequestError(
                f"prompt {index} needs {pages} pages of {self.pool.page_size} tokens for its "
                f"{len(token_ids)} tokens and max_tokens={params.max_tokens}; the cache has "
                f"{self.pool.num_pages}. Raise kv_tokens or lower max_tokens"
            )
        seed = self.random.getrandbits(63) if params.seed is None else params.seed
        return Sequence(list(token_ids), len(token_ids), params, seed)

    def room(self, prompt_tokens: int, params: SamplingParams) -> int:
        """Tokens that a request can come to hold in the cache."""
        return min(prompt_tokens + params.max_tokens, self.max_model_len)

    def encode(self, index: int, prompt: Prompt) -> list[int]:
        """A prompt's token ids, from its text where it is one."""
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise RequestError(
                    f"prompt {index} is a text, and the model came without a tokenizer.json; "
                    "give token ids"
                )
            return list(self.tokenizer.encode(prompt).ids)
        try:
            tokens = list(prompt)
        except TypeError:
            raise RequestError(
                f"prompt {index} is a {type(prompt).__name__}; give a text or a list of token ids"
            ) from None
        return [token_id(index, token) for token in tokens]

    def serve(self, sequence: Sequence) -> RequestOutput:
        """Run one request to its end."""
        sequence.pages = self.pool.take(self.room(sequence.num_prompt_tokens, sequence.params))
        sequence.state_index = SCRATCH_SLOT + 1
        try:
            sequence.append(*self.runner.prefill(sequence, self.max_prefill_tokens))
            while (reason := self.finished(sequence)) is None:
                sequence.append(*self.runner.decode(sequence))
        finally:
            self.pool.give_back(sequence.pages)
        output_ids = sequence.output_ids
        return RequestOutput(
            prompt_token_ids=sequence.token_ids[: sequence.num_prompt_tokens],
            token_ids=output_ids,
            logprobs=sequence.logprobs,
            text=None if self.tokenizer is None else self.tokenizer.decode(output_ids),
            finish_reason=reason,
        )

    def finished(self, sequence: Sequence) -> FinishReason | None:
        """Why a sequence is complete, or None."""
        params, last = sequence.params, sequence.token_ids[-1]
        if last in params.stop_token_ids:
            return "stop"
        if not params.ignore_eos and last in self.config.eos_token_ids:
            return "stop"
        if len(sequence.output_ids) >= params.max_tokens:
            return "length"
        return "length" if len(sequence.token_ids) >= self.max_model_len else None


def as_list(prompts: Prompt | Sequence_[Prompt]) -> list[Prompt]:
    """Prompts as a list, also where one was given without a list around it.

    Raises:
        RequestError: if that is no list of prompts.
    """
    if isinstance(prompts, str):
        return [prompts]
    try:
        listed = list(prompts)
    except TypeError:
        raise RequestError(
            f"prompts is a {type(prompts).__name__}; give texts or lists of token ids"
        ) from None
    tokens = [is_token(item) for item in listed]
    if listed and all(tokens):
        return [listed]  # type: ignore[list-item]
    if any(tokens):
        raise RequestError(
            "prompts mixes token ids and prompts; put each prompt's ids into a list of their own"
        )
    return listed  # type: ignore[return-value]


def is_token(item: object) -> bool:
    """Whether `item` is a number rather than a prompt."""
    return isinstance(item, numbers.Number) or getattr(item, "shape", None) == ()


def token_id(index: int, token: object) -> int:
    """A prompt's token id as an int, also from NumPy's and torch's integers.

    Raises:
        RequestError: if it is no integer.
    """
    try:
        if not isinstance(token, bool):
            return operator.index(token)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise RequestError(f"prompt {index}: token id {token!r} is not an integer")
