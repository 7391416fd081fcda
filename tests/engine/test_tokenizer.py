"""The tokenizer of a checkpoint."""

from __future__ import annotations

import re

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from engine.errors import ConfigError
from engine.tokenizer import read_tokenizer


def save(path):
    tokenizer = Tokenizer(WordLevel({"?": 0, "a": 1, "b": 2}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(max_length=2)
    tokenizer.enable_padding(length=6)
    tokenizer.save(str(path))


def test_none(tmp_path):
    assert read_tokenizer(tmp_path) is None


def test_a_prompt_is_neither_cut_nor_padded(tmp_path):
    save(tmp_path / "tokenizer.json")
    assert len(Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("a b a b").ids) == 6
    tokenizer = read_tokenizer(tmp_path)
    assert tokenizer is not None
    assert tokenizer.encode("a b a b").ids == [1, 2, 1, 2]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[1]", b'{"model": null}'])
def test_a_file_that_is_no_tokenizer(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    start = rf"^{re.escape(str(path))}: not a tokenizer \(.*\); take it from the checkpoint$"
    with pytest.raises(ConfigError, match=start):
        read_tokenizer(tmp_path)
    save(path)
    assert read_tokenizer(tmp_path) is not None
