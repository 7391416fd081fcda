"""The controls: a small target with each fault, and a near miss that stays clean.

`CONTROLS` says what is swept and what must come out: for each late event of the
faulty target its prompt length, kind, code and differing argument. The same is
expected of the H200 and of the simulated one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Late:
    """One expected late kernel: at which length, why, and what differs."""

    prompt_tokens: int
    code: str
    kernel: str
    argument: str | None = None
    now: str | None = None
    before: str | None = None
    loads: int = 1


@dataclass(frozen=True, slots=True)
class Control:
    """A faulty target (`Faulty`) and its near miss (`Clean`) in one module."""

    module: str
    lengths: tuple[int, ...]
    late: tuple[Late, ...]
    second_run: bool = False

    @property
    def faulty(self) -> str:
        """The name to sweep for the fault."""
        return f"tests.controls.{self.module}:Faulty"

    @property
    def clean(self) -> str:
        """The name to sweep for the near miss."""
        return f"tests.controls.{self.module}:Clean"


CONTROLS: dict[str, Control] = {
    "JW101": Control("cold_kernel", (64, 100, 101), (Late(100, "JW101", "square_kernel"),)),
    "JW102": Control(
        "integer_class",
        (64, 80, 65, 66, 1),
        (
            Late(65, "JW102", "scale_kernel", "n", "any other n", "n % 16 == 0"),
            Late(1, "JW102", "scale_kernel", "n", "n == 1", "n % 16 == 0"),
        ),
    ),
    "JW103": Control(
        "constexpr_length",
        (64, 65, 66, 65),
        (
            Late(65, "JW103", "norm_kernel", "T", "65", "64"),
            Late(66, "JW103", "norm_kernel", "T", "66", "64"),
        ),
    ),
    "JW104": Control(
        "warps_by_length",
        (64, 256, 257, 300),
        (Late(257, "JW104", "add_kernel", "num_warps", "8", "4"),),
    ),
    "JW105": Control(
        "kernel_factory",
        (64, 65),
        (
            Late(
                64,
                "JW105",
                "inner_kernel",
                "definition",
                "a new @triton.jit object",
                "the one loaded before",
            ),
            Late(
                65,
                "JW105",
                "inner_kernel",
                "definition",
                "a new @triton.jit object",
                "the one loaded before",
            ),
        ),
    ),
    "JW106": Control(
        "autotune_by_length",
        (64, 128, 129, 200),
        (Late(129, "JW106", "tuned_kernel", "NB", "2", "1", loads=2),),
    ),
    "JW107": Control(
        "index_dtype",
        (64, 128, 129, 130),
        (Late(129, "JW107", "gather_kernel", "index", "*i64", "*i32"),),
    ),
    "JW108": Control(
        "unaligned_view",
        (64, 68, 65, 66),
        (Late(65, "JW108", "copy_kernel", "x", "x not 16-byte aligned", "x 16-byte aligned"),),
    ),
    "JW109": Control(
        "optional_bias",
        (64, 128, 129, 130),
        (Late(129, "JW109", "bias_kernel", "bias", "bias given (*fp32)", "bias is None"),),
    ),
    "JW110": Control(
        "number_type",
        (64, 128, 129, 130),
        (Late(129, "JW110", "factor_kernel", "factor", "fp32", "i32"),),
    ),
    "JW201": Control(
        "cold_kernel", (64, 100, 101), (Late(100, "JW201", "square_kernel"),), second_run=True
    ),
    "JW202": Control("warmup_only", (64, 65), (Late(64, "JW202", "half_kernel"),)),
    "JW206": Control(
        "launch_signature",
        (64, 80, 1, 64),
        (Late(1, "JW102", "fill_kernel", "n", "n == 1", "any other n"),),
    ),
}
