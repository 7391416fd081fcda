"""The target `engine`: this repository's engine, served request by request.

Owns the engine's options on a command line, and how what it does becomes steps and requests. The
engine knows nothing of it: it is told to an observer of its own.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from jitwatch.errors import TargetError, UsageError
from jitwatch.events import Rung
from jitwatch.recorder import Recorder
from jitwatch.targets.callable import TargetRequest, WatchedTarget

NAME = "engine"
#: Layers that are run where nothing else is asked for and the model has as many.
DEFAULT_LAYERS = 8
#: Tokens of the KV cache, where no request needs more.
KV_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine to boot. `arguments` are passed to `engine.LLM` as they are.

    None for `layers` is 8, or all where the model has fewer; for `kv_tokens` it is 65,536, or
    room for the longest request: a number that free memory has no part in, as it must not decide
    which variants are met.
    """

    model: str = "qwen3.6-35b-a3b"
    layers: int | None = None
    dtype: str = "auto"
    kv_tokens: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def parse_arguments(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Values given as `name=value`: Python literals, or else text; `true` and `false` as in JSON.

    Raises:
        UsageError: one has no `=`, no name, or a name twice.
    """
    words = {"true": True, "false": False, "null": None}
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier() or name in found:
            raise UsageError(
                f"{option} {pair}: {'given twice' if name in found else 'no name=value'}",
                "an argument has a name, which is given once",
                f"for example {option} page_size=32",
            )
        try:
            found[name] = words[text] if text in words else ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            found[name] = text
    return found


class RecorderObserver:
    """Writes the engine's steps and first tokens into a recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder

    def step(
        self, phase: Literal["prefill", "decode"], requests: Sequence[str], tokens: int
    ) -> AbstractContextManager[int]:
        """One forward."""
        return self.recorder.step(phase, tuple(requests), tokens)

    def first_token(self, request: str) -> None:
        """The request's first token is known."""
        self.recorder.first_token(request)


class EngineTarget(WatchedTarget):
    """Boots the engine in `warmup`, and serves prompts of one token repeated."""

    def __init__(self, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.recorder: Recorder | None = None
        self.llm: Any = None

    def attach(self, recorder: Recorder) -> None:
        """Write steps into this recorder: its caller need not."""
        self.recorder = recorder

    def warmup(self) -> None:
        """Build the engine, which warms itself up, and say with which ladder.

        Raises:
            TargetError: for options that it can't be built with.
        """
        logging.basicConfig(level=logging.INFO)
        engine = find_engine()
        observer = RecorderObserver(self.recorder) if self.recorder is not None else None
        arguments = {
            "dtype": self.options.dtype,
            "kv_tokens": KV_TOKENS if self.options.kv_tokens is None else self.options.kv_tokens,
            **self.options.arguments,
        }
        try:
            layers = self.options.layers
            if layers is None:
                registry = importlib.import_module("engine.models.registry")
                _, config = registry.read_model(self.options.model)
                layers = min(DEFAULT_LAYERS, len(config.layers))
            self.llm = engine.LLM(
                self.options.model, device="cuda", layers=layers, observer=observer, **arguments
            )
        except (engine.ConfigError, engine.WeightsError, TypeError) as error:
            if isinstance(error, TypeError) and "unexpected keyword" not in str(error):
                raise
            raise TargetError(
                f"--target engine: {error}",
                "the engine can't be built so",
                "its options are --model, --layers, --dtype, --kv-tokens and --engine-arg, whose "
                "names are those of engine.LLM",
            ) from error
        if self.recorder is not None:
            rungs = [asdict(Rung(rung.num_tokens, rung.reasons)) for rung in self.llm.ladder]
            self.recorder.fact("ladder", rungs)
            self.recorder.fact("warmup_seconds", round(self.llm.warmup_seconds, 3))

    def serve(self, request: TargetRequest) -> None:
        """Generate, greedily where the request says nothing else."""
        engine = find_engine()
        params = {"temperature": 0.0, **request.params}
        self.llm.generate(
            [[1] * request.prompt_tokens],
            engine.SamplingParams(max_tokens=request.output_tokens, ignore_eos=True, **params),
            request_ids=[request.id],
        )

    def longest_prompt(self) -> int:
        """With one token to generate it fills the context, or the cache."""
        return int(self.llm.longest) - 1

    def close(self) -> None:
        """Let go of the model."""
        self.llm = None


def find_engine() -> Any:
    """The package `engine`.

    Raises:
        TargetError: it isn't here, or is another one.
    """
    mend = "run in a checkout of jitwatch's, or name a target of your own: --target module:attr"
    if importlib.util.find_spec(NAME) is None:
        raise TargetError(
            "--target engine: there is no engine here",
            "the package engine/ belongs to jitwatch's repository and is not installed with it",
            mend,
        )
    module = importlib.import_module(NAME)
    if not hasattr(module, "LLM") or not hasattr(module, "SamplingParams"):
        raise TargetError(
            "--target engine: the package 'engine' here is not jitwatch's",
            f"{module.__file__} has no LLM or no SamplingParams",
            mend,
        )
    return module
