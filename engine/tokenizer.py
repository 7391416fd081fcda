"""Text to token ids and back, with the checkpoint's `tokenizer.json` where there is one."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from engine.errors import ConfigError


def read_tokenizer(directory: Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint directory; None where it has none.

    Raises:
        ConfigError: if the file isn't a tokenizer.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ConfigError(
            f"{path}: not a tokenizer ({error}); take it from the checkpoint"
        ) from None
    # Some files ask for these, and a prompt must be all of its text and nothing else.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
