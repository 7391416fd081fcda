"""The driver hook in processes that are killed, forked, injected into, or simply end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import textwrap
from pathlib import Path

from jitwatch.sources import driver_log
from jitwatch.sources.driver import DriverHook, collect_killed
from jitwatch.sources.driver_log import read_records
from tests.fake_cuda import ONE_KERNEL, log_of, only, run_python


def test_a_killed_process_leaves_its_load_open(fake_path, tmp_path):
    read_end, write_end = os.pipe()
    process = run_python(
        """
        import ctypes, sys
        from pathlib import Path
        from jitwatch.sources.driver import DriverHook
        fake, fd, run = sys.argv[1:]
        hook = DriverHook.arm(Path(run), cupti=Path(fake))
        print(hook.record_path, flush=True)
        hook.set_step(7)
        library = ctypes.CDLL(fake)
        library.fake_set_hang(int(fd))
        library.fake_cuModuleLoadData(b"x", 1)
        """,
        fake_path,
        write_end,
        tmp_path,
        pass_fds=[write_end],
        stdout=subprocess.PIPE,
    )
    os.close(write_end)
    assert os.read(read_end, 1) == b"x"  # it hangs in the load now
    os.close(read_end)
    path = tmp_path / f"driver-{process.pid}.bin"
    assert only(read_records(path).records, "api_call").end_ns is None  # readable while it runs
    process.send_signal(signal.SIGKILL)
    record_path = Path(process.communicate()[0].decode().strip())
    assert collect_killed(tmp_path) == [path, path.with_suffix(".stacks")]
    assert not record_path.exists()
    assert not path.is_symlink()
    (call,) = read_records(path).records
    assert (call.api, call.end_ns, call.step) == ("cuModuleLoadData", None, 7)
    assert path.stat().st_size == driver_log.HEADER_BYTES + driver_log.RECORD_BYTES


def test_a_forked_child_writes_to_its_own_file_only(hook, fake, fake_path, tmp_path):
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            fake.fake_load_many(5, ONE_KERNEL, len(ONE_KERNEL))  # not armed: recorded nowhere
            hook.collect()  # the parent's: must not be touched
            hook.disarm()
            own = DriverHook.arm(tmp_path, cupti=fake_path)
            fake.fake_load_many(3, ONE_KERNEL, len(ONE_KERNEL))
            own.disarm()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert hook.record_path.exists()
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    assert log_of(hook).loads == 2
    childs = read_records(tmp_path / f"driver-{child}.bin")
    assert (childs.loads, childs.pid) == (3, child)
    assert {r.tid for r in childs.records} == {child}


def test_injection_arms_and_a_later_arm_goes_on_with_its_file(fake_path, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    process = run_python(
        """
        import ctypes, os, sys
        from pathlib import Path
        from jitwatch.sources.driver import DriverHook
        from jitwatch.sources.driver_library import build_library
        from jitwatch.sources.driver_log import read_records
        fake, run = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2]) / "run/../run"
        library = ctypes.CDLL(str(build_library()))
        assert library.InitializeInjection() == 1
        assert library.InitializeInjection() == 1
        fake.fake_cuModuleLoadData(b"x", 1)
        hook = DriverHook.arm(run)
        assert DriverHook.arm(run) is hook
        assert hook.path == Path(sys.argv[1]), hook.path
        assert hook.record_path.parent == Path("/dev/shm")
        assert hook.collect() == run / f"driver-{os.getpid()}.bin"
        hook.set_ready()
        fake.fake_cuModuleLoadData(b"x", 1)
        log = read_records(hook.collect())
        assert (log.loads, log.missing_stacks) == (2, {}), log
        """,
        fake_path,
        tmp_path,
        env={**os.environ, "JITWATCH_RECORD_DIR": str(run)},
    )
    assert process.wait() == 0


def test_injection_into_a_process_whose_cupti_is_taken_changes_nothing(fake_path, tmp_path):
    process = run_python(
        """
        import ctypes, sys
        from jitwatch.sources.driver_library import build_library
        fake = ctypes.CDLL(sys.argv[1])
        fake.fake_set_taken(1)
        assert ctypes.CDLL(str(build_library())).InitializeInjection() == 1
        fake.fake_cuModuleLoadData(b"x", 1)
        """,
        fake_path,
        env={**os.environ, "JITWATCH_RECORD_DIR": str(tmp_path)},
    )
    assert process.wait() == 0
    [note] = tmp_path.iterdir()
    assert note.name == f"driver-{process.pid}.failed"
    assert "this process already has a subscriber" in note.read_text()


def test_injection_never_subscribes_through_tritons_cupti(fake_path, tmp_path):
    theirs = tmp_path / "triton/libcupti.so.12"
    theirs.parent.mkdir()
    shutil.copy(fake_path, theirs)
    process = run_python(
        """
        import ctypes, sys
        from jitwatch.sources.driver_library import build_library
        theirs = ctypes.CDLL(sys.argv[1])
        assert ctypes.CDLL(str(build_library())).InitializeInjection() == 1
        assert not theirs.fake_is_enabled(3, 6)
        """,
        theirs,
        env={**os.environ, "JITWATCH_RECORD_DIR": str(tmp_path)},
    )
    assert process.wait() == 0


def test_a_program_that_ends_without_disarming_leaves_nothing_in_shared_memory(fake_path, tmp_path):
    process = run_python(
        """
        import ctypes, os, sys
        from pathlib import Path
        from jitwatch.sources.driver import DriverHook
        hook = DriverHook.arm(Path(sys.argv[2]), cupti=Path(sys.argv[1]))
        child = os.fork()
        if child == 0:
            sys.exit(0)  # runs what is registered for the exit: not the parent's files
        assert os.waitpid(child, 0)[1] == 0
        assert hook.record_path.exists()
        print(hook.record_path, hook.stack_path)
        ctypes.CDLL(sys.argv[1]).fake_load_many(3, b"x", 1)
        """,
        fake_path,
        tmp_path,
        stdout=subprocess.PIPE,
    )
    shared = process.communicate()[0].decode().split()
    assert process.returncode == 0
    assert len(shared) == 2
    assert not any(Path(path).exists() for path in shared)
    path = tmp_path / f"driver-{process.pid}.bin"
    assert not path.is_symlink()
    assert read_records(path).loads == 3
    assert collect_killed(tmp_path) == []


def test_an_exit_whose_run_directory_is_gone_says_so_and_cleans_up(fake_path, tmp_path):
    process = run_python(
        """
        import shutil, sys
        from pathlib import Path
        from jitwatch.sources.driver import DriverHook
        hook = DriverHook.arm(Path(sys.argv[2]), cupti=Path(sys.argv[1]))
        print(hook.record_path, hook.stack_path)
        shutil.rmtree(sys.argv[2])
        """,
        fake_path,
        tmp_path / "run",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    printed, errors = process.communicate()
    assert process.returncode == 0
    assert len(printed.split()) == 2
    assert not any(Path(path.decode()).exists() for path in printed.split())
    assert errors.startswith(b"jitwatch: the driver hook's records are lost: ")
    assert len(errors.splitlines()) == 1


def test_a_program_after_an_exec_has_a_file_of_its_own(fake_path, tmp_path):
    after = """
        import ctypes, os, sys
        from pathlib import Path
        from jitwatch.sources.driver import DriverHook
        fake = ctypes.CDLL(sys.argv[1])
        hook = DriverHook.arm(Path(sys.argv[2]))
        fake.fake_load_many(2, b"x", 1)
        """
    process = run_python(
        """
        import ctypes, os, sys
        from jitwatch.sources.driver_library import build_library
        fake = ctypes.CDLL(sys.argv[1])
        assert ctypes.CDLL(str(build_library())).InitializeInjection() == 1
        fake.fake_cuModuleLoadData(b"x", 1)
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[3], *sys.argv[1:3]])
        """,
        fake_path,
        tmp_path,
        textwrap.dedent(after),
        env={**os.environ, "JITWATCH_RECORD_DIR": str(tmp_path)},
    )
    assert process.wait() == 0
    first, second = sorted(tmp_path.glob("driver-*.bin"), key=lambda path: len(path.name))
    assert (first.name, read_records(first).loads) == (f"driver-{process.pid}.bin", 1)
    assert second.name.startswith(f"driver-{process.pid}-")
    assert read_records(second).loads == 2
    assert second.with_suffix(".stacks").exists()
