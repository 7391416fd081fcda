"""The driver hook against a fake libcupti and a fake driver (tests/fake_cuda/fake_cupti.c)."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import types
from dataclasses import dataclass
from pathlib import Path

import pytest

from jitwatch.errors import DriverUnavailable, RunFileError
from jitwatch.sources import driver
from jitwatch.sources.driver import (
    DriverHook,
    DriverLog,
    DriverRecord,
    collect_killed,
    owner_of,
    read_records,
    read_stacks,
)

ROOT = Path(__file__).parents[2]
FAKE_SOURCE = ROOT / "tests/fake_cuda/fake_cupti.c"
CAPACITY = (driver.FILE_BYTES - driver.HEADER_BYTES) // driver.RECORD_BYTES

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="session")
def fake_path(tmp_path_factory):
    """A fake CUPTI under the real one's name, so that the search for a mapped one finds it."""
    path = tmp_path_factory.mktemp("fake") / "libcupti.so.13"
    command = ["cc", "-O1", "-shared", "-fPIC", "-pthread", "-o", str(path), str(FAKE_SOURCE)]
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
    library.fake_guarded_load.argtypes = [*image, ctypes.c_int]
    return library


@pytest.fixture
def fake(fake_path):
    library = open_fake(fake_path)
    yield library
    library.fake_set_taken(0)
    library.fake_set_result(0)
    library.fake_set_names_known(1)


@pytest.fixture
def hook(fake, fake_path, tmp_path):
    armed = DriverHook.arm(tmp_path, cupti=fake_path)
    yield armed
    armed.set_ready(False)
    armed.set_explained(False)
    armed.set_step(None)
    armed.disarm()


def log_of(hook: DriverHook) -> DriverLog:
    return read_records(hook.collect())


def stacks_of(hook: DriverHook) -> dict[int, tuple[str, ...]]:
    return read_stacks(hook.collect().with_suffix(".stacks"))


def only(records: tuple[DriverRecord, ...], kind: str) -> DriverRecord:
    (record,) = [r for r in records if r.type == kind]
    return record


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


# ---- what is recorded


def test_a_load_is_counted_once_and_lies_in_its_call(hook, fake):
    hook.set_step(41)
    assert fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL)) == 0
    hook.set_step(None)
    assert fake.fake_cuModuleUnload(ONE_KERNEL, len(ONE_KERNEL)) == 0
    log = log_of(hook)
    call, load, unload_call, unload = log.records
    assert (log.pid, log.loads, log.dropped, log.torn) == (os.getpid(), 1, 0, 0)
    assert (log.backend, hook.version) == ("cupti 130001", "130001")
    assert [r.type for r in log.records] == [
        "api_call",
        "module_loaded",
        "api_call",
        "module_unload",
    ]
    assert (call.api, call.parent, call.result, call.step) == ("cuModuleLoadData", None, 0, 41)
    assert (load.parent, load.step, load.nbytes) == (call.slot, 41, len(ONE_KERNEL))
    assert (load.kernels, load.num_kernels) == (("add_kernel",), 1)
    assert (unload_call.step, unload.step, unload.parent) == (None, None, unload_call.slot)
    assert load.image_hash == unload.image_hash != 0
    assert call.end_ns is not None
    assert log.start_ns <= call.start_ns <= load.start_ns <= call.end_ns
    assert call.tid == load.tid == threading.get_native_id()
    counts = hook.counts()
    assert (counts.loads, counts.records, counts.drops, counts.launches) == (1, 4, 0, 0)


def test_a_failed_load_keeps_the_drivers_result_and_counts_no_module(hook, fake):
    fake.fake_set_result(209)
    assert fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL)) == 209
    log = log_of(hook)
    assert (log.loads, only(log.records, "api_call").result) == (0, 209)


def test_versions_of_a_call_are_found_by_name_and_strangers_are_not(hook, fake):
    fake.fake_cuModuleLoadData_v2(ONE_KERNEL, len(ONE_KERNEL))
    assert only(log_of(hook).records, "api_call").api == "cuModuleLoadData_v2"
    assert not fake.fake_is_enabled(1, 901)  # cuModuleLoadDataSomethingElse
    assert not fake.fake_is_enabled(1, 362)  # cuLinkCreate
    assert not fake.fake_is_enabled(3, 8)  # MODULE_PROFILED fires on every launch


