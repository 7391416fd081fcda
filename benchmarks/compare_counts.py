"""Does the driver hook count what an independent subscriber counts?

`python benchmarks/compare_counts.py [--quick] [--only SECTION ...] [--out FILE]` runs
load_script.py twice in fresh processes with fresh compiler caches, under the hook and under
count_modules.py, and prints both counts. `--only` narrows a difference down. Exit status 1 where
the counts differ, records were dropped or torn, or nothing was loaded; 2 where one of the two gave
no counts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from output import give_up, last_object, publish

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "load_script.py"

UNDER_HOOK = """
import runpy, sys
from pathlib import Path
import torch
from jitwatch.errors import DriverUnavailable
from jitwatch.sources.driver import DriverHook
from jitwatch.sources.driver_log import read_records
from output import give_up, publish
script, run = sys.argv[1:3]
if not torch.cuda.is_available():
    give_up("torch sees no GPU here")
try:
    hook = DriverHook.arm(Path(run))
except DriverUnavailable as error:
    give_up(str(error))
sys.argv = [script, *sys.argv[3:]]
runpy.run_path(script, run_name="__main__")
torch.cuda.synchronize()
hook.disarm()
log = read_records(hook.collect())
loads = [record for record in log.records if record.type == "module_loaded"]
publish({"modules": log.loads, "recorded": len(loads), "dropped": log.dropped, "torn": log.torn,
         "cupti": hook.path.name, "without_a_call_around": sum(r.parent is None for r in loads)},
        None)
"""


def count(name: str, command: list[str], timeout_s: float) -> dict[str, Any]:
    """Run `command` with compiler caches of its own; its last line is its result."""
    with tempfile.TemporaryDirectory() as scratch:
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")]
            ),
            "TRITON_CACHE_DIR": f"{scratch}/triton",
            "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # compile here, not in a pool of processes
        }
        print(f"compare_counts: {name}", file=sys.stderr, flush=True)
        try:
            done = subprocess.run(
                command, env=env, stdout=subprocess.PIPE, text=True, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            give_up(f"{name}: not done after {timeout_s:.0f} s; its last section is named above")
    if done.returncode != 0:
        give_up(f"{name} exited {done.returncode}; the reason is above")
    result = last_object(done.stdout)
    if result is None or "modules" not in result:
        give_up(f"{name} printed no counts: {done.stdout[-500:]!r}")
    return result


def differences(hook: dict[str, Any], independent: dict[str, Any]) -> list[str]:
    """Why the two do not agree, empty where they do."""
    found = []
    if hook["modules"] != independent["modules"]:
        found.append(f"the hook counts {hook['modules']}, the other {independent['modules']}")
    if hook["recorded"] != hook["modules"]:
        found.append(f"the hook counts {hook['modules']} and records {hook['recorded']}")
    if hook["dropped"] or hook["torn"]:
        found.append(f"{hook['dropped']} records dropped, {hook['torn']} torn")
    if not independent["modules"]:
        found.append("nothing was loaded at all")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="SECTION")
    parser.add_argument("--timeout-s", type=float, default=240)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    arguments = ["--quick"] if options.quick else []
    arguments += ["--only", *options.only] if options.only else []
    with tempfile.TemporaryDirectory() as run:
        under_hook = [sys.executable, "-c", UNDER_HOOK, str(SCRIPT), run, *arguments]
        hook = count("under the hook", under_hook, options.timeout_s)
    by_other = [sys.executable, str(HERE / "count_modules.py"), str(SCRIPT), *arguments]
    independent = count("under count_modules.py", by_other, options.timeout_s)
    found = differences(hook, independent)
    for difference in found:
        print(f"compare_counts: {difference}", file=sys.stderr, flush=True)
    result = {"hook": hook, "independent": independent, "equal": not found, "differences": found}
    publish({**result, "arguments": arguments}, options.out)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
