"""This process, watched from inside: under `jitwatch run`, or by a call of `jitwatch.arm()`.

Owns the process's session: its recorder, the sources it arms as what they watch is imported, and
what a program says of its steps and requests. Without a session all of that does nothing. What
goes wrong here is recorded, never raised: the program is somebody else's.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import sys
import threading
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, cast

# Every Python process of a run imports this: what is heavier waits until it is needed.
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from importlib.machinery import ModuleSpec
    from pathlib import Path
    from types import ModuleType

    from jitwatch.events import Phase
    from jitwatch.recorder import Recorder

#: What `jitwatch run` sets for the program and all that it starts.
RUN_DIR, LIBRARY, INJECTION = "JITWATCH_RUN_DIR", "JITWATCH_LIBRARY", "CUDA_INJECTION64_PATH"
PACKAGES = "JITWATCH_PACKAGES"


class Session:
    """What watches this process. Nothing is written before there is something to say."""

    def __init__(self, run_dir: str | Path) -> None:
        self._run_dir = run_dir
        self._recorder: Recorder | None = None
        self._lock = threading.RLock()
        self._triton: Any = None
        self._hook: Any = None

    @property
    def run_dir(self) -> Path:
        """Where this process records."""
        from pathlib import Path

        return Path(self._run_dir)

    @property
    def recorder(self) -> Recorder:
        """This process's recorder, made at its first use."""
        with self._lock:
            if self._recorder is None:
                from jitwatch.recorder import Recorder

                self._recorder = Recorder(self.run_dir, follow_forks=True)
                atexit.register(self._close)
                self._guarded(self._attach_hook)
                self._guarded(self._find_packages)
            return self._recorder

    def watch_imports(self) -> None:
        """Arm the sources when torch and triton are imported, at once where they are."""
        for name, found in (
            ("torch", self._begin),
            ("triton", self._arm_triton),
            ("subprocess", self._arm_compilers),
        ):
            if name in sys.modules:
                self._guarded(found)
            else:
                sys.meta_path.insert(0, _WhenImported(name, partial(self._guarded, found)))
        os.register_at_fork(after_in_child=lambda: self._guarded(self._in_forked_child))

    def describe_run(self) -> None:
        """Write what a run directory needs beside records, where nobody did."""
        from jitwatch.records import META, write_meta

        self.run_dir.mkdir(parents=True, exist_ok=True)
        if not (self.run_dir / META).exists():
            meta = {"device": "cuda", "mode": "run", "repo": os.getcwd(), "environment": {}}
            write_meta(self.run_dir, meta)

    def arm_late(self) -> None:
        """Arm the driver hook now, in a program that was not started under `jitwatch run`."""
        from jitwatch.errors import DriverUnavailable
        from jitwatch.events import SourceState
        from jitwatch.sources.driver import DriverHook

        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            self.recorder.fact("blind_spot", "armed after CUDA was: what loaded before is unseen")
        try:
            hook = DriverHook.arm(self.run_dir)
        except DriverUnavailable as error:
            reason = f"{error.what}: {error.why}"
            self.recorder.source(SourceState("driver", False, reason=reason))
        else:
            self.recorder.source(SourceState("driver", True, f"CUPTI {hook.version}"))
            self._use_hook(hook)

    def _find_packages(self) -> None:
        """Where the packages under test lie for this process, which may have its own."""
        folders = {}
        for name in os.environ.get(PACKAGES, "").split():
            spec = importlib.util.find_spec(name)
            if spec is not None:
                places = spec.submodule_search_locations or [spec.origin or ""]
                folders[name] = [os.path.realpath(place) for place in places]
        if folders:
            self.recorder.fact("packages", folders)

    def _begin(self) -> None:
        assert self.recorder is not None  # made now, with all that belongs to it

    def _attach_hook(self) -> None:
        """Give the hook that the driver loads at cuInit what only Python has: steps and stacks."""
        library = os.environ.get(LIBRARY)
        if library is None or os.environ.get(INJECTION) != library or self._hook is not None:
            return
        from jitwatch.sources.injected import InjectedHook

        self._use_hook(InjectedHook(self.run_dir, library))

    def _use_hook(self, hook: Any) -> None:
        self._hook = hook
        hook.set_ready(True)  # every load may turn out to be late: each one has a stack
        self.recorder.on_step.append(hook.set_step)
        if self._triton is not None:
            self._triton.explain = hook.set_explained

    def _arm_triton(self) -> None:
        from jitwatch.sources.triton import TritonSource

        if self._triton is None:
            explain = self._hook.set_explained if self._hook is not None else None
            self._triton = TritonSource(self.recorder, explain)
            self.recorder.source(self._triton.arm())

    def _arm_compilers(self) -> None:
        from jitwatch.sources.compilers import CompilerSource

        CompilerSource(lambda: self.recorder).arm()

    def _in_forked_child(self) -> None:
        self._lock = threading.RLock()
        if self._recorder is not None:
            self._recorder.in_forked_child()
            if self._triton is not None:
                self._recorder.source(self._triton.arm())
        if self._hook is not None:
            self._hook.in_forked_child()

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            with suppress(Exception):
                self.recorder.fact("hook_error", f"{type(error).__name__}: {error}")

    def _close(self) -> None:
        self._guarded(self._say_last)
        with suppress(Exception):
            self.recorder.close()

    def _say_last(self) -> None:
        if self._triton is not None:
            self.recorder.fact("winners", self._triton.winners())
            if self._triton.displaced:
                self.recorder.fact("hooks_displaced", True)
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            arch = f"sm_{properties.major}{properties.minor}"
            environment = {"gpu": properties.name, "arch": arch, "torch": torch.__version__}
            self.recorder.fact("environment", environment)


