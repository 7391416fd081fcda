"""Prompts as a caller gives them, texts or token ids in many forms, and their parameters."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping
from collections.abc import Sequence as Sequence_
from collections.abc import Set as Set_

import torch
from tokenizers import Tokenizer

from engine.errors import RequestError
from engine.request import SamplingParams

Prompt = str | Sequence_[int]

# These iterate, and not over a prompt's tokens in order.
NO_LISTS = (bytes, bytearray, memoryview, Mapping, Set_)


def as_list(prompts: Prompt | Sequence_[Prompt]) -> list[Prompt]:
    """Prompts as a list, also where one was given without a list around it.

    Raises:
        RequestError: if that is no list of prompts.
    """
    if isinstance(prompts, str):
        return [prompts]
    listed = elements(prompts)
    if listed is None:
        raise RequestError(
            f"prompts is a {type(prompts).__name__}; give texts or lists of token ids"
        )
    tokens = [is_token(item) for item in listed]
    if listed and all(tokens):
        return [listed]  # type: ignore[list-item]
    if any(tokens):
        raise RequestError(
            "prompts mixes token ids and prompts; put each prompt's ids into a list of their own"
        )
    return listed  # type: ignore[return-value]


def encode(index: int, prompt: Prompt, tokenizer: Tokenizer | None) -> list[int]:
    """The token ids of prompt number `index`, from its text where it is one.

    Raises:
        RequestError: if it is neither a text nor token ids.
    """
    if isinstance(prompt, str):
        return encode_text(index, prompt, tokenizer)
    tokens = elements(prompt)
    if tokens is None:
        raise RequestError(
            f"prompt {index} is a {type(prompt).__name__}; give a text or a list of token ids"
        )
    # Almost all are plain ints, and a prompt has thousands.
    return [token if type(token) is int else token_id(index, token) for token in tokens]


def encode_text(index: int, text: str, tokenizer: Tokenizer | None) -> list[int]:
    """The token ids of a text."""
    if tokenizer is None:
        raise RequestError(
            f"prompt {index} is a text, and the model came without a tokenizer.json; give token ids"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"prompt {index} is no Unicode text: {error.reason} at place {error.start}"
        ) from None
    return list(tokenizer.encode(text).ids)


def params_for_each(
    params: SamplingParams | Sequence_[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """One for each of `count` prompts.

    Raises:
        RequestError: if that is no SamplingParams, or another number of them.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    every = elements(params)
    if every is None or not all(isinstance(item, SamplingParams) for item in every):
        raise RequestError("params must be SamplingParams, or a list of them")
    if len(every) != count:
        raise RequestError(
            f"{count} prompts and {len(every)} sampling parameters; give one for all, or one each"
        )
    return every  # type: ignore[return-value]


def ids_for_each(request_ids: Sequence_[str] | None, first: int, count: int) -> list[str]:
    """One for each of `count` prompts; numbers from `first` on where none are given.

    Raises:
        RequestError: if they are no strings, one of them twice, or another number of them.
    """
    if request_ids is None:
        return [str(first + index) for index in range(count)]
    every = None if isinstance(request_ids, str) else elements(request_ids)
    if every is None or not all(isinstance(item, str) for item in every):
        raise RequestError("request_ids must be a list of strings")
    if len(every) != count:
        raise RequestError(f"{count} prompts and {len(every)} request_ids; give one each")
    if len(set(every)) < count:
        twice = next(item for item in every if every.count(item) > 1)
        raise RequestError(f"request_ids has {twice!r} twice; an id names one request")
    return every  # type: ignore[return-value]


def elements(listed: object) -> list[object] | None:
    """What a list, an array, a tensor or an iterator holds; None where it is nothing of these."""
    if isinstance(listed, NO_LISTS):
        return None
    try:
        values = listed.tolist() if isinstance(listed, torch.Tensor) else listed
        return list(values)  # type: ignore[arg-type]
    except (TypeError, RuntimeError):  # torch's tensors without data raise the latter
        return None


def is_token(item: object) -> bool:
    """Whether `item` is a number rather than a prompt."""
    return isinstance(item, numbers.Number) or getattr(item, "shape", None) == ()


def token_id(index: int, token: object) -> int:
    """A prompt's token id as an int, also from NumPy's and torch's integers.

    Raises:
        RequestError: if it is no integer.
    """
    value = token.tolist() if isinstance(token, torch.Tensor) else token
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise RequestError(f"prompt {index}: token id {token!r} is not an integer")
