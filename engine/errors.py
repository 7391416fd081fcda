"""Every error that a user of the engine can meet: what happened, why, how to fix it."""

from __future__ import annotations


class EngineError(Exception):
    """Base of the engine's errors."""


class ConfigError(EngineError):
    """A model's configuration can't be read, or describes what the engine doesn't run."""


class WeightsError(EngineError):
    """A checkpoint is damaged, or doesn't hold the tensors that the configuration asks for."""


class RequestError(EngineError, ValueError):
    """A request can't be served: its prompt, its parameters, or the room that it needs."""
