"""Reading record and stack files: torn, corrupt, strange, newer."""

from __future__ import annotations

import random

import pytest

from jitwatch.errors import RunFileError
from jitwatch.sources.driver_log import HEADER_BYTES, RECORD_BYTES, read_records, read_stacks
from tests.fake_cuda import ONE_KERNEL


def test_a_torn_file_gives_what_it_has_and_counts_the_rest(hook, fake, tmp_path):
    fake.fake_load_many(3, ONE_KERNEL, len(ONE_KERNEL))
    data = hook.collect().read_bytes()
    torn = tmp_path / "torn.bin"
    for size in range(0, len(data) + 1, 61):
        torn.write_bytes(data[:size])
        log = read_records(torn)
        whole = max(0, size - HEADER_BYTES) // RECORD_BYTES
        assert len(log.records) == whole
        if size >= HEADER_BYTES:
            assert log.dropped == 6 - whole
    unpublished = bytearray(data)
    unpublished[HEADER_BYTES + 48] = 0  # the type is written last
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
