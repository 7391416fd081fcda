"""A simulated H200 for one test, always taken away again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from jitwatch.simulate.boards import get_board

if TYPE_CHECKING:
    from jitwatch.simulate.cuda import SimulatedTorch


@pytest.fixture
def simulated() -> Iterator[SimulatedTorch]:
    """The board h200 in place in this process; a read-back nobody knows is assumed zero."""
    cuda = pytest.importorskip("jitwatch.simulate.cuda")
    installed = cuda.install(get_board("h200"))
    yield installed
    installed.uninstall()


@pytest.fixture
def strict() -> Iterator[SimulatedTorch]:
    """As `simulated`, but such a read-back is an error."""
    cuda = pytest.importorskip("jitwatch.simulate.cuda")
    installed = cuda.install(get_board("h200"), strict_values=True)
    yield installed
    installed.uninstall()
