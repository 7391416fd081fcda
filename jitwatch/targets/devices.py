"""The device a child serves on: the real GPU under the driver hook, or a simulated board.

Owns which sources are armed on which device, and what each device knows about
itself. Imported by the child only: it imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jitwatch.errors import DriverUnavailable, UsageError
from jitwatch.events import SourceState
from jitwatch.recorder import Recorder
from jitwatch.sources.driver_log import read_records
from jitwatch.sources.triton import TritonSource

if TYPE_CHECKING:
    from jitwatch.targets.worker import Job


class Device(Protocol):
    """What the worker needs of a device."""

    def ready(self) -> None:
        """Warmup is over: called just before the recorder says so."""

    def launches(self) -> int | None:
        """Kernel launches so far, or None where only callbacks could count them."""

    def take_used(self) -> frozenset[int] | None:
        """The load events of what was launched since the last call; None where nobody knows."""

    def kernel_of(self, load: int) -> str:
        """The kernel of a load event that `take_used` named."""

    def counting_launches(self) -> Any:
        """A context in which launches are counted; gives a function that says how many."""

    def close(self) -> None:
        """Write what is known only at the end, and let go of the device."""


def open_device(job: Job, recorder: Recorder) -> Device:
    """Arm the sources for `job.device` (`cuda` or `sim:BOARD`), before the target is imported.

    Raises:
        UsageError: no GPU here, an unknown board, or an option the device doesn't have.
    """
    if job.device.startswith("sim:"):
        return SimulatedDevice(job, recorder)
    return CudaDevice(job, recorder)


class CudaDevice:
    """A real GPU: driver hook and Triton's hooks. Makes no CUDA context before ready."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        import torch

        self.recorder = recorder
        if not torch.cuda.is_available():
            raise UsageError(
                "--device cuda: there is no GPU here",
                "torch.cuda.is_available() is False",
                "use --device sim:h200, or run where there is a GPU",
            )
        self.hook = self._arm_driver(Path(job.run_dir))
        if self.hook is not None:
            recorder.on_step.append(self.hook.set_step)
        self.triton = TritonSource(recorder, self.hook.set_explained if self.hook else None)
        recorder.source(self.triton.arm())

    def _arm_driver(self, run_dir: Path) -> Any:
        from jitwatch.sources.driver import DriverHook

        try:
            hook = DriverHook.arm(run_dir)
        except DriverUnavailable as error:
            reason = f"{error.what}: {error.why}"
            self.recorder.source(SourceState("driver", False, reason=reason))
            self.recorder.fact("self_test", "skipped: the driver hook is not armed")
            return None
        self.recorder.source(SourceState("driver", True, f"CUPTI {hook.version}"))
        text = "a lazy load inside a launch has no begin of its own: its time is unseen"
        self.recorder.fact("blind_spot", text)
        return hook

    def _environment(self) -> dict[str, str]:
        import torch

        properties = torch.cuda.get_device_properties(0)
        return {
            "gpu": properties.name,
            "arch": f"sm_{properties.major}{properties.minor}",
            "cuda": str(torch.version.cuda),
            "module_loading": os.environ.get("CUDA_MODULE_LOADING", "default (lazy)"),
            **_versions(),
        }

    def ready(self) -> None:
        # Not earlier: the target must find CUDA as untouched as it would alone.
        if self.hook is not None:
            self.recorder.fact("self_test", self.hook.self_test())
            self.hook.set_ready(True)
        self.recorder.fact("environment", self._environment())

    def launches(self) -> int | None:
        return None

    def take_used(self) -> None:
        return None

    def kernel_of(self, load: int) -> str:
        raise LookupError("nothing on a GPU says which functions were launched")

    @contextmanager
    def counting_launches(self) -> Iterator[Callable[[], int]]:
        if self.hook is None:
            yield lambda: 0
            return
        hook = self.hook
        hook.launches(True)
        try:
            yield lambda: int(hook.counts().launches)
        finally:
            hook.launches(False)

    def close(self) -> None:
        _close_triton(self.triton, self.recorder)
        if self.hook is not None:
            self.hook.disarm()
            launched = {
                name
                for record in read_records(self.hook.collect()).records
                if record.type == "launch"
                for name in record.kernels
            }
            self.recorder.fact("probe_kernels", sorted(launched))


class SimulatedDevice:
    """A board that isn't there: torch's stand-ins and Triton's simulated driver."""

    def __init__(self, job: Job, recorder: Recorder) -> None:
        from jitwatch.simulate import cuda, native
        from jitwatch.simulate.boards import get_board

        board = get_board(job.device)
        self.recorder = recorder
        self.torch = cuda.install(board, strict_values=job.strict_values)
        native.install(lambda text: recorder.fact("blind_spot", text))
        self.triton = TritonSource(recorder)
        self.driver: Any = None
        try:
            import triton  # noqa: F401
        except ImportError as error:
            reason = f"nothing to simulate without triton: {error}"
            recorder.source(SourceState("driver", False, reason=reason))
        else:
            self._simulate_triton(job, board)
        recorder.fact("environment", {"gpu": f"simulated {board.product}", **_versions()})

    def _simulate_triton(self, job: Job, board: Any) -> None:
        from jitwatch.simulate.driver import SimulatedDriver, activate
        from jitwatch.simulate.values import kernel_wrote

        self.driver = SimulatedDriver(board, self.recorder, kernel_wrote)
        activate(self.driver, read_winners(job.winners) if job.winners else None)
        state = self.triton.arm()
        self.recorder.source(state)
        self.recorder.source(
            SourceState("driver", state.armed, f"simulated {board.name}", state.reason)
        )
        self.recorder.fact("blind_spot", "simulated: third-party libraries' loads are unseen")
        if job.keys_only:
            from jitwatch.simulate.keys import BLIND_SPOT, KeysOnly

            KeysOnly(self.driver).install()
            self.recorder.fact("blind_spot", BLIND_SPOT)

    def ready(self) -> None:
        pass

    def launches(self) -> int | None:
        return self.driver.launches if self.driver is not None else 0

    def take_used(self) -> frozenset[int]:
        return self.driver.take_used() if self.driver is not None else frozenset()

    def kernel_of(self, load: int) -> str:
        return str(self.driver.utils.kernels[load])

    @contextmanager
    def counting_launches(self) -> Iterator[Callable[[], int]]:
        yield lambda: self.launches() or 0

    def close(self) -> None:
        _close_triton(self.triton, self.recorder)
        for line in self.torch.assumed:
            self.recorder.fact("assumed", line)


def read_winners(run: str) -> dict[Any, tuple[tuple[str, str], ...]]:
    """What each tuning key chose in the run directory `run`.

    Raises:
        RunFileError: it is no run directory.
    """
    from jitwatch.log import read_run, run_dirs
    from jitwatch.variants import read_variant

    facts = [read_run(folder).facts for folder in run_dirs(Path(run))]
    return {
        read_variant(item["key"]): tuple((name, value) for name, value in item["choice"])
        for fact in facts
        for item in fact.get("winners", ())
    }


def _close_triton(source: TritonSource, recorder: Recorder) -> None:
    recorder.fact("winners", source.winners())
    if source.displaced:
        recorder.fact("hooks_displaced", True)
    if source.listener_displaced:
        text = "another tool replaced Triton's compilation listener: compile or disk hit is a guess"
        recorder.fact("blind_spot", text)


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
