"""Count the modules that a script loads, without jitwatch's hook.

`python benchmarks/count_modules.py [--out FILE] [--quick] SCRIPT [ARGUMENT ...]`, where --quick is
handed on to the script. An independent check of the driver hook: a CUPTI subscriber of its own in
ctypes, MODULE_LOADED and nothing else. Shares no line of counting with jitwatch, so that they can't
be wrong in the same way; only the result's commit is found by jitwatch (`output.py`). One
subscriber per process: no profiler, no hook beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import runpy
import sys
import threading
from pathlib import Path

import torch  # maps the libcupti that the process uses
from output import give_up, publish

RESOURCE, MODULE_LOADED = 3, 6
SUBSCRIBER_TAKEN = 39
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)

modules = 0
lock = threading.Lock()


def on_event(_user: int | None, _domain: int, code: int, _data: int | None) -> None:
    global modules
    if code == MODULE_LOADED:
        with lock:
            modules += 1


def mapped_cupti() -> str:
    with open("/proc/self/maps") as maps:
        paths = {
            "/" + line.rstrip("\n").partition("/")[2] for line in maps if "/libcupti.so" in line
        }
    own = sorted(path for path in paths if "/triton/" not in path)
    if not own:
        give_up("torch maps no libcupti here: a CUDA build of torch is needed")
    return own[0]


def check(name: str, status: int) -> None:
    if status == SUBSCRIBER_TAKEN:
        give_up(f"{name} returned {status}: another tool holds this process's only subscription")
    if status != 0:
        give_up(f"{name} returned {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        give_up("torch sees no GPU here")
    path = mapped_cupti()
    cupti = ctypes.CDLL(path)
    subscriber, callback = ctypes.c_void_p(), CALLBACK(on_event)
    check("cuptiSubscribe", cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None))
    enabled = cupti.cuptiEnableCallback(1, subscriber, RESOURCE, MODULE_LOADED)
    check("cuptiEnableCallback", enabled)
    sys.argv = [str(options.script), *["--quick"] * options.quick, *options.arguments]
    runpy.run_path(str(options.script), run_name="__main__")
    torch.cuda.synchronize()
    check("cuptiUnsubscribe", cupti.cuptiUnsubscribe(subscriber))
    publish(
        {"modules": modules, "script": options.script.name, "cupti": Path(path).name}, options.out
    )


if __name__ == "__main__":
    main()
