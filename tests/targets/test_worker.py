"""The child's order of things, on a device that is none."""

from __future__ import annotations

import itertools
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace

from jitwatch.attribution import charge
from jitwatch.events import Event
from jitwatch.log import read_run
from jitwatch.records import write_meta
from jitwatch.targets import worker
from jitwatch.targets.worker import Job, Worker


class Device:
    """A real GPU in so far as it counts launches only when asked to."""

    def __init__(self):
        self.counter = itertools.count()

    def ready(self):
        pass

    def launches(self):
        return None

    def take_used(self):
        return None

    @contextmanager
    def counting_launches(self):
        yield self.counter.__next__

    def close(self):
        pass


def served(tmp_path, monkeypatch, *, lengths):
    monkeypatch.setattr(worker, "open_device", lambda job, recorder: Device())
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "probed_target.py").write_text("def serve(prompt_tokens): pass\n")
    job = Job(
        run_dir=str(tmp_path),
        target="probed_target:serve",
        device="cuda",
        lengths=lengths,
        warmup_lengths=(),
        output_tokens=2,
        packages=(),
        path=str(tmp_path),
    )
    write_meta(tmp_path, {"device": "cuda"})
    assert Worker(job, lambda *_, **__: None).run() == 0
    return read_run(tmp_path)


def test_what_loads_in_a_probe_is_no_requests(tmp_path, monkeypatch):
    run = served(tmp_path, monkeypatch, lengths=(5, 9))
    assert run.facts["probes"] == 2
    assert [step.requests for step in run.steps] == [
        ("len5",),
        ("len9",),
        ("probe5",),
        ("probe9",),
    ]
    request, probe = run.steps[0], run.steps[2]
    load = Event(1, 1, 1, 0, None, "load", "driver", "k", None, "in-repo", 0, None, (), None)
    late = [
        replace(load, pid=step.pid, tid=step.tid, start_ns=step.start_ns, step=step.id)
        for step in (request, probe)
    ]
    charges = charge(late, run.steps, run.ready_ns, run.facts["served_until_ns"])
    assert [found.requests for found in charges] == [("len5",)]


def test_memory_is_this_process_own_peak():
    # Its parent's peak is in rusage, not here.
    held = bytearray(256 << 20)
    code = (
        "from jitwatch.targets.worker import peak_memory_bytes as peak\n"
        "before = peak()\nheld = bytearray(64 << 20)\nprint(before, peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, more = map(int, done.stdout.split())
    assert before < len(held)
    assert 60 << 20 < more < 80 << 20
