"""The target `engine`: this repository's engine, served request by request.

Owns the engine's options on a command line, and how what it does becomes steps and requests. The
engine knows nothing of it: it is told to an observer of its own.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from jitwatch.errors import TargetError, UsageError
from jitwatch.events import Rung
from jitwatch.recorder import Recorder
from jitwatch.targets.callable import TargetRequest

NAME = "engine"
#: Layers that are run where nothing else is asked for and the model has as many.
DEFAULT_LAYERS = 8
#: Tokens of the KV cache, where no request needs more.
KV_TOKENS = 65_536
#: Arguments of `engine.LLM` that --engine-arg doesn't pass, and why.
OWN_OPTIONS = {
    "model": "it has an option of its own, --model",
    "layers": "it has an option of its own, --layers",
    "device": "it has an option of its own, --device",
    "observer": "jitwatch itself is the observer",
}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The engine to boot. `arguments` are passed to `engine.LLM` as they are.

    None for `layers` is 8, or all where the model has fewer; for `kv_tokens` it is 65,536: a number
    that free memory has no part in, as it must not decide which variants are met. (A sweep asks
    for more where a request needs it.)
    """

    model: str = "qwen3.6-35b-a3b"
    layers: int | None = None
    dtype: str = "auto"
    kv_tokens: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def options_for(target: str, given: Mapping[str, Any], pairs: Sequence[str]) -> EngineOptions:
    """The engine's options from a command line: `given` by name, and the pairs of --engine-arg.

    Raises:
        UsageError: they are for another target, or one is given that has an option of its own.
    """
    more = parse_arguments(pairs, "--engine-arg", "page_size=32")
    for name in more:
        if name in OWN_OPTIONS or name in given:
            raise UsageError(
                f"--engine-arg {name}={more[name]}: is not passed on so",
                OWN_OPTIONS.get(name, "it is given as an option as well"),
                "leave it out",
            )
    if target != NAME and (given or more):
        option = f"--{next(iter(given)).replace('_', '-')}" if given else "--engine-arg"
        raise UsageError(
            f"--target {target}: takes no option of the engine's ({option})",
            f"{option} is for --target engine",
            "leave it out, or set it in the target itself",
        )
    options = dict(given)
    if options.pop("skip_prefill_warmup", False):
        more["skip_prefill_warmup"] = True
    return EngineOptions(**options, arguments=more)


def parse_arguments(pairs: Sequence[str], option: str, example: str) -> dict[str, Any]:
    """Values given as `name=value`: Python literals, or else text; `true` and `false` as in JSON.

    Raises:
        UsageError: one has no `=`, no name, a name twice, or a value that JSON can't hold.
    """
    words = {"true": True, "false": False, "null": None}
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier() or name in found:
            raise UsageError(
                f"{option} {pair}: {'given twice' if name in found else 'no name=value'}",
                "an argument has a name, which is given once",
                f"for example {option} {example}",
            )
        try:
            found[name] = words[text] if text in words else ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            found[name] = text
        if not _is_json(found[name]):
            raise UsageError(
                f"{option} {pair}: is no value that can be passed on",
                f"JSON has no {type(found[name]).__name__} such as {text}",
                "give a number, a text, true, false, null, or a list or dict of these",
            )
    return found


def _is_json(value: object) -> bool:
    """Whether it comes back from JSON as it was."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


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


class EngineTarget:
    """Boots the engine in `warmup`, and serves prompts of one token repeated."""

    def __init__(
        self, options: EngineOptions | None = None, params: Mapping[str, Any] | None = None
    ) -> None:
        self.options = options or EngineOptions()
        self.params = params or {}
        self.recorder: Recorder | None = None
        self.llm: Any = None

    def attach(self, recorder: Recorder) -> None:
        """Write steps into this recorder: its caller need not."""
        self.recorder = recorder

    def warmup(self) -> None:
        """Build the engine, which warms itself up, and say with which ladder.

        Raises:
            TargetError: for options that it can't be built with, or parameters it doesn't know.
        """
        logging.basicConfig(level=logging.INFO)
        engine = find_engine()
        _check_names("--param", self.params, engine.SamplingParams, ("max_tokens", "ignore_eos"))
        _check_names("--engine-arg", self.options.arguments, engine.LLM, tuple(OWN_OPTIONS))
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
        except (engine.ConfigError, engine.WeightsError) as error:
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

    def longest_prompt(self, output_tokens: int) -> int:
        """What context and cache have room for."""
        return int(self.llm.longest_prompt(output_tokens))

    def close(self) -> None:
        """Let go of the model."""
        self.llm = None


def _check_names(
    option: str, given: Mapping[str, Any], made: Callable[..., Any], ours: Sequence[str]
) -> None:
    """Raise a TargetError for a name that `made` has no parameter of, or that is `ours` to give."""
    known = [name for name in inspect.signature(made).parameters if name not in ours]
    for name in given:
        if name not in known:
            raise TargetError(
                f"{option} {name}={given[name]}: engine.{made.__name__} takes no such argument",
                f"it takes {', '.join(known)}",
                f"name one of these, or leave {option} out",
            )


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
