"""Reads what Triton asks of a loaded kernel from its cubin: registers and spills.

Only the `.nv.info` section of a 64-bit ELF file. Knows nothing of Triton.
"""

from __future__ import annotations

import struct

#: Attributes of `.nv.info`, as `cuobjdump --dump-elf` names them.
EIATTR_REGCOUNT = 0x2F
EIATTR_FRAME_SIZE = 0x11
#: An attribute whose payload has a size of its own (EIFMT_SVAL).
SIZED = 4


def registers_and_spills(cubin: bytes, kernel: str) -> tuple[int, int]:
    """Registers a thread and spilled words of `kernel`; (0, 0) where the file doesn't say.

    Triton counts spills as local memory bytes over four.
    """
    try:
        info, symbols = _sections(cubin)
    except (struct.error, IndexError, ValueError):
        return 0, 0
    found = {EIATTR_REGCOUNT: 0, EIATTR_FRAME_SIZE: 0}
    offset = 0
    while offset + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, offset)
        if form == SIZED and attribute in found and size == 8:
            symbol, value = struct.unpack_from("<II", info, offset + 4)
            if symbols.get(symbol) == kernel:
                found[attribute] = value
        offset += 4 + (size if form == SIZED else 0)
    return found[EIATTR_REGCOUNT], found[EIATTR_FRAME_SIZE] // 4


def _sections(cubin: bytes) -> tuple[bytes, dict[int, str]]:
    """The `.nv.info` section, and the symbol table's names by index."""
    if cubin[:4] != b"\x7fELF":
        raise ValueError("not an ELF file")
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_index = struct.unpack_from("<HHH", cubin, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, table + i * size) for i in range(count)]
    strings = headers[names_index][4]
    info, symbols = b"", {}
    for header in headers:
        name, kind, _, _, start, length, link = header[:7]
        if _text(cubin, strings + name) == ".nv.info":
            info = cubin[start : start + length]
        elif kind == 2:
            for index in range(length // 24):
                (offset,) = struct.unpack_from("<I", cubin, start + index * 24)
                symbols[index] = _text(cubin, headers[link][4] + offset)
    return info, symbols


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(b"\0", offset)].decode(errors="replace")
