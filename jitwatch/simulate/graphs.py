"""CUDA graphs of the simulated device: the body runs once, while capturing; replay is nothing.

Owns `torch.cuda.CUDAGraph` and the `torch.cuda.graph` context. What was launched in a
capture is for the driver to count.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from jitwatch.simulate import launched, streams

Pool = tuple[int, int]

_pools = itertools.count(1)


def graph_pool_handle() -> Pool:
    """A memory pool's name, unlike all others."""
    return (0, next(_pools))


class CUDAGraph:
    """Stands in for `torch.cuda.CUDAGraph`."""

    def __init__(self, keep_graph: bool = False) -> None:
        self._pool: Pool | None = None
        self._captured = False
        self._functions: frozenset[int] = frozenset()
        self._debug = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global", **_: Any) -> None:
        """Start capturing on this thread.

        Raises:
            RuntimeError: a capture is under way, or this graph holds one.
        """
        if streams.is_current_stream_capturing():
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if self._captured:
            raise RuntimeError("This CUDAGraph instance already owns a captured graph; reset it")
        self._pool = pool or graph_pool_handle()
        streams.capture_on(streams.current_stream())
        launched.begin_capture()

    def capture_end(self) -> None:
        """Stop capturing.

        Raises:
            RuntimeError: nothing is captured.
        """
        if not streams.is_current_stream_capturing():
            raise RuntimeError("capture_end() called while no capture is under way")
        streams.capture_on(None)
        self._functions = launched.end_capture()
        self._captured = True

    def _needs_capture(self, what: str) -> None:
        if not self._captured:
            raise RuntimeError(f"Called CUDAGraph::{what} without a preceding successful capture.")

    def instantiate(self) -> None:
        """Make the captured graph ready to launch."""
        self._needs_capture("instantiate")

    def replay(self) -> None:
        """Launch the captured graph: nothing runs, its functions count as launched.

        Raises:
            RuntimeError: nothing was captured.
        """
        self._needs_capture("replay")
        launched.replay(self._functions)

    def reset(self) -> None:
        """Forget the captured graph."""
        self._captured, self._pool = False, None
        self._functions = frozenset()

    def pool(self) -> Pool:
        """The pool the capture allocated from."""
        self._needs_capture("pool")
        assert self._pool is not None
        return self._pool

    def enable_debug_mode(self) -> None:
        """Let `debug_dump` write."""
        self._debug = True

    def debug_dump(self, debug_path: str) -> None:
        """Write an empty graph in the dot format."""
        self._needs_capture("debug_dump")
        if self._debug:
            Path(debug_path).write_text("digraph simulated {}\n")


class graph:
    """Stands in for the context `torch.cuda.graph`."""

    default_capture_stream: streams.Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: Any = None,
        stream: streams.Stream | None = None,
        capture_error_mode: str = "global",
        **_: Any,
    ) -> None:
        if stream is None and graph.default_capture_stream is None:
            graph.default_capture_stream = streams.Stream()
        self.cuda_graph = cuda_graph
        self.pool = pool
        self.capture_stream = stream or graph.default_capture_stream
        self._context = streams.StreamContext(self.capture_stream)

    def __enter__(self) -> None:
        self._context.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool)
        except RuntimeError:
            self._context.__exit__(None, None, None)
            raise

    def __exit__(self, *_: object) -> None:
        self.cuda_graph.capture_end()
        self._context.__exit__(None, None, None)


STAND_INS: dict[str, object] = {
    "CUDAGraph": CUDAGraph,
    "graph": graph,
    "graph_pool_handle": graph_pool_handle,
}