_session: Session | None = None


def join_run() -> None:
    """Watch this process for the run that the environment names."""
    _start(os.environ[RUN_DIR]).watch_imports()


def arm(run_dir: str | Path) -> None:
    """Watch this process from now on and record into `run_dir`, a folder of its own.

    Under `jitwatch run` it is watched already, and this changes nothing. A program that calls it
    late, after CUDA is initialised, says in its report that it missed what was before.
    """
    if _session is None:
        session = _start(run_dir)
        session.describe_run()
        session.watch_imports()
        session.arm_late()


def _start(run_dir: str | Path) -> Session:
    global _session
    if _session is None:
        _session = Session(run_dir)
    return _session


def ready() -> None:
    """Say that warmup is over: what loads or compiles from now on is late."""
    if _session is not None:
        _session.recorder.ready()


def step(phase: Phase, requests: Sequence[str], tokens: int) -> AbstractContextManager[int | None]:
    """Around one forward of `tokens` new tokens for these requests, on the thread that runs it.

    What loads in it is charged to them. `phase` is prefill, decode or mixed.
    """
    if _session is None:
        return nullcontext()
    known: Phase = phase if phase in ("prefill", "decode") else "mixed"
    return _session.recorder.step(known, tuple(map(str, requests)), int(tokens))


def request(
    request_id: str, prompt_tokens: int, output_tokens: int = 1
) -> AbstractContextManager[None]:
    """Around one request, from its arrival until it is answered. Steps say which it is in."""
    if _session is None:
        return nullcontext()
    name, prompt, output = str(request_id), int(prompt_tokens), int(output_tokens)
    return _request(_session.recorder, name, prompt, output)


@contextmanager
def _request(
    recorder: Recorder, request_id: str, prompt_tokens: int, output_tokens: int
) -> Iterator[None]:
    recorder.request(request_id, prompt_tokens, output_tokens)
    error: str | None = None
    try:
        yield
    except BaseException as raised:
        error = f"{type(raised).__name__}: {raised}"
        raise
    finally:
        recorder.request_end(request_id, error=error)


class _WhenImported:
    """Calls `found` each time the module called `name` was run."""

    def __init__(self, name: str, found: Callable[[], None]) -> None:
        self.name = name
        self.found = found
        self._local = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec that others find, with a loader around theirs."""
        if fullname != self.name or getattr(self._local, "asking", False):
            return None
        self._local.asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._local.asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Any", _Telling(spec.loader, self.found))
        return spec


class _Telling:
    """A module's own loader, which tells when it has run; the module keeps its own."""

    def __init__(self, loader: Any, found: Callable[[], None]) -> None:
        self.loader = loader
        self.found = found

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module's own way."""
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Run the module, as without us, then tell."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.found()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)  # who only asks for the spec finds all of it
