"""`jitwatch doctor`: what it finds on a machine made for the test."""

from __future__ import annotations

import json

import pytest

from jitwatch import doctor
from jitwatch.cli import main
from jitwatch.errors import DriverUnavailable


def examined(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "has_gpu", lambda: False)
    status = main(["doctor", "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_without_a_gpu_the_self_test_is_skipped_and_the_rest_is_told(monkeypatch, capsys):
    status, found = examined(monkeypatch, capsys)
    assert status == 0
    assert list(found) == [
        *("versions", "driver", "cupti", "self_test", "recording", "ptrace", "triton_cache")
    ]
    assert found["self_test"]["outcome"] == "skipped"
    assert found["recording"]["library"].endswith(".so")
    assert (found["recording"]["library_reason"], found["recording"]["injection"]) == (None, None)


def test_tritons_cache(monkeypatch, capsys, tmp_path):
    (tmp_path / "cache/ab").mkdir(parents=True)
    (tmp_path / "cache/ab/k.cubin").write_bytes(b"x" * 1000)
    (tmp_path / "cache/k.json").write_bytes(b"x" * 24)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    cache = examined(monkeypatch, capsys)[1]["triton_cache"]
    assert (cache["path"], cache["size_bytes"], cache["exists"], cache["writable"]) == (
        *(str(tmp_path / "cache"), 1024, True, True),
    )
    assert cache["network"] is False


@pytest.mark.parametrize(
    ("kind", "network"), [("nfs4", True), ("fuse.sshfs", True), ("fuse.overlayfs", False)]
)
def test_a_cache_on_another_machine_is_told(monkeypatch, capsys, tmp_path, kind, network):
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nhost:/home {tmp_path} {kind} rw 0 0\n")
    monkeypatch.setattr(doctor, "MOUNTS", mounts)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    cache = examined(monkeypatch, capsys)[1]["triton_cache"]
    assert (cache["file_system"], cache["network"], cache["exists"]) == (kind, network, False)


def test_what_run_needs_and_lacks(monkeypatch, capsys, tmp_path):
    def fail():
        raise DriverUnavailable("the driver hook can't be built", "there is no C compiler")

    monkeypatch.setattr(doctor, "build_library", fail)
    monkeypatch.setattr(doctor, "SHARED_MEMORY", tmp_path / "nowhere")
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/their/own.so")
    recording = examined(monkeypatch, capsys)[1]["recording"]
    assert recording == {
        "library": None,
        "library_reason": "the driver hook can't be built: there is no C compiler",
        "shared_memory_free_bytes": 0,
        "shared_memory_note": "below 8,388,608 B a process: records go to the run directory's disk",
        "injection": "/their/own.so",
    }


@pytest.mark.parametrize(("scope", "root", "allowed"), [("0", 1, 1), ("1", 0, 0), ("2", 1, 1)])
def test_who_may_look_into_other_processes(monkeypatch, capsys, tmp_path, scope, root, allowed):
    (tmp_path / "scope").write_text(scope)
    monkeypatch.setattr(doctor, "YAMA", tmp_path / "scope")
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 0 if root else 1000)
    ptrace = examined(monkeypatch, capsys)[1]["ptrace"]
    assert ptrace["allowed"] is bool(allowed)
    assert (ptrace["fix"] is None) is bool(allowed)


def test_the_table_has_a_line_for_each_finding(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "has_gpu", lambda: False)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["triton_cache", "size_bytes"] for line in lines)
    assert all(len(line.split()) >= 3 for line in lines)
