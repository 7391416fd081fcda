"""Count the modules that a script loads: `python benchmarks/count_modules.py SCRIPT`.

An independent check of the driver hook: a CUPTI subscriber of its own in ctypes, MODULE_LOADED
and nothing else. Shares no line with jitwatch, so that they can't be wrong in the same way.
"""

from __future__ import annotations

import ctypes
import json
import runpy
import sys
import threading

import torch  # maps the libcupti that the process uses

RESOURCE, MODULE_LOADED = 3, 6
CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_void_p)

modules = 0
lock = threading.Lock()


def on_event(_user: int, _domain: int, code: int, _data: int) -> None:
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
        sys.exit("count_modules: torch maps no libcupti here: a CUDA build of torch is needed")
    return own[0]


def check(name: str, status: int) -> None:
    if status != 0:
        sys.exit(f"count_modules: {name} returned {status}")


def main() -> None:
    script = sys.argv[1]
    cupti = ctypes.CDLL(mapped_cupti())
    subscriber, callback = ctypes.c_void_p(), CALLBACK(on_event)
    check("cuptiSubscribe", cupti.cuptiSubscribe(ctypes.byref(subscriber), callback, None))
    enabled = cupti.cuptiEnableCallback(1, subscriber, RESOURCE, MODULE_LOADED)
    check("cuptiEnableCallback", enabled)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
    torch.cuda.synchronize()
    check("cuptiUnsubscribe", cupti.cuptiUnsubscribe(subscriber))
    print(json.dumps({"modules": modules}))


if __name__ == "__main__":
    main()
