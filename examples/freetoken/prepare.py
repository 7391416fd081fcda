"""Builds the seven CUDA kernels that FreeToken would otherwise compile one by one at boot.

`python -m examples.freetoken.prepare FOLDER` prints the lines to export. Needs nvcc and ninja.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

#: What this model uses of FreeToken's list: a KV row of 1,024 bytes (2 heads of 256, bf16), an
#: embedding row of 4,096 bytes, and those that depend on no model.
KERNELS = (
    "freetoken__store_1024_128_1_false",
    "freetoken__index_4096_4_128_1_false",
    "freetoken__fast_index_copy_update_flag",
    "freetoken__fast_index_copy_multi_1024_8",
    "freetoken__fast_index_copy_multi_1024_64",
    "freetoken__batch_memcpy",
    "freetoken__radix",
)


def set_cuda_home() -> None:
    """Point CUDA_HOME at the toolkit of the nvcc on PATH, unless it is set.

    Raises:
        SystemExit: no nvcc on PATH.
    """
    if os.environ.get("CUDA_HOME"):
        return
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise SystemExit(
            "prepare: no nvcc on PATH and CUDA_HOME is not set; FreeToken's kernels are CUDA "
            "sources: install the CUDA toolkit of torch's CUDA version, or set CUDA_HOME"
        )
    # The nvcc on PATH may be a wrapper or a link somewhere else: only nvcc knows its toolkit.
    dry_run = subprocess.run(
        [nvcc, "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
    )
    top = re.search(r"^#\$ TOP=(.+)$", dry_run.stderr, re.MULTILINE)
    toolkit = Path(top[1].strip()) if top else Path(nvcc).resolve().parent.parent
    os.environ["CUDA_HOME"] = str(toolkit.resolve())


def build(folder: Path) -> None:
    """Compile into `folder` those kernels that it does not hold, in parallel."""
    # CUDA_HOME is read when torch's extension builder is imported.
    set_cuda_home()
    from freetoken.kernel.aot import compile_and_package_kernels

    missing = [name for name in KERNELS if not (folder / name / f"{name}.so").exists()]
    if missing:
        compile_and_package_kernels(
            out_dir=folder,
            build_dir=folder / "build",
            specs=missing,
            clean=False,
            jobs=len(missing),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    build(folder)
    print(f"export CUDA_HOME={os.environ['CUDA_HOME']}")
    print(f"export FREETOKEN_KERNEL_CACHE_DIR={folder}")
    print(f"prepare: {len(KERNELS)} kernels in {folder}", file=sys.stderr)


if __name__ == "__main__":
    main()
