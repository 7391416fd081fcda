"""Why a variant was not warm: one function a code, its docstring the documentation.

Pure functions. A cause function takes the late event and its diff and returns the
`Cause`: `why` names the argument, `help` the smallest fix. `diagnosis.py` decides
which function answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jitwatch.events import Cause, DiffRow, Event

CauseFunction = Callable[[Event, Sequence[DiffRow]], Cause]


def cold_kernel(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A kernel that warmup never reached was compiled on the request path.

    What happened: the first request that needed this kernel compiled and loaded it.
    Why it matters: a compile takes 0.1 to 30 s, and that request waits for all of it.
    How to fix: have warmup run the path that launches it (the sampler, a 1-token
    prefill, a prefix hit, the other attention backend), before ready.
    Not this: filling the disk cache. The kernel would still be loaded late (JW201).
    """
    return Cause(
        "JW101",
        "cold kernel",
        f"warmup never launched {event.kernel}",
        f"run the path that launches {event.kernel} in warmup, before ready",
    )


def new_integer_class(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """An integer argument fell into a class that warmup had not seen.

    What happened: Triton compiles an int argument apart for `== 1`, for `% 16 == 0`
    and for any other value (and again from 2**31 on).
    Why it matters: each combination of classes is its own binary, loaded when first met.
    How to fix: `@triton.jit(do_not_specialize=["n"])` for an int that varies with the
    request; or have warmup meet each class: 1, a multiple of 16, and neither.
    Not this: `do_not_specialize_on_alignment`, which still splits `== 1`.
    """
    names = _names(diff)
    return Cause(
        "JW102",
        "new integer class",
        f"Triton compiles {names} apart for == 1, % 16 == 0 and any other value",
        f"@triton.jit(do_not_specialize=[{_quoted(diff)}]), or warm each class",
    )


def new_constexpr(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A constexpr had a value that warmup had not seen.

    What happened: every value of a `tl.constexpr` is a binary of its own, also where
    the kernel never reads it.
    Why it matters: a constexpr fed from a length makes a module for each length.
    How to fix: make it a runtime int (with `do_not_specialize`) if no shape in the
    kernel needs it; drop it if it is never read; else bucket it to a few values
    (a power of two) and warm each.
    Not this: warming more lengths. There is always one more.
    """
    return Cause(
        "JW103",
        "new constexpr value",
        f"{_names(diff)} is a tl.constexpr: each value is a binary of its own",
        "if no shape in the kernel needs it (tl.arange does), make it a runtime int with "
        "do_not_specialize; else bucket its values and warm each",
    )


def new_options(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """The call passed other compile options than warmup did.

    What happened: `num_warps`, `num_stages` and the like are part of the key. Leaving
    one out and passing its default are two keys as well.
    Why it matters: a heuristic that picks `num_warps` by length makes a variant at
    each of its thresholds.
    How to fix: pass the same options everywhere, or have warmup cross each threshold.
    Not this: relying on the disk cache. One binary on disk is still two loads.
    """
    return Cause(
        "JW104",
        "new options",
        f"{_names(diff)} is part of the key, and this value was not warmed",
        "pass the same options as in warmup, or warm a length on each side of the threshold",
    )


def kernel_redefined(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """The same kernel was defined again: a new JITFunction object with an empty cache.

    What happened: `@triton.jit` ran again (inside a function, a factory, a reload), and
    Triton's caches belong to the object, not to the source.
    Why it matters: each object loads each of its variants again.
    How to fix: define the kernel at module level, or cache what the factory returns.
    Not this: warming the factory: the next call makes another object.
    """
    return Cause(
        "JW105",
        "kernel redefined",
        f"@triton.jit made another {event.kernel}: its caches start empty",
        "define the kernel at module level, or cache the function that defines it",
    )


def autotuned(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """An autotuned kernel met a new value of its tuning key and was benchmarked again.

    What happened: `@triton.autotune(key=[...])` compiles, loads and times every
    candidate for each new key value, on the request path.
    Why it matters: all candidates are loaded, each load waits for the GPU to drain,
    and the timings are taken beside live traffic.
    How to fix: leave what varies with the request out of the key; or bucket it and
    warm each bucket; or fix the configuration.
    Not this: `cache_results=True` alone. The winner is still loaded late.
    """
    return Cause(
        "JW106",
        "autotune",
        f"{_names(diff)} is part of the tuning key, and this value was not tuned before ready",
        "take it out of the autotune key, or bucket it and tune each bucket in warmup",
    )


def new_dtype(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A tensor argument had a dtype that warmup had not seen.

    What happened: a pointer's dtype is part of the key.
    Why it matters: an int64 index where warmup had int32, or a float32 state beside
    bf16 weights, is another binary.
    How to fix: build warmup's inputs as requests build theirs, or convert before the launch.
    Not this: casting inside the kernel. The key is made from what is passed in.
    """
    return Cause(
        "JW107",
        "new dtype",
        f"the dtype of {_names(diff)} is part of the key",
        "give warmup the dtype that requests pass, or convert before the launch",
    )


def new_alignment(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A tensor argument's address had another alignment than in warmup.

    What happened: Triton compiles apart for addresses that are multiples of 16 bytes.
    Why it matters: a view `x[k:]` is aligned for some k only, so the request's
    batch composition picks the binary.
    How to fix: copy the view to an aligned buffer, pad the offset to 16 bytes, or
    `do_not_specialize_on_alignment=["x"]` if wide loads don't matter there.
    Not this: `.contiguous()`, which copies nothing where the view is contiguous.
    """
    return Cause(
        "JW108",
        "new alignment",
        f"Triton compiles apart for a 16-byte aligned {_names(diff)}",
        f"@triton.jit(do_not_specialize_on_alignment=[{_quoted(diff)}]), or pad the offset",
    )


def optional_argument(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """An optional argument was given where warmup passed None, or the other way round.

    What happened: None is a constant of the key.
    Why it matters: a bias, a mask or a prefix that only some requests have is a
    variant of every kernel that takes it.
    How to fix: have warmup run with and without it.
    Not this: a default tensor of size 0: its dtype and alignment are keys again.
    """
    return Cause(
        "JW109",
        "optional argument appeared",
        f"whether {_names(diff)} is None is part of the key",
        "run warmup with and without it",
    )


def number_changed_type(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A number was passed as another Python type than in warmup.

    What happened: an int, a float and a bool are different argument types.
    Why it matters: `scale=1` in warmup and `scale=0.5` in a request are two binaries.
    How to fix: convert at the call: `float(scale)`.
    Not this: annotating the Python function around it: Triton looks at the value.
    """
    return Cause(
        "JW110",
        "number changed type",
        f"{_names(diff)} was another type of number in warmup",
        "convert it at the call, for example float(scale)",
    )


def disk_hit_late(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A kernel that warmup never reached was found on disk and loaded late.

    What happened: nothing was compiled, but each process loads a binary anew.
    Why it matters: a load waits until all GPU work in flight is done, and other
    threads can't submit meanwhile.
    How to fix: as for JW101: have warmup launch it before ready.
    Not this: a bigger or shared disk cache.
    """
    return Cause(
        "JW201",
        "disk hit loaded late",
        f"warmup never launched {event.kernel}; its binary was on disk, its load was not spared",
        f"run the path that launches {event.kernel} in warmup, before ready",
    )


def compiled_not_launched(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """Warmup compiled this variant but never launched it.

    What happened: `kernel.warmup(...)` and `preload()` compile and don't load; the
    first launch loads.
    Why it matters: the load is on the request path, with its wait for the GPU.
    How to fix: launch it once in warmup, or call `_init_handles()` on the result.
    Not this: more `warmup()` calls.
    """
    return Cause(
        "JW202",
        "compiled but never launched in warmup",
        "kernel.warmup() compiles and does not load; the first launch does",
        "launch it once in warmup, before ready",
    )


def lazy_library_function(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A library's function was loaded when it was first used.

    What happened: with CUDA_MODULE_LOADING=LAZY a library's kernels are loaded one by one.
    Why it matters: 1 to 50 ms, and a wait for the GPU, for the first request that uses it.
    How to fix: use it once in warmup, or set CUDA_MODULE_LOADING=EAGER.
    Not this: warming another shape of the same operator, if it picks another kernel.
    """
    return Cause(
        "JW203",
        "lazily loaded library function",
        f"{event.origin or 'a library'} loads this kernel when it is first used",
        "use it once in warmup, or set CUDA_MODULE_LOADING=EAGER",
    )


def driver_built(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """The driver linked or compiled PTX at run time.

    What happened: an image held no machine code for this GPU, or a linker was used.
    Why it matters: the driver's compiler runs on the request path.
    How to fix: build for this architecture, or load it in warmup.
    Not this: raising the size of the driver's cache: the first run pays all the same.
    """
    return Cause(
        "JW204",
        "PTX built by the driver",
        "the driver linked or compiled an image at run time",
        "build for this architecture, or load it in warmup",
    )


def library_per_shape(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A library loaded another kernel for this shape.

    What happened: cuBLAS and cuDNN choose a kernel by shape, and load each at its first use.
    Why it matters: a new M can cost a few ms, a new cuDNN plan half a second.
    How to fix: warm the shapes (or pad to buckets), or set CUDA_MODULE_LOADING=EAGER.
    Not this: warming one shape.
    """
    return Cause(
        "JW205",
        "library loaded per shape",
        f"{event.origin} chose a kernel for this shape that warmup had not used",
        "warm the shapes or pad to buckets, or set CUDA_MODULE_LOADING=EAGER",
    )


def launcher_built(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A C launcher was built with the C compiler (Triton 3.7 and older).

    What happened: a new launch signature needs a launcher of its own; gcc built it.
    Why it matters: 200 to 300 ms on the request path, seen by no hook of Triton's.
    How to fix: launch that signature in warmup; Triton 3.8 has no launchers to build.
    Not this: a second variant with the same signature: it shares the launcher.
    """
    return Cause(
        "JW206",
        "launcher built",
        "a launch signature that warmup had not used needed a C launcher",
        "launch that signature in warmup, or use Triton 3.8 or newer",
    )


def compiler_started(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """A compiler was started as a program of its own: nvcc, ninja, gcc, ptxas.

    What happened: something is built from source now, an extension or a kernel of a library's.
    Why it matters: seconds to minutes, and what it builds is loaded afterwards.
    How to fix: build it before ready, at install time or in warmup, and keep its cache.
    Not this: what a Triton compile starts itself: that is part of the compile.
    """
    return Cause(
        "JW207",
        "compiler started",
        f"{event.kernel} was started as a program of its own",
        "build it before ready: at install time, or in warmup with a cache that is kept",
    )


def unexplained(event: Event, diff: Sequence[DiffRow]) -> Cause:
    """The driver loaded a module that no hook of ours explains.

    What happened: the driver hook saw it, no compiler's hook did, and its kernel names
    belong to no library we know.
    Why it matters: it stalls a request like any other load.
    How to fix: look at its kernel names and stack in the report; tell us whose it is.
    Not this: ignoring it: the driver is right.
    """
    return Cause(
        "JW901",
        "unexplained",
        "no compiler's hook explains this load",
        "see its kernel names and stack, and report whose it is",
    )


CAUSES: dict[str, CauseFunction] = {
    "JW101": cold_kernel,
    "JW102": new_integer_class,
    "JW103": new_constexpr,
    "JW104": new_options,
    "JW105": kernel_redefined,
    "JW106": autotuned,
    "JW107": new_dtype,
    "JW108": new_alignment,
    "JW109": optional_argument,
    "JW110": number_changed_type,
    "JW201": disk_hit_late,
    "JW202": compiled_not_launched,
    "JW203": lazy_library_function,
    "JW204": driver_built,
    "JW205": library_per_shape,
    "JW206": launcher_built,
    "JW207": compiler_started,
    "JW901": unexplained,
}


def _names(diff: Sequence[DiffRow]) -> str:
    return ", ".join(row.argument for row in diff) or "an argument"


def _quoted(diff: Sequence[DiffRow]) -> str:
    return ", ".join(f'"{row.argument}"' for row in diff)
