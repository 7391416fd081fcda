"""Who an event belongs to: the hook that explains it, its owner, the requests that paid.

Pure functions over recorded data: no I/O, no clock, no torch.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jitwatch.events import Coverage, Event, Request, Step, Variant

IN_REPO = "in-repo"
#: Folders beneath a repository that hold other people's code.
FOREIGN_FOLDERS = (
    "site-packages",
    "dist-packages",
    ".venv",
    "venv",
    ".tox",
    ".nox",
    "node_modules",
)

#: How the folders begin that inductor writes generated kernels to.
INDUCTOR_FOLDER = "/torchinductor_"

#: Owners of kernels that no compiler hook explains, by symbol, mangled or not: the first rule
#: that matches. A rule tells a library's own names; a bare "gemm" or "softmax" is nobody's.
KERNEL_OWNERS = tuple(
    (owner, re.compile(pattern))
    for owner, pattern in (
        ("inductor", r"^triton_(poi|red|per|tem|for|spl|unk|mix|mm|bmm|flex)_"),
        ("nccl", r"nccl(Dev)?Kernel|^nccl|_ZN\d+nccl"),
        ("flashinfer", r"flashinfer"),
        ("cudnn", r"cudnn"),
        # PyTorch's own copy is in the namespace pytorch_flash.
        ("flash-attention", r"pytorch_flash|_ZN5flash|flash_(fwd|bwd)_|flash_attn|flash::"),
        ("cublas", r"^nvjet_|cublas|_ZN7cutlass7Kernel2I\d+cutlass_|^cutlass_\d+_"),
        ("cublas", r"^(volta|turing|ampere|hopper|sm\d+)_\w*(gemm|xmma)"),
        ("cublas", r"^(_Z\d+)?(gemv(2|x|NSP|T|N)|gemmk1_|gemmSN_|splitKreduce_)"),
        ("cublas", r"^_Z\d+(dot|reduce_1Block)_kernelI"),
        ("cusparse", r"cusparse"),
        ("cusolver", r"cusolver"),
        ("torch", r"(^|_)_?ZN?K?2at|2at6native|at::native|at_cuda|3c10|c10::|fmha_cutlass"),
        ("torch", r"_ZN\w*(3cub|6thrust)|cub::|thrust::"),
        ("cutlass", r"_ZN7cutlass|cutlass::"),
    )
)


@dataclass(frozen=True, slots=True)
class Charge:
    """A late event and who waited: `inferred` where its own thread had no step."""

    event: Event
    requests: tuple[str, ...]
    inferred: bool


def explain(events: Sequence[Event]) -> list[Event]:
    """Give each driver load the compiler's load around it as parent, with its kernel and variant.

    The two are matched by process, thread and time; a load that already names
    its parent (the simulated device) keeps it.
    """
    hooks: dict[tuple[int, int], list[Event]] = {}
    for event in events:
        if event.kind == "load" and event.source != "driver":
            hooks.setdefault((event.pid, event.tid), []).append(event)
    starts = {key: [hook.start_ns for hook in found] for key, found in hooks.items()}
    by_seq = {(event.pid, event.seq): event for event in events}
    explained = []
    for event in events:
        if event.kind != "load" or event.source != "driver":
            explained.append(event)
            continue
        parent = by_seq.get((event.pid, event.parent)) if event.parent is not None else None
        if parent is None:
            key = (event.pid, event.tid)
            index = bisect.bisect_right(starts.get(key, []), event.start_ns) - 1
            found = hooks[key][index] if index >= 0 else None
            if found is not None and (found.end_ns is None or event.start_ns <= found.end_ns):
                parent = found
        if parent is None or parent.kind != "load":
            explained.append(event)
            continue
        explained.append(
            replace(
                event,
                parent=parent.seq,
                kernel=parent.kernel,
                variant=parent.variant,
                file=parent.file,
                line=parent.line,
                stack=parent.stack,
                # A thread knows the step begun last on it, a compiler's hook that of its task.
                step=event.step if parent.step is None else parent.step,
            )
        )
    return explained


def place(
    events: Iterable[Event], repo: str | None, packages: Mapping[str, Sequence[str]]
) -> list[Event]:
    """Fill in each event's origin: `in-repo`, else the owner's name.

    `repo` is the folder under test, `packages` the folders of each `--package`.
    """
    return [replace(event, origin=origin_of(event, repo, packages)) for event in events]


def origin_of(event: Event, repo: str | None, packages: Mapping[str, Sequence[str]]) -> str:
    """The origin of one event, by its kernel's source file, else by its symbol names."""
    if event.file is None:
        return "compiler" if event.kind == "subprocess" else owner_of_kernel(event.kernel)
    for places in packages.values():
        if any(event.file == place or _is_under(event.file, place) for place in places):
            return IN_REPO
    inside = event.file
    if repo is not None and _is_under(event.file, repo):
        inside = event.file[len(repo.rstrip("/")) :]
        foreign = any(part in FOREIGN_FOLDERS for part in inside.split("/"))
        if not foreign and INDUCTOR_FOLDER not in inside:
            return IN_REPO
    if INDUCTOR_FOLDER in inside:
        return "inductor"
    match = re.search(r"/(?:site|dist)-packages/([^/]+?)(?:\.py)?(?:/|$)", event.file)
    return match.group(1) if match else "other"


