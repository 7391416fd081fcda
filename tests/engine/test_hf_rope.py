"""The rotary embedding of a config.json, in every spelling and every way to be wrong."""

from __future__ import annotations

import pytest

from engine.config import Llama3Scaling, RopeConfig
from engine.errors import ConfigError
from engine.hf_config import ConfigFile, parse
from engine.hf_rope import read_rope
from tests.engine.test_hf_config import REMEDY, llama

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def rope_of(head_dim=16, default_partial=1.0, **fields):
    return read_rope(parse(ConfigFile(llama(**fields), "config.json")), head_dim, default_partial)


@pytest.mark.parametrize(
    ("fields", "rope"),
    [
        ({}, RopeConfig(10_000.0, 16)),
        ({"rope_theta": 500}, RopeConfig(500.0, 16)),
        ({"rope_parameters": {"rope_theta": 7, "rope_type": "mrope"}}, RopeConfig(7.0, 16)),
        # The newer object wins over the older fields, one null in it does not.
        ({"rope_theta": 5, "rope_parameters": {"rope_theta": 7}}, RopeConfig(7.0, 16)),
        ({"rope_theta": 5, "rope_parameters": {"rope_theta": None}}, RopeConfig(5.0, 16)),
        ({"partial_rotary_factor": 0.5}, RopeConfig(10_000.0, 8)),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, RopeConfig(10_000.0, 4)),
        (
            {"rope_theta": 5, "rope_scaling": {"type": "linear", "factor": 2}},
            RopeConfig(5.0, 16, linear_factor=2.0),
        ),
        (
            {"rope_scaling": LLAMA3},
            RopeConfig(5e5, 16, llama3=Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        ),
    ],
)
def test_spellings(fields, rope):
    assert rope_of(**fields) == rope


def test_a_family_has_a_part_of_its_own():
    assert rope_of(default_partial=0.25).rotary_dim == 4
    assert rope_of(default_partial=0.25, partial_rotary_factor=0.5).rotary_dim == 8


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            {"rope_type": "yarn"},
            ": rope type 'yarn' is not supported; the engine runs 'default', 'linear' and 'llama3'",
        ),
        (
            {"type": "linear"},
            f": rope parameters: factor is missing, and rope type 'linear' needs it; {REMEDY}",
        ),
        (
            {"rope_theta": "far"},
            ": rope parameters: rope_theta: Input should be a valid number (it is 'far'); "
            + REMEDY,
        ),
        (
            {"rope_theta": 0},
            ": rope parameters: rope_theta: Input should be greater than 0 (it is 0); " + REMEDY,
        ),
        (
            {"rope_theta": float("nan")},
            ": rope parameters: rope_theta: Input should be a finite number (it is nan); " + REMEDY,
        ),
        (
            {**LLAMA3, "high_freq_factor": 1.0},
            ": rope parameters: high_freq_factor 1.0 must be above low_freq_factor 1.0",
        ),
        (
            {"partial_rotary_factor": 0.2},
            ": rope parameters: 0.2 of head_dim 16 are 3 dimensions, and they are rotated in "
            "pairs; mend partial_rotary_factor or head_dim",
        ),
    ],
)
def test_what_is_wrong_is_named(given, fault):
    with pytest.raises(ConfigError) as caught:
        rope_of(rope_parameters=given)
    assert str(caught.value) == "config.json" + fault


@pytest.mark.parametrize(
    "field", [name for name in LLAMA3 if name not in ("rope_type", "rope_theta")]
)
@pytest.mark.parametrize("value", [None, 0, "8", float("inf"), [], True])
def test_llama3_needs_every_field(field, value):
    with pytest.raises(ConfigError, match=f"^config.json: rope parameters: {field}"):
        rope_of(rope_parameters={**LLAMA3, field: value})


def test_a_remedy_of_pairs():
    assert rope_of(rope_parameters={"partial_rotary_factor": 0.25}).rotary_dim == 4
    assert rope_of(rope_parameters={"partial_rotary_factor": 0.2}, head_dim=20).rotary_dim == 4
