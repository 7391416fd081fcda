"""Streams and events of the simulated device: everything is done the moment it is asked for.

Owns each thread's current stream. Measures no time: the elapsed time between two events is
the same positive number always, so that no choice made from it differs between runs.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from types import TracebackType
from typing import Any

from jitwatch.simulate.devices import CUDA, check_ordinal

ELAPSED_MS = 1.0

_local = threading.local()
_handles = itertools.count(0x5500_0000_0000, 0x100)
_event_ids = itertools.count(1)


class Stream:
    """Stands in for `torch.cuda.Stream`; `cuda_stream` is a handle of its own, 0 by default."""

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        check_ordinal(kwargs.pop("device_index", device))
        self.cuda_stream: int = kwargs.pop("stream_id", None) or next(_handles)
        self.priority = priority
        self.device = CUDA
        self.device_index = 0
        self.device_type = 1
        self._outer: list[Stream] = []

    @property
    def stream_id(self) -> int:
        """The handle again."""
        return self.cuda_stream

    @property
    def native_handle(self) -> int:
        """The handle again."""
        return self.cuda_stream

    @property
    def _as_parameter_(self) -> Any:
        return ctypes.c_void_p(self.cuda_stream)

    @classmethod
    def priority_range(cls) -> tuple[int, int]:
        """The lowest and the highest priority."""
        return (0, -3)

    def query(self) -> bool:
        """Is all work done? Always."""
        return True

    def is_capturing(self) -> bool:
        """Is a graph captured on this stream?"""
        return getattr(_local, "captured", None) == self.cuda_stream

    def synchronize(self) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Order nothing."""

    def wait_event(self, event: Event) -> None:
        """Order nothing."""

    def record_event(self, event: Any = None) -> Any:
        """Record and return the event, a new one by default."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._outer.append(current_stream())
        set_stream(self)
        return self

    def __exit__(self, *_: object) -> None:
        set_stream(self._outer.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.cuda_stream == self.cuda_stream

    def __hash__(self) -> int:
        return hash(self.cuda_stream)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={CUDA} cuda_stream={self.cuda_stream:#x}>"


class ExternalStream(Stream):
    """Stands in for `torch.cuda.ExternalStream`."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, **kwargs)
        self.cuda_stream = stream_ptr


_default = Stream()
_default.cuda_stream = 0


class Event:
    """Stands in for `torch.cuda.Event`."""

    def __init__(
        self,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
        *,
        device: Any = None,
    ) -> None:
        check_ordinal(device)
        self._timing = enable_timing
        self._recorded = False
        self.device = CUDA
        self.event_id = self.cuda_event = next(_event_ids)

    def record(self, stream: Any = None) -> None:
        """Record the event: it has happened."""
        self._recorded = True

    def wait(self, stream: Any = None) -> None:
        """Order nothing."""

    def query(self) -> bool:
        """Has it happened? Always."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds to a later event: `ELAPSED_MS`.

        Raises:
            ValueError: an event without timing, or not recorded, as torch has it.
        """
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._recorded and end_event._recorded):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return ELAPSED_MS


class StreamContext:
    """Stands in for `torch.cuda.StreamContext`; a stream of None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__()


def stream(stream: Stream | None) -> StreamContext:
    """Stands in for `torch.cuda.stream`."""
    return StreamContext(stream)


def current_stream(device: Any = None) -> Stream:
    """This thread's current stream."""
    check_ordinal(device)
    current: Stream = getattr(_local, "stream", _default)
    return current


def default_stream(device: Any = None) -> Stream:
    """The null stream."""
    check_ordinal(device)
    return _default


def set_stream(stream: Stream | None) -> None:
    """Make it this thread's current stream."""
    if stream is not None:
        _local.stream = stream


def get_stream_from_external(data_ptr: int, device: Any = None) -> Stream:
    """A stream with that handle."""
    return ExternalStream(data_ptr, device)


def current_raw_stream(device: int = 0) -> int:
    """The handle of this thread's current stream."""
    return current_stream().cuda_stream


def capture_on(stream: Stream | None) -> None:
    """Say which stream this thread captures a graph on; None: on none any more."""
    _local.captured = None if stream is None else stream.cuda_stream


def is_current_stream_capturing() -> bool:
    """Does this thread capture a graph?"""
    return getattr(_local, "captured", None) is not None


def reset() -> None:
    """Back to the default stream, no capture, in this thread."""
    _local.__dict__.clear()


STAND_INS: dict[str, object] = {
    "Stream": Stream,
    "ExternalStream": ExternalStream,
    "Event": Event,
    "StreamContext": StreamContext,
    "stream": stream,
    "current_stream": current_stream,
    "default_stream": default_stream,
    "set_stream": set_stream,
    "get_stream_from_external": get_stream_from_external,
    "is_current_stream_capturing": is_current_stream_capturing,
}
