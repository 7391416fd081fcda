"""Keys only: nothing is compiled unless something has to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from jitwatch.sweep import SweepOptions, run_sweep

ROOT = Path(__file__).parent.parent.parent
pytest.importorskip("triton")

READS_REGISTERS = """
import torch, triton, triton.language as tl

@triton.jit
def add_kernel(x, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(x + o, tl.load(x + o) + 1)

X = torch.empty(1024, device="cuda")

def serve(prompt_tokens):
    kernel = add_kernel[(1,)](X, BLOCK=64)
    if prompt_tokens == 65:
        assert kernel.n_regs > 0
        assert b"ELF" in kernel.asm["cubin"][:8]
"""


def sweep(folder: Path, target: str, path: Path, lengths: tuple[int, ...]):
    options = SweepOptions(
        target=target,
        devices=("sim:h200",),
        lengths=lengths,
        run_dir=folder / "run",
        repo=path,
        keys_only=True,
        path=path,
    )
    return run_sweep(options)[0]


def cubins(folder: Path) -> list[Path]:
    return list((folder / "cache").rglob("*.cubin"))


def test_nothing_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    report = sweep(tmp_path, "tests.controls.constexpr_length:Faulty", ROOT, (64, 65, 66))
    assert report.counts["late_compiles"] == 2
    assert cubins(tmp_path) == []


def test_host_code_that_reads_registers_compiles_that_kernel_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "reads.py").write_text(READS_REGISTERS)
    report = sweep(tmp_path, "reads:serve", tmp_path, (64, 65))
    assert [row.request.error for row in report.requests] == [None, None]
    assert report.counts["late_in_repo_loads"] == 1
    assert len(cubins(tmp_path)) == 1
