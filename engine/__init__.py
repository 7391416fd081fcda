"""A full inference engine: `LLM(model).generate(prompts, SamplingParams(…))`."""

from __future__ import annotations

from engine.errors import ConfigError, EngineError, RequestError, WeightsError
from engine.llm import LLM
from engine.request import RequestOutput, SamplingParams

__all__ = [
    "LLM",
    "ConfigError",
    "EngineError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "WeightsError",
]
