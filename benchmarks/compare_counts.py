"""Does the driver hook count what an independent subscriber counts?

`python benchmarks/compare_counts.py [--out FILE]` runs load_script.py twice in fresh processes
with fresh compiler caches, under the hook and under count_modules.py, and prints both counts.
Exit status 1 where they differ or records were dropped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "load_script.py"

UNDER_HOOK = """
import json, runpy, sys
from pathlib import Path
import torch
from jitwatch.sources.driver import DriverHook, read_records
script, run = sys.argv[1:]
hook = DriverHook.arm(Path(run))
sys.argv = [script]
runpy.run_path(script, run_name="__main__")
torch.cuda.synchronize()
hook.disarm()
log = read_records(hook.collect())
recorded = sum(record.type == "module_loaded" for record in log.records)
print(json.dumps({"modules": log.loads, "recorded": recorded, "dropped": log.dropped,
                  "cupti": hook.version}))
"""


def count(command: list[str], scratch: Path) -> dict[str, object]:
    """Run `command` with caches of its own; its last line is its result."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(scratch / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"compare_counts: {command[1]} exited {done.returncode}; see its output above")
    result: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        run = [sys.executable, "-c", UNDER_HOOK, str(SCRIPT), str(Path(first) / "run")]
        hook = count(run, Path(first))
        independent = count(
            [sys.executable, str(HERE / "count_modules.py"), str(SCRIPT)], Path(second)
        )
    equal = hook["modules"] == hook["recorded"] == independent["modules"] and not hook["dropped"]
    text = json.dumps({"hook": hook, "independent": independent, "equal": equal}, indent=2)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
