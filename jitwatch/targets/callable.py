"""Targets named `module:attr`: an object with `serve`, what makes one, or a bare function.

Owns how such a name is resolved and called. Knows nothing of devices, recording
or judging.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from jitwatch.errors import TargetError
from jitwatch.recorder import Recorder


@dataclass(frozen=True, slots=True)
class TargetRequest:
    """What `serve` gets: an id, a prompt of that many tokens, and how many to generate."""

    id: str
    prompt_tokens: int
    output_tokens: int
    params: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class WatchedTarget(Protocol):
    """A target object that records its own steps; a request of any other is one step."""

    def attach(self, recorder: Recorder) -> None:
        """Called once, before `warmup`, with what `recorder.step` is to be called of."""

    def longest_prompt(self, output_tokens: int) -> int:
        """The most prompt tokens that a request can have; asked by `--prove`, after `warmup`."""


@dataclass(frozen=True, slots=True)
class Target:
    """A resolved target. `warmup` is None where it has none: it is ready at once.

    `watched` is the object where it records its steps by itself.
    """

    serve: Callable[[TargetRequest], Any]
    warmup: Callable[[], Any] | None
    close: Callable[[], Any] | None
    watched: WatchedTarget | None = None


def load_target(name: str) -> Target:
    """Import and make the target called `name` (`module:attr`).

    Raises:
        TargetError: not of that form, not found, or without a way to serve. What its
            own code raises (on import, in its constructor) passes through.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise TargetError(
            f"--target {name!r} is no target",
            "a target is named module:attr",
            "for example --target mypackage.bench:Target",
        )
    found = _attribute(_module(module_name, name), attribute, name)
    return _target(found, name)


def target_of(made: Any, name: str) -> Target:
    """The target that an object is which was made already.

    Raises:
        TargetError: it can't serve.
    """
    serve = getattr(made, "serve", None)
    if not callable(serve):
        raise TargetError(
            f"--target {name} gives a {type(made).__name__} without serve(request)",
            "a target object serves requests",
            "give it `def serve(self, request)`; warmup() and close() are optional",
        )
    for method in ("warmup", "close"):
        if not callable(getattr(made, method, None) or finish):
            raise TargetError(
                f"--target {name}: its {method} is no method",
                f"it is {getattr(made, method)!r}",
                f"leave it out, or give it `def {method}(self)`",
            )
    return Target(
        _finished(serve),
        _finished(getattr(made, "warmup", None)),
        _finished(getattr(made, "close", None)),
        made if isinstance(made, WatchedTarget) else None,
    )


def where_raised(error: BaseException) -> str:
    """`file:line` of the innermost frame of an exception, or an empty string.

    Of a SyntaxError it is the line that can't be parsed: its frames are the importer's.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def _module(module_name: str, name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and (module_name == missing or module_name.startswith(missing + ".")):
            raise TargetError(
                f"--target {name}: no module named {missing!r}",
                "the current directory and the installed packages were searched",
                "run from the folder that holds it, or install it",
            ) from error
        raise


def _attribute(module: Any, attribute: str, name: str) -> Any:
    found = module
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            public = [key for key in vars(module) if not key.startswith("_")]
            raise TargetError(
                f"--target {name}: {module.__name__} has no {attribute!r}",
                f"it has {', '.join(public[:12]) or 'nothing public'}",
                "name one of its objects, classes or functions",
            ) from None
    return found


def _target(found: Any, name: str) -> Target:
    if inspect.isclass(found) and _required(found):
        raise TargetError(
            f"--target {name} is a class that needs {', '.join(_required(found))}",
            "a class target is made without arguments",
            "give them defaults, or name a function without parameters that returns an object",
        )
    if inspect.isclass(found) or (inspect.isroutine(found) and not _required(found)):
        return target_of(found(), name)
    if inspect.isroutine(found):
        if len(_required(found)) != 1:
            raise TargetError(
                f"--target {name} takes {len(_required(found))} required arguments",
                "a function target takes one, prompt_tokens, or none and returns an object",
                "wrap it: def serve(prompt_tokens): ...",
            )
        return Target(lambda r: finish(found(r.prompt_tokens, **r.params)), None, None)
    return target_of(found, name)


def finish(result: Any) -> Any:
    """Run to its end what a coroutine function or a generator function gave.

    Coroutines of one target share one event loop.
    """
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        return _loop().run_until_complete(_awaited(result))
    if inspect.isgenerator(result):
        return list(result)
    return result


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


async def _awaited(result: Any) -> Any:
    if inspect.isasyncgen(result):
        return [item async for item in result]
    return await result


def _finished(method: Callable[..., Any] | None) -> Any:
    if not method:
        return None
    return lambda *arguments: finish(method(*arguments))


def _required(function: Any) -> list[str]:
    """Names of the parameters that must be given by position."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return []  # written in C, without a signature
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind in positional
    ]
