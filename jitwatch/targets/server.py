"""A server as a target: an OpenAI-compatible one, asked for completions of exact prompt lengths.

Owns what is sent and how its answer is checked. Knows nothing of recording or judging.
"""

from __future__ import annotations

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from jitwatch.errors import TargetError
from jitwatch.targets.callable import TargetRequest

#: Token ids sent: ordinary ones in any vocabulary of a language model.
FIRST_ID, NUM_IDS = 100, 20_000
#: How long one answer may take: a first request may compile for minutes.
TIMEOUT_SECONDS = 1800
#: What a server answers that takes no token ids.
NOT_UNDERSTOOD = (400, 422)


class ServerTarget:
    """`serve` raises where a request fails, or where the server counts other prompt tokens."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._starts = itertools.count()
        self._takes_ids = True
        self._extra_tokens = 0  # what the server adds to a text: a begin token, mostly
        self.model = self._first_model()

    def _first_model(self) -> str:
        listed = self._ask("/v1/models")
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError) as error:
            raise TargetError(
                f"--target {self.url}: /v1/models names no model",
                f"it answered {json.dumps(listed)[:200]}",
                "give the URL of an OpenAI-compatible server, without a path",
            ) from error

    def serve(self, request: TargetRequest) -> None:
        """One completion, greedy where the request says nothing else; returns when it is over.

        Each prompt begins with a token of its own: a prefix that the server holds already is not
        forwarded, and what is forwarded decides the variants.
        """
        if self._takes_ids:
            start = next(self._starts)
            ids = [FIRST_ID + (start + i) % NUM_IDS for i in range(request.prompt_tokens)]
            try:
                self._complete(request, ids)
            except _Refused:
                self._takes_ids = False
        if not self._takes_ids:
            self._serve_text(request)

    def _serve_text(self, request: TargetRequest) -> None:
        """A text of as many short words; asked again where the server counted otherwise."""
        counted = 0
        for _ in range(3):
            words = max(1, request.prompt_tokens - self._extra_tokens)
            counted = self._complete(request, " the" * words)
            if counted == request.prompt_tokens:
                return
            self._extra_tokens += counted - request.prompt_tokens
        raise ValueError(f"{self.url} counts {counted} tokens of {request.prompt_tokens} words")

    def _complete(self, request: TargetRequest, prompt: list[int] | str) -> int:
        """The prompt tokens that the server counted."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": request.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            **request.params,
        }
        answer = self._ask("/v1/completions", body)
        try:
            counted = int(answer["usage"]["prompt_tokens"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{self.url} doesn't say how many prompt tokens it served") from error
        if isinstance(prompt, list) and counted != len(prompt):
            raise ValueError(f"{self.url} counted {counted} prompt tokens of {len(prompt)}")
        return counted

    def _ask(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(asked, timeout=TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(300).decode(errors="replace")
            if (
                body is not None
                and error.code in NOT_UNDERSTOOD
                and not isinstance(body["prompt"], str)
            ):
                raise _Refused from error
            raise ValueError(f"{self.url}{path} answered {error.code}: {said}") from error


class _Refused(Exception):
    """The server understood the request and takes no token ids."""
