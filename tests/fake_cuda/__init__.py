"""A CUPTI and a driver that aren't there (fake_cupti.c), and what the tests do with them."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

from jitwatch.sources.driver import DriverHook
from jitwatch.sources.driver_log import DriverLog, DriverRecord, read_records, read_stacks

ROOT = Path(__file__).parents[2]


def build_fake(path: Path) -> Path:
    """Compile the fake libcupti to `path`."""
    source = Path(__file__).with_name("fake_cupti.c")
    command = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", str(path), str(source)]
    subprocess.run(command, check=True)
    return path


def open_fake(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    image = [ctypes.c_char_p, ctypes.c_size_t]
    for name in ("cuModuleLoadData", "cuModuleLoadData_v2", "cuModuleUnload"):
        getattr(library, f"fake_{name}").argtypes = image
    library.fake_cuKernelGetFunction.argtypes = image
    library.fake_foreign_load.argtypes = image
    library.fake_load_many.argtypes = [ctypes.c_int, *image]
    library.fake_load_together.argtypes = [ctypes.c_int, *image]
    library.fake_nested_load.argtypes = [ctypes.c_int, *image]
    library.fake_launch.argtypes = [ctypes.c_char_p, *image]
    library.fake_launch_many.argtypes = [ctypes.c_int, ctypes.c_char_p]
    library.fake_guarded_load.argtypes = [*image, ctypes.c_int]
    return library


def log_of(hook: DriverHook) -> DriverLog:
    return read_records(hook.collect())


def stacks_of(hook: DriverHook) -> dict[int, tuple[str, ...]]:
    return read_stacks(hook.collect().with_suffix(".stacks"))


def only(records: tuple[DriverRecord, ...], kind: str) -> DriverRecord:
    (record,) = [r for r in records if r.type == kind]
    return record


def run_python(code: str, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, **options)


def cubin(*kernels: str, sections: tuple[str, ...] = (), names_last: bool = False) -> bytes:
    """A minimal cubin: an ELF64 with a `.text.<kernel>` section for each kernel.

    `names_last` puts the names at its very end, the last one without its NUL.
    """
    names = ["", ".shstrtab", *sections, *(f".text.{kernel}" for kernel in kernels)]
    strings = b"".join(name.encode() + b"\0" for name in names)
    table_at, names_at = 64 + len(strings), 64
    if names_last:
        strings = strings[:-1]
        table_at, names_at = 64, 64 + 64 * len(names)
    elf = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    elf += struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, table_at, 0, 64, 0, 0, 64, len(names), 1)
    table, at = b"", 0
    for index, name in enumerate(names):
        offset, size = (names_at, len(strings)) if index == 1 else (0, 0)
        table += struct.pack("<IIQQQQIIQQ", at, 1, 0, 0, offset, size, 0, 0, 0, 0)
        at += len(name) + 1
    return elf + (table + strings if names_last else strings + table)


ONE_KERNEL = cubin("add_kernel", sections=(".nv.info", ".nv.info.add_kernel"))