def owner_of_kernel(names: str) -> str:
    """The library that kernels of these symbol names (joined by commas) come from: that of the
    first known one, else `unknown`."""
    for name in names.split(","):
        for owner, pattern in KERNEL_OWNERS:
            if pattern.search(name):
                return owner
    return "unknown"


def charge(
    events: Iterable[Event],
    steps: Sequence[Step],
    ready_ns: int | None,
    until_ns: int | None,
    requests: Sequence[Request] = (),
) -> list[Charge]:
    """The late events, each with the requests that waited for it.

    Late is what began at or after `ready_ns`. After `until_ns` steps are those of probes, which
    are no requests: there only what the repository loads outside any step is late. An event
    whose thread had no step is charged to the step open in its process at that time; without
    one, to the requests open then, those of its own process first; else to nobody.
    """
    if ready_ns is None:
        return []
    by_id = {(step.pid, step.id): step for step in steps}
    charges = []
    for event in events:
        if event.start_ns < ready_ns:
            continue
        step = by_id.get((event.pid, event.step)) if event.step is not None else None
        inferred = step is None
        if step is None:
            step = _open_step(steps, event)
        after = until_ns is not None and event.start_ns >= until_ns
        if after and (step is not None or event.origin != IN_REPO):
            continue
        paid = step.requests if step else _open_requests(requests, event)
        beside = _beside(step, steps, event) if step is not None and not inferred else ()
        paid = tuple(dict.fromkeys((*paid, *(name for s in beside for name in s.requests))))
        charges.append(Charge(event, paid, inferred or bool(beside)))
    return charges


def counted_loads(events: Iterable[Event], coverage: Coverage) -> list[Event]:
    """The loads that count: the driver's where it is armed, each one once."""
    return [event for event in events if coverage.counts(event)]


def loaded_variants(events: Iterable[Event], coverage: Coverage) -> tuple[Variant, ...]:
    """The in-repo variants that were loaded, each once, in the order they came."""
    loaded = {
        event.variant: None
        for event in counted_loads(events, coverage)
        if event.variant is not None and event.origin == IN_REPO
    }
    return tuple(loaded)


def root_of(event: Event, by_seq: Mapping[tuple[int, int], Event], kind: str) -> Event | None:
    """The nearest enclosing event of `kind`, or None."""
    parent = event.parent
    while parent is not None:
        found = by_seq.get((event.pid, parent))
        if found is None or found.kind == kind:
            return found
        parent = found.parent
    return None


def union_ms(spans: Iterable[tuple[int, int]]) -> float:
    """The length of a union of `(start_ns, end_ns)` intervals, in ms: overlaps count once."""
    total, reached = 0, None
    for start, end in sorted(spans):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total / 1e6


def _is_under(file: str, folder: str) -> bool:
    return file.startswith(folder.rstrip("/") + "/")


def _beside(step: Step, steps: Sequence[Step], event: Event) -> list[Step]:
    """Steps that overlap `step` on the thread of a driver event that no compiler's hook explains:
    tasks of one event loop, and nothing tells which of them it was."""
    if event.source != "driver" or event.parent is not None:
        return []
    return [
        other
        for other in steps
        if (other.pid, other.tid) == (event.pid, event.tid)
        and other.start_ns <= event.start_ns
        and (other.end_ns is None or other.end_ns >= event.start_ns)
        and not _within(step, other)
        and other.id != step.id
    ]


def _within(inner: Step, outer: Step) -> bool:
    """Whether one step lies wholly inside the other, as nested calls do."""
    if inner.start_ns < outer.start_ns:
        return False
    return outer.end_ns is None or (inner.end_ns is not None and inner.end_ns <= outer.end_ns)


def _open_requests(requests: Sequence[Request], event: Event) -> tuple[str, ...]:
    """An engine serves in other processes than the one that a request came to."""
    at_the_time = [
        request
        for request in requests
        if request.arrival_ns <= event.start_ns
        and (request.end_ns is None or event.start_ns <= request.end_ns)
    ]
    own = [request for request in at_the_time if request.pid == event.pid]
    return tuple(dict.fromkeys(request.id for request in own or at_the_time))


def _open_step(steps: Sequence[Step], event: Event) -> Step | None:
    for step in steps:
        if step.pid != event.pid or step.start_ns > event.start_ns:
            continue
        if step.end_ns is None or step.end_ns >= event.start_ns:
            return step
    return None