def test_numbers_stand_in_where_cupti_names_nothing(fake, fake_path, tmp_path):
    fake.fake_set_names_known(0)
    hook = DriverHook.arm(tmp_path, cupti=fake_path)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    hook.disarm()
    records = read_records(tmp_path / f"driver-{os.getpid()}.bin").records
    assert [r.api for r in records] == ["cuModuleLoadData", ""]


def test_lookups_give_their_slot_back_unless_they_load(hook, fake):
    for _ in range(100):
        fake.fake_cuKernelGetFunction(None, 0)
    assert hook.counts().records == 0
    fake.fake_cuKernelGetFunction(ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuKernelGetFunction(None, 0)
    lookup, load = log_of(hook).records
    assert (lookup.api, load.parent) == ("cuKernelGetFunction", lookup.slot)
    assert lookup.end_ns is not None


def test_nesting_deeper_than_we_keep_loses_no_load(hook, fake):
    fake.fake_nested_load(20, ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    log = log_of(hook)
    assert (log.loads, len(log.records)) == (2, 24)
    assert all(r.end_ns is not None for r in log.records)
    assert [r.parent for r in log.records[:3]] == [None, 0, 1]
    assert log.records[22].parent is None  # the nesting was left completely


def test_launches_are_recorded_only_when_asked_for(hook, fake):
    fake.fake_launch(b"before", None, 0)
    hook.launches(True)
    fake.fake_launch(b"add_kernel", ONE_KERNEL, len(ONE_KERNEL))
    hook.launches(False)
    fake.fake_launch(b"after", None, 0)
    launch, load = log_of(hook).records
    assert (launch.type, launch.kernels, launch.api) == ("launch", ("add_kernel",), "")
    assert load.parent == launch.slot
    assert hook.counts().launches == 1


def test_a_full_file_counts_drops_and_never_fails(hook, fake):
    loads = CAPACITY // 2 + 10
    fake.fake_load_many(loads, ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuKernelGetFunction(None, 0)  # nothing is lost: no drop
    fake.fake_cuKernelGetFunction(ONE_KERNEL, len(ONE_KERNEL))  # the lookup and its load
    log = log_of(hook)
    assert log.loads == loads + 1
    assert len(log.records) == CAPACITY
    assert log.dropped == 2 * loads - CAPACITY + 2


def test_the_last_slot_keeps_a_lookup_whose_load_was_dropped(hook, fake):
    fake.fake_cuLibraryLoadData()
    fake.fake_load_many(CAPACITY // 2 - 1, ONE_KERNEL, len(ONE_KERNEL))
    fake.fake_cuKernelGetFunction(ONE_KERNEL, len(ONE_KERNEL))
    log = log_of(hook)
    assert (len(log.records), log.dropped) == (CAPACITY, 1)
    assert (log.records[-1].api, log.records[-1].end_ns is None) == ("cuKernelGetFunction", False)


def test_sixteen_threads_lose_nothing(hook, fake):
    fake.fake_set_barrier(16)

    def work(step: int) -> None:
        hook.set_step(step)
        fake.fake_load_together(500, b"x", 1)

    threads = [threading.Thread(target=work, args=(step,)) for step in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = log_of(hook)
    by_slot = {r.slot: r for r in log.records}
    loads = [r for r in log.records if r.type == "module_loaded"]
    assert (log.loads, log.dropped, log.torn, len(log.records)) == (8000, 0, 0, 16000)
    for load in loads:
        assert load.parent is not None
        call = by_slot[load.parent]
        assert (call.tid, call.step) == (load.tid, load.step)
    assert sorted({r.step for r in loads}) == list(range(16))
    assert len({load.parent for load in loads}) == 8000
    assert all(r.end_ns is not None for r in log.records)


def test_threads_that_load_and_look_up_share_the_file(hook, fake):
    def look_up() -> None:
        for _ in range(2000):
            fake.fake_cuKernelGetFunction(None, 0)

    workers = [threading.Thread(target=look_up) for _ in range(4)]
    for _ in range(4):
        args = (500, ONE_KERNEL, len(ONE_KERNEL))
        workers.append(threading.Thread(target=fake.fake_load_many, args=args))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    log = log_of(hook)
    by_slot = {r.slot: r for r in log.records}
    loads = [r for r in log.records if r.type == "module_loaded"]
    assert (len(loads), log.dropped, log.torn) == (2000, 0, 0)
    assert {by_slot[r.parent].api for r in loads if r.parent is not None} == {"cuModuleLoadData"}


# ---- what a module holds


def load_record(hook: DriverHook, fake: ctypes.CDLL, image: bytes) -> DriverRecord:
    fake.fake_guarded_load(image, len(image), 1)
    return [r for r in log_of(hook).records if r.type == "module_loaded"][-1]


def test_kernel_names_come_from_the_text_sections(hook, fake):
    record = load_record(hook, fake, cubin("a", "b_kernel", sections=(".text", ".nv.info.a")))
    assert (record.kernels, record.num_kernels, record.names_cut) == (("a", "b_kernel"), 2, False)


def test_a_name_that_ends_with_the_image_is_read_no_further(hook, fake):
    record = load_record(hook, fake, cubin("a", "last_kernel", names_last=True))
    assert record.kernels == ("a", "last_kernel")


def test_names_that_do_not_fit_are_cut_and_counted(hook, fake):
    long = "k" * 100
    record = load_record(hook, fake, cubin(long, long + "2", "short"))
    assert (record.kernels, record.num_kernels, record.names_cut) == ((long,), 3, True)
    record = load_record(hook, fake, cubin("m" * 300))
    assert (record.kernels, record.num_kernels, record.names_cut) == (("m" * 175,), 1, True)


def test_a_real_cubin_names_its_kernel(hook, fake, tmp_path, monkeypatch):
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "real_kernel.py"
    source.write_text(
        "import triton\nimport triton.language as tl\n\n"
        "@triton.jit\ndef double_kernel(x, n, B: tl.constexpr):\n"
        "    o = tl.arange(0, B)\n"
        "    tl.store(x + o, 2 * tl.load(x + o, mask=o < n), mask=o < n)\n"
    )
    spec = importlib.util.spec_from_file_location("real_kernel", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    signature = {"x": "*fp32", "n": "i32", "B": "constexpr"}
    kernel = ASTSource(fn=module.double_kernel, signature=signature, constexprs={(2,): 64})
    image = triton.compile(kernel, target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    record = load_record(hook, fake, image)
    assert (record.kernels, record.num_kernels) == (("double_kernel",), 1)
    assert record.nbytes == len(image)


@pytest.mark.parametrize(
    "image",
    [
        b"",
        b"\x7f",
        b"\x7fELF\x02\x01",
        b"\x50\xed\x55\xba" + bytes(60),  # a fatbin
        b"\xb1\x43\x62\x46" + bytes(20),  # its wrapper
        b".version 7.0\n.target sm_90\n",
        bytes(range(256)) * 20,
        cubin("a")[:64],
        cubin("a")[:-1],
    ],
    ids=["empty", "byte", "magic", "fatbin", "wrapper", "ptx", "noise", "header", "short"],
)
def test_what_is_no_cubin_has_no_kernels(hook, fake, image):
    record = load_record(hook, fake, image)
    assert (record.num_kernels, record.kernels, record.nbytes) == (0, (), len(image))


def test_damaged_cubins_are_never_read_beyond_their_end(hook, fake):
    """Each copy ends or starts at an unreadable page: a read outside kills the process."""
    random_bytes = random.Random(1)
    whole = cubin("a_kernel", "b_kernel", sections=(".nv.info",))
    extreme = (0, 1, 63, 0x7FFF, 0xFFFF, 2**31, 2**32 - 1, 2**63, 2**64 - 64, 2**64 - 1)
    images = [whole[:size] for size in range(len(whole) + 1)]
    for _ in range(4000):
        image = bytearray(whole)
        for _ in range(random_bytes.randint(1, 4)):
            at = random_bytes.randrange(len(image) - 8)
            width, value = random_bytes.choice((1, 2, 4, 8)), random_bytes.choice(extreme)
            image[at : at + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
        images.append(bytes(image))
    for image in images:
        assert fake.fake_guarded_load(image, len(image), len(image) % 2) == 0
        assert fake.fake_guarded_load(image, len(image), (len(image) + 1) % 2) == 0
    assert hook.counts().loads == 2 * len(images)


def test_the_hash_tells_images_apart_and_samples_big_ones(hook, fake):
    small = bytes(1000)
    changed = small[:-1] + b"\1"
    big = bytes(1 << 20)
    longer = bytes((1 << 20) + 8)
    last = big[:-1] + b"\1"
    between = bytearray(big)
    between[80_000] = 1  # in none of the 16 sampled blocks
    images = [small, small, changed, big, longer, last, bytes(between)]
    hashes = [load_record(hook, fake, image).image_hash for image in images]
    assert hashes[0] == hashes[1]
    assert len({*hashes[1:6]}) == 5
    assert hashes[6] == hashes[3]


# ---- processes


def run_python(code: str, *arguments: object, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, **options)


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
    assert path.stat().st_size == driver.HEADER_BYTES + driver.RECORD_BYTES


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
    process = run_python(
        """
        import ctypes, os, sys
        from pathlib import Path
        from jitwatch.sources.driver import DriverHook, build_library, read_records
        fake, run = ctypes.CDLL(sys.argv[1]), Path(sys.argv[2])
        library = ctypes.CDLL(str(build_library()))
        assert library.InitializeInjection() == 1
        assert library.InitializeInjection() == 1
        fake.fake_cuModuleLoadData(b"x", 1)
        hook = DriverHook.arm(run)
        assert DriverHook.arm(run) is hook
        assert hook.path == Path(sys.argv[1]), hook.path
        assert hook.record_path == run / f"driver-{os.getpid()}.bin"
        hook.set_ready()
        fake.fake_cuModuleLoadData(b"x", 1)
        log = read_records(hook.collect())
        assert (log.loads, log.missing_stacks) == (2, {}), log
        """,
        fake_path,
        tmp_path,
        env={**os.environ, "JITWATCH_RECORD_DIR": str(tmp_path)},
    )
    assert process.wait() == 0


def test_injection_into_a_process_whose_cupti_is_taken_changes_nothing(fake_path, tmp_path):
    process = run_python(
        """
        import ctypes, sys
        from jitwatch.sources.driver import build_library
        fake = ctypes.CDLL(sys.argv[1])
        fake.fake_set_taken(1)
        assert ctypes.CDLL(str(build_library())).InitializeInjection() == 1
        fake.fake_cuModuleLoadData(b"x", 1)
        """,
        fake_path,
        env={**os.environ, "JITWATCH_RECORD_DIR": str(tmp_path)},
    )
    assert process.wait() == 0
    assert list(tmp_path.iterdir()) == []


def test_injection_never_subscribes_through_tritons_cupti(fake_path, tmp_path):
    theirs = tmp_path / "triton/libcupti.so.12"
    theirs.parent.mkdir()
    shutil.copy(fake_path, theirs)
    process = run_python(
        """
        import ctypes, sys
        from jitwatch.sources.driver import build_library
        theirs = ctypes.CDLL(sys.argv[1])
        assert ctypes.CDLL(str(build_library())).InitializeInjection() == 1
        assert not theirs.fake_is_enabled(3, 6)
        """,
        theirs,
        env={**os.environ, "JITWATCH_RECORD_DIR": str(tmp_path)},
    )
    assert process.wait() == 0


def test_tritons_own_cupti_is_never_taken(fake_path, tmp_path):
    theirs = tmp_path / "triton/lib/libcupti.so.12"
    theirs.parent.mkdir(parents=True)
    shutil.copy(fake_path, theirs)
    code = """
        import ctypes, sys
        from jitwatch.sources.driver import find_cupti
        for path in sys.argv[1:]:
            ctypes.CDLL(path)
        print(find_cupti())
        """
    both = run_python(code, theirs, fake_path, stdout=subprocess.PIPE)
    assert both.communicate()[0].decode().strip() == str(fake_path)
    alone = run_python(code, theirs, stdout=subprocess.PIPE)
    assert alone.communicate()[0].decode().strip() != str(theirs)


# ---- arming


def test_a_taken_subscription_says_so_and_leaves_no_file(fake, fake_path, tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_INJECTION64_PATH", raising=False)
    monkeypatch.delenv("NSYS_PROFILING_SESSION_ID", raising=False)
    monkeypatch.delitem(sys.modules, "triton.profiler", raising=False)
    monkeypatch.setattr(driver, "SHARED_MEMORY", tmp_path / "shm")
    (tmp_path / "shm").mkdir()
    fake.fake_set_taken(1)
    with pytest.raises(DriverUnavailable) as caught:
        DriverHook.arm(tmp_path / "run", cupti=fake_path)
    assert str(caught.value) == (
        "the driver hook can't be armed: another tool holds CUPTI's only subscription\n"
        "  why: cuptiSubscribe returned 39 (CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED): this "
        "process already has a subscriber; torch.profiler keeps it from its first use to the end "
        "of the process\n"
        "  fix: run without that tool; after torch.profiler, start a new process"
    )
    assert list((tmp_path / "shm").iterdir()) == []
    assert list((tmp_path / "run").iterdir()) == []
    fake.fake_set_taken(0)
    DriverHook.arm(tmp_path / "run", cupti=fake_path).disarm()  # the fix works


def test_a_library_that_is_no_cupti_is_named(tmp_path):
    with pytest.raises(DriverUnavailable, match=r"libm\.so\.6 has no cuptiSubscribe"):
        DriverHook.arm(tmp_path, cupti=Path("libm.so.6"))
    with pytest.raises(DriverUnavailable, match=r"nowhere\.so: cannot open shared object file"):
        DriverHook.arm(tmp_path, cupti=Path("/nowhere.so"))


def test_without_shared_memory_the_run_directory_is_used(fake_path, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "SHARED_MEMORY", tmp_path / "absent")
    hook = DriverHook.arm(tmp_path, cupti=fake_path)
    assert hook.record_path.parent == tmp_path
    hook.disarm()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        f"driver-{os.getpid()}.bin",
        f"driver-{os.getpid()}.stacks",
    ]


def test_the_files_leave_shared_memory_and_collecting_again_adds(hook, fake):
    shared = [hook.record_path, hook.stack_path]
    assert all(path.parent == driver.SHARED_MEMORY and path.exists() for path in shared)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    assert log_of(hook).loads == 1
    assert not any(path.exists() for path in shared)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    hook.disarm()
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    assert read_records(hook.collect()).loads == hook.counts().loads == 2


def test_arming_again_after_disarming_starts_a_new_file(hook, fake, fake_path, tmp_path):
    hook.set_step(3)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    hook.disarm()
    again = DriverHook.arm(tmp_path / "again", cupti=fake_path)
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))
    records = log_of(again).records
    again.disarm()
    assert [r.parent for r in records] == [None, 0]


def test_a_call_cut_off_by_disarming_is_no_parent_afterwards(hook, fake, fake_path, tmp_path):
    fake.fake_begin_library_load()
    hook.disarm()
    again = DriverHook.arm(tmp_path / "again", cupti=fake_path)
    fake.fake_load_many(2, ONE_KERNEL, len(ONE_KERNEL))
    records = log_of(again).records
    again.disarm()
    assert [r.parent for r in records] == [None, 0, None, 2]


def test_no_compiler_is_an_error_with_its_mend(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler --flag")
    with pytest.raises(DriverUnavailable) as caught:
        driver.build_library()
    assert caught.value.what == ("the driver hook can't be built: 'no-such-compiler' can't be run")
    assert caught.value.fix == "install gcc, or set CC to a C compiler that works"
    monkeypatch.setenv("CC", "cc")
    built = driver.build_library()
    assert list((tmp_path / "jitwatch").iterdir()) == [built]
    monkeypatch.setenv("CC", "no-such-compiler")
    assert driver.build_library() == built


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = tmp_path / "driver.c"
    broken.write_text("int x = nonsense;\n")
    monkeypatch.setattr(driver, "SOURCE", broken)
    monkeypatch.setenv("CC", "cc")
    with pytest.raises(DriverUnavailable, match="nonsense"):
        driver.build_library()
    assert list((tmp_path / "jitwatch").iterdir()) == []


# ---- stacks


def load_from_here(fake: ctypes.CDLL) -> None:
    fake.fake_cuModuleLoadData(ONE_KERNEL, len(ONE_KERNEL))


def test_a_late_load_names_the_python_line_that_paid(hook, fake):
    load_from_here(fake)  # not ready yet: no stack
    hook.set_ready()
    load_from_here(fake)
    log, stacks = log_of(hook), stacks_of(hook)
    early_call, early, call, load = log.records
    line = load_from_here.__code__.co_firstlineno + 1
    assert list(stacks) == [load.slot]
    assert stacks[load.slot][0] == f"{__file__}:{line} load_from_here"
    assert stacks[load.slot][1].endswith("test_a_late_load_names_the_python_line_that_paid")
    assert (early.stack_ns, early.stack_requested, early_call.stack_ns) == (0, False, 0)
    assert load.stack_requested
    assert call.end_ns is not None
    assert 0 < load.stack_ns == call.stack_ns < call.end_ns - call.start_ns
    assert log.missing_stacks == {}


def test_every_thread_gets_the_stack_of_its_own_loads(hook, fake):
    hook.set_ready()
    threads = [threading.Thread(target=load_from_here, args=(fake,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log, stacks = log_of(hook), stacks_of(hook)
    requested = [r.slot for r in log.records if r.stack_requested]
    assert sorted(stacks) == requested
    assert all(frames[0].endswith(" load_from_here") for frames in stacks.values())
    assert len(requested) + sum(log.missing_stacks.values()) == 8


def test_an_explained_load_gets_no_stack(hook, fake):
    hook.set_ready()
    hook.set_explained(True)
    load_from_here(fake)
    hook.set_explained(False)
    log = log_of(hook)
    assert [r.explained for r in log.records] == [True, True]
    assert (stacks_of(hook), log.missing_stacks) == ({}, {})


def test_a_blocked_signal_is_counted_and_not_raised(hook, fake):
    hook.set_ready()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        load_from_here(fake)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert log_of(hook).missing_stacks == {"signal blocked on the thread": 1}
    assert stacks_of(hook) == {}


def test_a_thread_without_python_is_counted(hook, fake):
    hook.set_ready()
    assert fake.fake_foreign_load(ONE_KERNEL, len(ONE_KERNEL)) == 0
    log = log_of(hook)
    assert only(log.records, "module_loaded").tid != threading.get_native_id()
    assert log.missing_stacks == {"no Python stack on the thread": 1}


def test_a_signal_that_somebody_took_is_not_raised(hook, fake):
    hook.set_ready()
    signal.signal(hook._signal, signal.SIG_DFL)  # raising it would kill us
    load_from_here(fake)
    assert log_of(hook).missing_stacks == {"signal handler replaced": 1}


@dataclass
class Pipe:
    read_end: int
    write_end: int


def test_a_stack_in_progress_is_not_waited_for(fake, fake_path, tmp_path):
    started, release = Pipe(*os.pipe()), Pipe(*os.pipe())
    number = signal.SIGRTMAX - 1
    fake.fake_install_blocking_handler(number, started.write_end, release.read_end)
    library = ctypes.CDLL(str(driver.build_library()))
    stacks = os.open(tmp_path / "stacks", os.O_RDWR | os.O_CREAT)
    path = tmp_path / "records.bin"
    error = library.jw_arm(os.fsencode(fake_path), os.fsencode(path), stacks, number)
    assert error == 0
    library.jw_set_ready(1)
    worker = threading.Thread(target=load_from_here, args=(fake,))
    worker.start()
    assert os.read(started.read_end, 1) == b"x"  # it holds the lock now
    load_from_here(fake)
    os.write(release.write_end, b"x")
    worker.join()
    library.jw_set_ready(0)
    library.jw_disarm()
    log = read_records(path)
    assert log.loads == 2
    assert log.missing_stacks == {
        "another stack was being written": 1,
        "no Python stack on the thread": 1,  # that handler writes none
    }


# ---- reading


def test_a_torn_file_gives_what_it_has_and_counts_the_rest(hook, fake, tmp_path):
    fake.fake_load_many(3, ONE_KERNEL, len(ONE_KERNEL))
    data = hook.collect().read_bytes()
    torn = tmp_path / "torn.bin"
    for size in range(0, len(data) + 1, 61):
        torn.write_bytes(data[:size])
        log = read_records(torn)
        whole = max(0, size - driver.HEADER_BYTES) // driver.RECORD_BYTES
        assert len(log.records) == whole
        if size >= driver.HEADER_BYTES:
            assert log.dropped == 6 - whole
    unpublished = bytearray(data)
    unpublished[driver.HEADER_BYTES + 48] = 0  # the type is written last
    torn.write_bytes(unpublished)
    assert (read_records(torn).torn, next(r.slot for r in read_records(torn).records)) == (1, 1)


def test_a_corrupt_file_is_read_without_failing(hook, fake, tmp_path):
    fake.fake_load_many(3, ONE_KERNEL, len(ONE_KERNEL))
    data = hook.collect().read_bytes()
    noise = random.Random(2)
    for _ in range(300):
        damaged = bytearray(data)
        for _ in range(20):
            at = noise.choice((noise.randrange(12, 200), noise.randrange(4096, len(data))))
            damaged[at] = noise.randrange(256)
        path = tmp_path / "damaged.bin"
        path.write_bytes(damaged)
        for record in read_records(path).records:
            assert record.parent is None or 0 <= record.parent < record.slot
            assert record.end_ns is None or record.end_ns >= record.start_ns


def test_a_strange_or_newer_file_is_refused(hook, fake, tmp_path):
    path = tmp_path / "strange.bin"
    path.write_bytes(b"PK\3\4" + bytes(5000))
    with pytest.raises(RunFileError, match="is no driver record file"):
        read_records(path)
    newer = bytearray(hook.collect().read_bytes())
    newer[8] = 2
    path.write_bytes(newer)
    with pytest.raises(RunFileError, match="its format is 2, this version reads up to 1"):
        read_records(path)


def test_stacks_are_parsed_innermost_first_and_tolerantly(tmp_path):
    path = tmp_path / "x.stacks"
    assert read_stacks(path) == {}
    path.write_text(
        '#3\nStack (most recent call first):\n  File "/a b/x.py", line 12 in inner\n'
        '  File "<string>", line ??? in <module>\n\n#5\n#8\n  File "/y.py", li'
    )
    assert read_stacks(path) == {3: ("/a b/x.py:12 inner", "<string>:??? <module>"), 5: (), 8: ()}


# ---- owners and the self-test


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "cublas"),
        ("_ZN8cublasLt19splitKreduce_kernelILi32EEvv", "cublas"),
        ("_ZN7cutlass7Kernel2I66cutlass_80_tensorop_bf16_s16816gemm_EEvNT_6ParamsE", "cublas"),
        ("ampere_sgemm_128x64_tn", "cublas"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "cudnn"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EEEviT0_T1_", "torch"),
        ("_ZN55_GLOBAL__N__c1f3_2at6native12softmax_implEv", "torch"),
        ("_ZN14at_cuda_detail3cub17DeviceScanKernelEv", "torch"),
        ("_ZN6thrust8cuda_cub4core13_kernel_agentEv", "torch"),
        ("_ZN3cub22DeviceRadixSortKernelEv", "torch"),
        ("triton_poi_fused_add_0", "inductor"),
        ("triton_red_fused_sum_1", "inductor"),
        ("triton_per_fused_softmax_2", "inductor"),
        ("triton_tem_fused_mm_3", "inductor"),
        ("_ZN13pytorch_flash16flash_fwd_kernelIEvv", "flashattention"),
        ("_ZN5flash16flash_fwd_kernelIEvv", "flashattention"),
        ("_Z25ncclDevKernel_AllReduce_v", "nccl"),
        ("my_gemm_kernel", "unknown"),
        ("triton_kernel", "unknown"),
        ("l2norm_kernel", "unknown"),
    ],
)
def test_a_symbol_names_its_owner(name, owner):
    assert owner_of([name]) == owner


def test_the_first_known_kernel_decides_and_nothing_is_unknown():
    assert owner_of(["mine", "nvjet_x", "triton_poi_y"]) == "cublas"
    assert owner_of([]) == "unknown"


class FakeCudaBindings(types.ModuleType):
    """cuda.bindings.driver over the fake driver; `loads` modules for one call."""

    def __init__(self, fake: ctypes.CDLL, loads: int = 1, failing: str = "") -> None:
        super().__init__("cuda.bindings.driver")
        self.fake, self.loads, self.failing = fake, loads, failing

    def __getattr__(self, name: str):
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: object) -> tuple[int, object]:
            if name == "cuModuleLoadData":
                self.fake.fake_load_many(self.loads, *[arguments[0], len(arguments[0])])
            return (100 if name == self.failing else 0), 1

        return call


@pytest.mark.parametrize(
    ("loads", "failing", "outcome"),
    [
        (1, "", "passed"),
        (0, "", "one module was loaded, the hook saw 0"),
        (2, "", "one module was loaded, the hook saw 2"),
        (1, "cuInit", "cuInit returned 100 in the driver hook's self-test"),
    ],
)
def test_the_self_test_loads_one_module_and_sees_one(
    hook, fake, monkeypatch, loads, failing, outcome
):
    bindings = types.ModuleType("cuda.bindings")
    bindings.driver = FakeCudaBindings(fake, loads, failing)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings.driver)
    assert hook.self_test() == outcome


def test_the_self_test_is_skipped_without_cuda_python(hook, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert hook.self_test().startswith("skipped: cuda-python can't be imported (")
