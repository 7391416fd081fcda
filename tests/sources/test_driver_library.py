"""Building the driver hook, and finding the libcupti that it takes."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jitwatch.errors import DriverUnavailable
from jitwatch.sources import driver_library
from tests.fake_cuda import ROOT, run_python

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@needs_cc
def test_no_compiler_is_an_error_with_its_mend(tmp_path, monkeypatch):
    bare = tmp_path / "package" / "driver.c"  # without the object that an install leaves beside it
    bare.parent.mkdir()
    shutil.copy(driver_library.SOURCE, bare)
    monkeypatch.setattr(driver_library, "SOURCE", bare)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler --flag")
    with pytest.raises(DriverUnavailable) as caught:
        driver_library.build_library()
    assert caught.value.what == ("the driver hook can't be built: 'no-such-compiler' can't be run")
    assert caught.value.fix == "install gcc, or set CC to a C compiler that works"
    monkeypatch.setenv("CC", "cc")
    built = driver_library.build_library()
    assert list((tmp_path / "jitwatch").iterdir()) == [built]
    monkeypatch.setenv("CC", "no-such-compiler")
    assert driver_library.build_library() == built


@needs_cc
def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "driver.c"
    broken.write_text("int x = nonsense;\n")
    monkeypatch.setattr(driver_library, "SOURCE", broken)
    monkeypatch.setenv("CC", "cc")
    with pytest.raises(DriverUnavailable, match="nonsense"):
        driver_library.build_library()
    assert list((tmp_path / "jitwatch").iterdir()) == []


def test_tritons_own_cupti_is_never_taken(fake_path, tmp_path):
    theirs = tmp_path / "triton/lib/libcupti.so.12"
    theirs.parent.mkdir(parents=True)
    shutil.copy(fake_path, theirs)
    code = """
        import ctypes, sys
        from jitwatch.sources.driver_library import find_cupti
        for path in sys.argv[1:]:
            ctypes.CDLL(path)
        print(find_cupti())
        """
    both = run_python(code, theirs, fake_path, stdout=subprocess.PIPE)
    assert both.communicate()[0].decode().strip() == str(fake_path)
    alone = run_python(code, theirs, stdout=subprocess.PIPE)
    assert alone.communicate()[0].decode().strip() != str(theirs)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A copy of the hook's source where a wheel's object may lie beside it, with no compiler."""
    source = tmp_path / "package/driver.c"
    source.parent.mkdir()
    shutil.copy(driver_library.SOURCE, source)
    monkeypatch.setattr(driver_library, "SOURCE", source)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "no-such-compiler")
    return source.parent


def compile_object(package, digest: str) -> Path:
    prebuilt = package / "_driver.so"
    command = ["cc", "-std=gnu11", "-shared", "-fPIC", f'-DJW_SOURCE_SHA256="{digest}"']
    command += ["-o", str(prebuilt), str(package / "driver.c"), "-ldl"]
    subprocess.run(command, check=True)
    return prebuilt


@needs_cc
def test_an_object_of_this_source_is_used_whatever_its_time(package):
    source = package / "driver.c"
    prebuilt = compile_object(package, hashlib.sha256(source.read_bytes()).hexdigest())
    os.utime(prebuilt, ns=(0, 0))  # pip wrote it before the source
    assert driver_library.build_library() == prebuilt


@needs_cc
def test_an_object_of_another_source_is_compiled_anew(package, tmp_path, monkeypatch):
    source = package / "driver.c"
    prebuilt = compile_object(package, hashlib.sha256(source.read_bytes()).hexdigest())
    source.write_text(source.read_text() + "/* newer */\n")
    os.utime(source, ns=(0, 0))
    with pytest.raises(DriverUnavailable, match="'no-such-compiler' can't be run"):
        driver_library.build_library()
    monkeypatch.setenv("CC", "cc")
    built = driver_library.build_library()
    assert built != prebuilt
    assert built.parent == tmp_path / "cache/jitwatch"


def test_an_object_without_a_source_beside_it_is_used(package):
    (package / "driver.c").unlink()
    (package / "_driver.so").write_bytes(b"")
    assert driver_library.build_library() == package / "_driver.so"


@needs_cc
def test_what_the_package_build_makes_needs_no_compiler_at_run_time(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    checkout, installed = tmp_path / "checkout", tmp_path / "installed"
    checkout.mkdir()
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    (checkout / "README.md").write_text("")
    shutil.copytree(
        ROOT / "jitwatch",
        checkout / "jitwatch",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(installed)]
    subprocess.run(command, cwd=checkout, check=True, env={**os.environ, "CC": "cc"})
    os.utime(installed / "jitwatch/sources/_driver.so", ns=(0, 0))
    code = "from jitwatch.sources.driver_library import build_library; print(build_library())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=installed,
        env={**os.environ, "CC": "no-such-compiler", "PYTHONPATH": str(installed)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == installed / "jitwatch/sources/_driver.so"
