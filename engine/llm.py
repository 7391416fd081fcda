"""The engine as a library: build a model, serve prompts."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence as Sequence_
from pathlib import Path
from types import ModuleType
from typing import Literal

import torch

from engine.errors import ConfigError, RequestError
from engine.hf_config import is_preset
from engine.kernels.statements import Shapes
from engine.kv_cache import PagePool
from engine.loader import DummyWeights, SafetensorsWeights, Weights
from engine.memory import enough_memory
from engine.models.decoder import Decoder
from engine.models.family import Family
from engine.models.registry import read_model
from engine.observe import Observer, Unobserved
from engine.options import (
    check_flags,
    check_observer,
    check_sizes,
    choose_context,
    choose_device,
    choose_dtype,
    choose_operations,
    warmup_limit,
)
from engine.prompts import Prompt, as_list, encode, ids_for_each, params_for_each
from engine.request import FinishReason, RequestOutput, SamplingParams, Sequence
from engine.runner import SCRATCH_SLOT, Runner
from engine.tokenizer import read_tokenizer
from engine.warmup import Rung, make_ladder, warm_up


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
    `observer` is told of each forward. On a GPU the engine warms up before it is ready, `ladder`
    and `warmup_seconds` say with what and how long; ENGINE_WARMUP_MAX_LEN in the environment
    leaves out longer prompts, `skip_prefill_warmup` all of them.

    Raises:
        ConfigError: for a model or an option that the engine can't run.
        WeightsError: for a checkpoint that doesn't hold the model.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        layers: int | None = None,
        dummy_weights: bool = False,
        seed: int = 0,
        kv_tokens: int = 65_536,
        page_size: int = 16,
        max_model_len: int | None = None,
        max_prefill_tokens: int = 8192,
        kernels: Literal["auto", "fused", "reference"] = "auto",
        cuda_graphs: bool = True,
        skip_prefill_warmup: bool = False,
        observer: Observer | None = None,
    ) -> None:
        check_sizes(
            kv_tokens=kv_tokens,
            page_size=page_size,
            max_model_len=max_model_len,
            max_prefill_tokens=max_prefill_tokens,
            seed=seed,
        )
        check_flags(
            dummy_weights=dummy_weights,
            cuda_graphs=cuda_graphs,
            skip_prefill_warmup=skip_prefill_warmup,
        )
        check_observer(observer)
        warmup_tokens = 0 if skip_prefill_warmup else warmup_limit()
        # NumPy's integers overflow where Python's don't.
        kv_tokens, page_size, seed = int(kv_tokens), int(page_size), int(seed)
        self.device = choose_device(device)
        on_gpu = self.device != "cpu"
        family, full = read_model(model)
        self.config = full if layers is None else full.shortened(layers)
        self.dtype = choose_dtype(dtype, self.config, on_gpu=on_gpu)
        self.max_model_len = choose_context(max_model_len, self.config)
        self.max_prefill_tokens = int(max_prefill_tokens)
        self.random = random.Random(seed)
        self.served = 0
        self.observer = Unobserved() if observer is None else observer
        directory = None if is_preset(model) else Path(model)
        self.tokenizer = None if directory is None else read_tokenizer(directory)
        operations = choose_operations(kernels, on_gpu=on_gpu)
        no_room = ConfigError(
            f"the weights of {str(model)!r} and a cache of kv_tokens={kv_tokens} don't fit into "
            f"the memory of {self.device}; lower kv_tokens, or keep fewer layers with layers=N"
        )
        with enough_memory(no_room):
            self.pool = PagePool(-(-kv_tokens // page_size), page_size)
            weights: Weights
            if dummy_weights or directory is None:
                weights = DummyWeights(self.device, self.dtype, seed)
            else:
                weights = self.stored_weights(directory, len(full.layers))
            self.longest = min(self.max_model_len, self.pool.num_pages * page_size)
            self.runner = self.build(weights, operations, family)
            self.ladder: tuple[Rung, ...] = ()
            self.warmup_seconds = 0.0
            if on_gpu:
                self.warm_up(warmup_tokens, cuda_graphs=cuda_graphs)

    def stored_weights(self, directory: Path, all_layers: int) -> SafetensorsWeights:
        """The checkpoint's tensors, without the layers that the engine doesn't build."""
        kept = len(self.config.layers)
        return SafetensorsWeights(directory, self.device, self.dtype, kept, kept < all_layers)

    def build(self, weights: Weights, operations: ModuleType, family: Family) -> Runner:
        """The model with its weights and caches."""
        with torch.inference_mode():
            cos_sin = self.config.rope.table(self.longest).to(self.device)
            decoder = Decoder(self.config, weights, operations, cos_sin, family.load_projection)
        return Runner(
            decoder,
            operations,
            self.pool,
            self.pool.pages_for(self.longest),
            num_slots=1,
            dtype=self.dtype,
            device=self.device,
            observer=self.observer,
        )

    def warm_up(self, most_tokens: int, *, cuda_graphs: bool) -> None:
        """Run the ladder up to `most_tokens`, then capture decode; sets what it took."""
        start = time.perf_counter()
        moe = self.config.moe
        shapes = Shapes(self.dtype, moe.num_experts if moe else 0, moe.top_k if moe else 0)
        most = min(self.longest, self.max_prefill_tokens, most_tokens)
        self.ladder = make_ladder(self.runner.operations.STATEMENTS, shapes, most)
        if self.ladder:
            warm_up(self.runner, self.pool, self.ladder, self.longest, most)
        if cuda_graphs:
            self.runner.capture()
        torch.cuda.synchronize()
        self.warmup_seconds = time.perf_counter() - start

    def generate(
        self,
        prompts: Prompt | Sequence_[Prompt],
        params: SamplingParams | Sequence_[SamplingParams] | None = None,
        request_ids: Sequence_[str] | None = None,
    ) -> list[RequestOutput]:
        """Serve the prompts in order: texts, or lists of token ids; one alone is a list of one.

        `params` holds for all prompts, or is one for each. `request_ids` are what the observer
        hears of, one for each prompt; counted up where they aren't given. Nothing runs unless
        every request can be served.

        Raises:
            RequestError: naming the prompt and what is wrong with it.
        """
        listed = as_list(prompts)
        every = params_for_each(params, len(listed))
        names = ids_for_each(request_ids, self.served, len(listed))
        sequences = [
            self.admit(index, prompt, param, name)
            for index, (prompt, param, name) in enumerate(zip(listed, every, names, strict=True))
        ]
        self.served += len(sequences)
        return [self.serve(sequence) for sequence in sequences]

    def admit(self, index: int, prompt: Prompt, params: SamplingParams, name: str) -> Sequence:
        """Check a request against the vocabulary, the context and the cache."""
        token_ids = encode(index, prompt, self.tokenizer)
        if not token_ids:
            raise RequestError(f"prompt {index} is empty; give it at least one token")
        for place, token in enumerate(token_ids):
            if not 0 <= token < self.config.vocab_size:
                raise RequestError(
                    f"prompt {index}: token id {token} at place {place} is outside the "
                    f"vocabulary of {self.config.vocab_size}"
                )
        self.check_room(index, len(token_ids), params)
        seed = self.random.getrandbits(63) if params.seed is None else int(params.seed)
        return Sequence(token_ids, len(token_ids), params, seed, id=name)

    def check_room(self, index: int, prompt_tokens: int, params: SamplingParams) -> None:
        """Raise a RequestError for a request that is too long for the context or the cache."""
        if prompt_tokens >= self.max_model_len:
            longest = self.config.max_positions
            raisable = self.max_model_len < longest
            raise RequestError(
                f"prompt {index} has {prompt_tokens} tokens; with one to generate that is beyond "
                f"the context of {self.max_model_len}. Shorten it"
                + (f" or raise max_model_len, up to {longest}" if raisable else "")
            )
        pages = self.pool.pages_for(self.room(prompt_tokens, params))
        if pages > self.pool.num_pages:
            fits_alone = self.pool.pages_for(prompt_tokens + 1) <= self.pool.num_pages
            raise RequestError(
                f"prompt {index} needs {pages} pages of {self.pool.page_size} tokens for its "
                f"{prompt_tokens} tokens and max_tokens={params.max_tokens}; the cache has "
                f"{self.pool.num_pages}. Raise kv_tokens or "
                + ("lower max_tokens" if fits_alone else "shorten the prompt")
            )

    def longest_prompt(self, max_tokens: int) -> int:
        """The most tokens of a prompt that `max_tokens` can be generated for, 0 or less for none.

        A context ends an output early, a cache that is smaller refuses the request.
        """
        if self.longest == self.max_model_len:
            return self.longest - 1
        return self.longest - max_tokens

    def room(self, prompt_tokens: int, params: SamplingParams) -> int:
        """Tokens that a request can come to hold in the cache."""
        return min(prompt_tokens + int(params.max_tokens), self.max_model_len)

    def serve(self, sequence: Sequence) -> RequestOutput:
        """Run one request to its end."""
        sequence.pages = self.pool.take(self.room(sequence.num_prompt_tokens, sequence.params))
        sequence.state_index = SCRATCH_SLOT + 1
        no_room = RequestError(
            f"{self.device} ran out of memory for a prompt of {sequence.num_prompt_tokens} tokens "
            f"in chunks of {self.max_prefill_tokens}; lower max_prefill_tokens or kv_tokens"
        )
        try:
            with enough_memory(no_room):
                sequence.append(*self.runner.prefill(sequence, self.max_prefill_tokens))
                self.observer.first_token(sequence.id)
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
