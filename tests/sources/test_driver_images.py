"""The driver hook: what it reads from a module's image."""

from __future__ import annotations

import ctypes
import importlib.util
import random

import pytest

from jitwatch.sources.driver import DriverHook
from jitwatch.sources.driver_log import DriverRecord
from tests.fake_cuda import cubin, log_of


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
