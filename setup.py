"""Builds jitwatch/sources/driver.c into the shared object that ctypes loads.

It is a plain C object without Python.h, so one binary serves every Python and the wheel is
tagged `py3-none-PLATFORM`. Everything else of the build is in pyproject.toml.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCE = Path("jitwatch", "sources", "driver.c")
OBJECT = SOURCE.with_name("_driver.so")
FLAGS = ["-O2", "-std=gnu11", "-shared", "-fPIC", "-pthread"]
LIBRARIES = ["-ldl"]


def compiler() -> list[str] | None:
    """The C compiler's command ($CC, else cc), or None where there is none."""
    command = shlex.split(os.environ.get("CC", "cc"))
    return command if command and shutil.which(command[0]) else None


def source_digest() -> str:
    """The define that tells the installed package which source its object was built from."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()
    return f'-DJW_SOURCE_SHA256="{digest}"'


class BuildWithDriver(build_py):
    """`build_py` that also compiles the driver hook (in place for an editable install)."""

    def driver_object(self) -> Path:
        return OBJECT if self.editable_mode else Path(self.build_lib, OBJECT)

    def run(self) -> None:
        super().run()
        target = self.driver_object()
        # A wheel must not ship an object left over from an earlier build.
        target.unlink(missing_ok=True)
        command = compiler()
        if command is None:
            self.announce_missing("there is no C compiler here")
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        # Built beside its place and renamed: a process that has the old object mapped keeps it.
        partial = target.with_suffix(".partial")
        result = subprocess.run(
            [*command, *FLAGS, source_digest(), "-o", str(partial), str(SOURCE), *LIBRARIES],
            capture_output=True,
            text=True,
        )
        if result.returncode == 0:
            partial.replace(target)
            return
        partial.unlink(missing_ok=True)
        self.announce_missing(f"{command[0]} failed:\n{result.stderr.strip()}")

    def announce_missing(self, why: str) -> None:
        print(
            f"jitwatch: the driver hook was not compiled: {why}\n"
            f"jitwatch: it is compiled with cc when jitwatch is first armed; "
            f"`jitwatch doctor` tells.",
            file=sys.stderr,
        )

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        target = self.driver_object()
        return [*outputs, str(target)] if target.exists() else outputs


class WithDriver(Distribution):
    """A distribution for this platform where the driver hook is compiled, else a pure one."""

    def has_ext_modules(self) -> bool:
        return compiler() is not None


class AnyPythonWheel(bdist_wheel):
    """A wheel whose tag names the platform but no Python: the hook knows none."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return ("py3", "none", platform)


setup(
    distclass=WithDriver,
    cmdclass={"build_py": BuildWithDriver, "bdist_wheel": AnyPythonWheel},
)
