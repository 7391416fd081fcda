"""Prompts in every form that a caller may give them, and what is refused."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from engine.errors import RequestError
from engine.prompts import as_list, encode, params_for_each
from engine.request import SamplingParams

IDS = [2, 3, 4]


@pytest.fixture(scope="module")
def tokenizer():
    tokenizer = Tokenizer(WordLevel({"?": 0, "a": 3, "b": 4}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    return tokenizer


@pytest.mark.parametrize(
    "prompt",
    [
        IDS,
        tuple(IDS),
        range(2, 5),
        np.array(IDS),
        np.array(IDS, dtype=np.uint8),
        np.array(IDS, dtype=object),
        torch.tensor(IDS),
        torch.tensor(IDS, dtype=torch.int16),
        list(np.array(IDS)),
        list(torch.tensor(IDS)),
    ],
)
def test_token_ids_in_any_form(prompt):
    [alone] = as_list(prompt)
    [listed] = as_list([prompt])
    for found in (alone, listed):
        token_ids = encode(0, found, None)
        assert token_ids == IDS
        assert {type(token) for token in token_ids} == {int}


def test_several_prompts():
    assert as_list([[1], [2, 3]]) == [[1], [2, 3]]
    assert as_list(iter([[1], [2]])) == [[1], [2]]
    assert [encode(0, row, None) for row in as_list(np.array([[1, 2], [3, 4]]))] == [[1, 2], [3, 4]]
    assert as_list(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert as_list("a b") == ["a b"]
    assert as_list(["a", [1]]) == ["a", [1]]
    assert as_list([]) == []


@pytest.mark.parametrize(
    "prompts",
    [None, 5, True, b"ab", bytearray(b"ab"), {1, 2}, {1: 2}, np.array(5), torch.tensor(5)],
)
def test_what_is_no_list(prompts):
    kind = type(prompts).__name__
    with pytest.raises(RequestError) as caught:
        as_list(prompts)
    assert str(caught.value) == f"prompts is a {kind}; give texts or lists of token ids"
    with pytest.raises(RequestError) as caught:
        encode(3, prompts, None)
    assert str(caught.value) == f"prompt 3 is a {kind}; give a text or a list of token ids"


@pytest.mark.parametrize("prompts", [[1, [2]], [[2], 1], ["a", 1], [1, None], [True, "a"]])
def test_ids_beside_prompts(prompts):
    with pytest.raises(RequestError) as caught:
        as_list(prompts)
    assert str(caught.value) == (
        "prompts mixes token ids and prompts; put each prompt's ids into a list of their own"
    )
    assert as_list([[1], [2]]) == [[1], [2]]


@pytest.mark.parametrize(
    "token",
    [
        *(True, 1.0, float("nan"), 1j, None, "1", [1], Fraction(1), np.float32(1), np.True_),
        *(torch.tensor(1.0), torch.tensor(True), torch.tensor([1])),
    ],
)
def test_what_is_no_token_id(token):
    with pytest.raises(RequestError) as caught:
        encode(1, [5, token], None)
    assert str(caught.value) == f"prompt 1: token id {token!r} is not an integer"
    assert encode(1, [5, 1], None) == [5, 1]


def test_tensors_of_other_kinds():
    with pytest.raises(RequestError, match=r"^prompt 0: token id 1.5 is not an integer$"):
        encode(0, torch.tensor([1.5]), None)
    with pytest.raises(RequestError, match=r"^prompt 0: token id True is not an integer$"):
        encode(0, torch.tensor([True]), None)


def test_texts(tokenizer):
    assert encode(0, "a b a c", tokenizer) == [3, 4, 3, 0]
    assert encode(0, "", tokenizer) == []
    with pytest.raises(RequestError) as caught:
        encode(2, "a b", None)
    assert str(caught.value) == (
        "prompt 2 is a text, and the model came without a tokenizer.json; give token ids"
    )
    assert encode(2, [3, 4], None) == [3, 4]


def test_a_text_that_is_no_unicode(tokenizer):
    with pytest.raises(RequestError) as caught:
        encode(0, "ab\ud800", tokenizer)
    assert str(caught.value) == "prompt 0 is no Unicode text: surrogates not allowed at place 2"


def test_parameters_for_each_prompt():
    hot, cold = SamplingParams(), SamplingParams(temperature=0)
    assert params_for_each(None, 2) == [hot, hot]
    assert params_for_each(cold, 2) == [cold, cold]
    assert params_for_each((hot, cold), 2) == [hot, cold]
    assert params_for_each([], 0) == []


@pytest.mark.parametrize("params", [5, "x", [None], {"temperature": 0}, SamplingParams, [{}]])
def test_what_is_no_parameters(params):
    with pytest.raises(RequestError) as caught:
        params_for_each(params, 1)
    assert str(caught.value) == "params must be SamplingParams, or a list of them"


def test_parameters_for_another_number_of_prompts():
    hot = SamplingParams()
    with pytest.raises(RequestError) as caught:
        params_for_each([hot], 2)
    assert str(caught.value) == (
        "2 prompts and 1 sampling parameters; give one for all, or one each"
    )
    assert params_for_each(hot, 2) == params_for_each([hot, hot], 2)
