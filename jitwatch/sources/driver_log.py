"""The driver hook's record and stack files, read back.

Owns their format (with driver.c, which writes them). Knows nothing of CUPTI or of the process
that wrote them, which may be running or killed.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from jitwatch.errors import RunFileError

RecordType = Literal["api_call", "module_loaded", "module_unload", "launch"]

MAGIC = b"JWDRIVER"
FORMAT_VERSION = 1
FILE_BYTES = 8 << 20
HEADER_BYTES = 4096
RECORD_BYTES = 256
CAPACITY = (FILE_BYTES - HEADER_BYTES) // RECORD_BYTES
# magic, version, pid, capacity, record size, next, dropped, loads, launches, start, missing, name
_HEADER = struct.Struct("<8sIIIIQQQQq8Q64s")
# start, end, stack, step, nbytes, hash, type, code, result, tid, parent, flags, kernels, -, name
_RECORD = struct.Struct("<qqqqQQIIiIIIII176s")
_TYPES: dict[int, RecordType] = {
    1: "api_call",
    2: "module_loaded",
    3: "module_unload",
    4: "launch",
}
_EXPLAINED, _STACK_REQUESTED, _NAMES_CUT = 1, 2, 4
NO_STEP = -(2**63)
MISSING_STACK_REASONS = (
    "no stack file",
    "another stack was being written",
    "signal blocked on the thread",
    "signal handler replaced",
    "no Python stack on the thread",
)

#: The kernel of the module that the hook's self-test loads: ours, not the program's.
SELF_TEST_KERNEL = "jitwatch_self_test"


@dataclass(frozen=True, slots=True)
class DriverRecord:
    """One driver call or module. `slot` and `parent` (the record around it) count from 0.

    `end_ns` is None while it is open; a module is an instant in its parent. `kernels` are
    the first names, the last one cut where `names_cut`; a launch has its kernel there.
    `stack_ns` is what our stack dumps cost within it. `result` is the CUresult.
    """

    slot: int
    type: RecordType
    api: str
    start_ns: int
    end_ns: int | None
    stack_ns: int
    result: int
    tid: int
    step: int | None
    parent: int | None
    nbytes: int
    kernels: tuple[str, ...]
    num_kernels: int
    image_hash: int
    explained: bool
    stack_requested: bool
    names_cut: bool


@dataclass(frozen=True, slots=True)
class DriverLog:
    """A record file. `loads` and `launches` count dropped ones too; `dropped` includes records
    that a truncated file lost, `torn` slots were begun and never published."""

    pid: int
    records: tuple[DriverRecord, ...]
    dropped: int
    missing_stacks: dict[str, int]
    loads: int
    launches: int
    start_ns: int
    torn: int
    backend: str


def read_records(path: Path) -> DriverLog:
    """Read a record file, also that of a running or killed process, as far as it goes.

    Raises:
        RunFileError: it is no record file, or a newer jitwatch wrote it.
    """
    data = path.read_bytes()
    magic, version = data[:8].ljust(8, b"\0"), int.from_bytes(data[8:12], "little")
    if magic != MAGIC and magic.strip(b"\0"):
        why = f"it starts with {magic!r}, not {MAGIC!r}"
        raise RunFileError(f"{path} is no driver record file", why, "give a run directory's own")
    if version > FORMAT_VERSION:
        raise RunFileError(
            f"{path} was written by a newer jitwatch",
            f"its format is {version}, this version reads up to {FORMAT_VERSION}",
            "read it with the jitwatch that wrote it",
        )
    header = _HEADER.unpack(data[: _HEADER.size].ljust(_HEADER.size, b"\0"))
    _, _, pid, capacity, _, claimed, dropped, loads, launches, start_ns = header[:10]
    num_slots = min(claimed, capacity)
    body = data[HEADER_BYTES : HEADER_BYTES + num_slots * RECORD_BYTES]
    whole = len(body) // RECORD_BYTES
    decoded = [
        _decode(slot, fields)
        for slot, fields in enumerate(_RECORD.iter_unpack(body[: whole * RECORD_BYTES]))
    ]
    records = tuple(record for record in decoded if record is not None)
    missing = zip(MISSING_STACK_REASONS, header[10:18], strict=False)
    return DriverLog(
        pid=pid,
        records=records,
        dropped=dropped + num_slots - whole,
        missing_stacks={reason: count for reason, count in missing if count},
        loads=loads,
        launches=launches,
        start_ns=start_ns,
        torn=whole - len(records),
        backend=_decode_name(header[18]),
    )


def _decode(slot: int, fields: tuple[Any, ...]) -> DriverRecord | None:
    start_ns, end_ns, stack_ns, step, nbytes, image_hash, number, _, result, tid = fields[:10]
    parent, flags, num_kernels, _, raw_name = fields[10:]
    kind, name = _TYPES.get(number), _decode_name(raw_name)
    if kind is None:
        return None
    is_call = kind == "api_call"
    return DriverRecord(
        slot=slot,
        type=kind,
        api=name if is_call else "",
        start_ns=start_ns,
        end_ns=end_ns if end_ns >= start_ns and end_ns else None,
        stack_ns=stack_ns,
        result=result,
        tid=tid,
        step=None if step == NO_STEP else step,
        parent=parent - 1 if 0 < parent <= slot else None,
        nbytes=nbytes,
        kernels=() if is_call or not name else tuple(name.split(",")),
        num_kernels=num_kernels,
        image_hash=image_hash,
        explained=bool(flags & _EXPLAINED),
        stack_requested=bool(flags & _STACK_REQUESTED),
        names_cut=bool(flags & _NAMES_CUT),
    )


def _decode_name(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode("utf-8", "replace")


_SLOT_LINE = re.compile(r"#(\d+)")
_FRAME_LINE = re.compile(r'  File "(?P<file>.*)", line (?P<line>\S+) in (?P<function>.*)')


def read_stacks(path: Path) -> dict[int, tuple[str, ...]]:
    """The stacks of a .stacks file by slot, as "file:line function", innermost first.

    A file that isn't there has none; a slot whose dump wrote nothing has an empty one.
    """
    if not path.exists():
        return {}
    stacks: dict[int, list[str]] = {}
    frames: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if slot := _SLOT_LINE.fullmatch(line):
            frames = stacks[int(slot[1])] = []
        elif frame := _FRAME_LINE.fullmatch(line):
            frames.append(f"{frame['file']}:{frame['line']} {frame['function']}")
    return {slot: tuple(frames) for slot, frames in stacks.items()}


def used_bytes(fd: int) -> int:
    """The size of an open record file up to its last used slot; any other file's whole size."""
    num_bytes = os.fstat(fd).st_size
    header = os.pread(fd, _HEADER.size, 0)
    if header.startswith(MAGIC) and len(header) == _HEADER.size:
        claimed: int = _HEADER.unpack(header)[5]
        return min(HEADER_BYTES + claimed * RECORD_BYTES, num_bytes)
    return num_bytes


def num_slots(path: Path) -> int:
    """How many record slots of a file are used so far, without reading them."""
    with path.open("rb") as file:
        return max(0, used_bytes(file.fileno()) - HEADER_BYTES) // RECORD_BYTES
