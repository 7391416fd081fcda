"""Keys only: a kernel is a key and a count, nothing is compiled.

Replaces the function that JITFunctions compile with by one whose kernels go
through the same hooks as real ones and load nothing. Whether the compiler's disk
cache would have held a binary is answered as for a cold cache: its own key, seen
before in this process or not. Candidates of an autotuned kernel are really
compiled, since whether they fit decides which one wins. So is a kernel whose host
code reads `asm`, `n_regs`, `metadata` and the like.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import triton
import triton.compiler
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import make_backend
from triton.runtime import autotuner
from triton.runtime.cache import get_cache_key

from jitwatch.simulate.cubin import registers_and_spills
from jitwatch.simulate.driver import SimulatedDriver, SimulatedLauncher, predict_launcher_build

#: What host code may read of a kernel that only a real compile can tell.
COMPILED_ATTRIBUTES = ("asm", "kernel", "metadata", "num_warps", "shared")
BLIND_SPOT = "keys only: compile errors are unseen, and a cold disk cache is assumed"


class KeyedKernel:
    """Stands for a CompiledKernel: its first run counts a load, all others a launch."""

    packed_metadata = None

    def __init__(self, src: Any, digest: str, driver: SimulatedDriver, build: Any) -> None:
        self.src = src
        self.hash = digest
        self.name = src.fn.fn.__name__
        self.metadata_group: dict[str, str] = {}
        self.module: int | None = None
        self.function: int | None = None
        self._driver = driver
        self._build = build
        self._compiled: Any = None
        self._launcher: SimulatedLauncher | None = None

    def _init_handles(self) -> None:
        predict_launcher_build(self.src, None)
        self._launcher = SimulatedLauncher(self._driver, self.src, None)
        args = (self.module, self.function, self.name, self.metadata_group, self.hash)
        knobs.runtime.kernel_load_start_hook(*args)
        loaded = self._driver.utils.load_binary(self.name, b"", 0, 0)
        self.module, self.function = loaded[:2]
        knobs.runtime.kernel_load_end_hook(*args)

    def launch_metadata(self, *_: Any) -> None:
        """Nothing wants it here."""

    def run(self, *args: Any) -> None:
        """Load at the first call, count a launch at each."""
        if self._launcher is None:
            self._init_handles()
        assert self._launcher is not None
        assert self.function is not None
        # The function that the caller read is None where this call loads it.
        x, y, z, stream, _, *others = args
        self._launcher(x, y, z, stream, self.function, *others)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        x, y, z = (*grid, 1, 1)[:3]
        return lambda *args, stream=None: self.run(
            x, y, z, stream, self.function, None, None, None, None, *args
        )

    @property
    def n_regs(self) -> int:
        """Registers a thread: compiles the kernel."""
        return registers_and_spills(self.kernel, self.name)[0]

    @property
    def n_spills(self) -> int:
        """Spilled words a thread: compiles the kernel."""
        return registers_and_spills(self.kernel, self.name)[1]

    def __getattr__(self, name: str) -> Any:
        if name not in COMPILED_ATTRIBUTES:
            raise AttributeError(f"a kernel simulated with --keys-only has no {name!r}")
        if self._compiled is None:
            self._compiled = self._build()
        return getattr(self._compiled, name)


class KeysOnly:
    """Installs the replacement for one process. Install after the Triton source is armed."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self.driver = driver
        self._seen: set[str] = set()
        self._benching = threading.local()
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace the compile function and predict disk hits."""
        compile_kernel = triton.compiler.compile
        listener, bench = knobs.compilation.listener, autotuner.Autotuner._bench

        def predicted(**kwargs: Any) -> None:
            digest = str(kwargs["metadata"].get("hash"))
            kwargs["cache_hit"] = digest in self._seen
            self._seen.add(digest)
            if listener is not None:
                listener(**kwargs)

        def keyed(src: Any, target: Any = None, options: Any = None, **extra: Any) -> Any:
            if getattr(self._benching, "depth", 0):
                return compile_kernel(src, target=target, options=options, **extra)
            digest = self._digest(src, target, options)
            metadata = {"hash": digest, "target": target}
            predicted(src=src, metadata=metadata, metadata_group={}, times=None, cache_hit=False)

            def really() -> Any:
                knobs.compilation.listener = None  # the key was reported already
                try:
                    return compile_kernel(src, target=target, options=options, **extra)
                finally:
                    knobs.compilation.listener = predicted

            return KeyedKernel(src, digest, self.driver, really)

        def benching(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            self._benching.depth = getattr(self._benching, "depth", 0) + 1
            try:
                return bench(tuner, *args, **kwargs)
            finally:
                self._benching.depth -= 1

        triton.compiler.compile = keyed
        knobs.compilation.listener = predicted
        autotuner.Autotuner._bench = benching

        def restore() -> None:
            triton.compiler.compile = compile_kernel
            knobs.compilation.listener = listener
            autotuner.Autotuner._bench = bench

        self._undo.append(restore)

    def uninstall(self) -> None:
        """Put back what was there before."""
        while self._undo:
            self._undo.pop()()

    def _digest(self, src: Any, target: Any, options: Any) -> str:
        """The key of Triton's disk cache for this source, as its `compile` makes it."""
        backend = make_backend(target)
        parsed = backend.parse_options(dict(options or {}, **src.parse_options()))
        key = get_cache_key(src, backend, parsed, env_vars=get_cache_invalidating_env_vars())
        return hashlib.sha256(key.encode()).hexdigest()
