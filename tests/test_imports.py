"""Imports point one way (docs/architecture.md): read from the source with `ast`, nothing is run.

A new module is entered in LAYER_OF; one that isn't fails here, so that its place is a decision.
"""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MODULES_OF = {
    "data": ["events", "errors"],
    "pure": [
        "attribution",
        "variants",
        "causes",
        "diagnosis",
        "verdict",
        "evidence",
        "uses",
        "prove",
    ],
    "report": ["report"],
    "render": [
        "render",
        "render.frames",
        "render.html",
        "render.json",
        "render.lengths",
        "render.map_figure",
        "render.terminal",
        "render.variant_map",
    ],
    "recorder": ["recorder", "records"],
    "sources": [
        "sources",
        "sources.compilers",
        "sources.driver",
        "sources.driver_library",
        "sources.driver_log",
        "sources.injected",
        "sources.triton",
        "sources.triton_variant",
    ],
    "simulate": [
        "simulate",
        "simulate.assumptions",
        "simulate.boards",
        "simulate.cubin",
        "simulate.cuda",
        "simulate.custom_ops",
        "simulate.device_api",
        "simulate.devices",
        "simulate.driver",
        "simulate.generators",
        "simulate.getters",
        "simulate.graphs",
        "simulate.indexing",
        "simulate.keys",
        "simulate.launched",
        "simulate.memory",
        "simulate.native",
        "simulate.patches",
        "simulate.readback",
        "simulate.rules",
        "simulate.shortcuts",
        "simulate.streams",
        "simulate.strides",
        "simulate.tensors",
        "simulate.transfers",
        "simulate.values",
        "simulate.writes",
    ],
    # Reading a run directory decodes the driver's records and ends in a report: above both.
    "reader": ["log"],
    "targets": [
        "targets",
        "targets.callable",
        "targets.devices",
        "targets.engine",
        "targets.server",
        "targets.worker",
    ],
    # Runs inside other people's programs: it imports little, and late.
    "live": ["live", "inject.sitecustomize"],
    "api": [""],
    "leaves": [
        "child",
        "sweep",
        "sweep_server",
        "progress",
        "follow",
        "provenance",
        "run",
        "plugin",
        "cli",
        "doctor",
        "__main__",
    ],
}

ENGINE_MODULES_OF = {
    "engine data": ["checks", "config", "errors", "observe", "request"],
    "engine kernels": ["kernels", "kernels.*"],
    "engine state": ["batch", "hf_config", "hf_rope", "kv_cache", "loader", "state_cache"],
    "engine layers": ["attention.*", "layers.*", "moe.*"],
    "engine models": ["models.*"],
    "engine runner": ["graphs", "runner", "sampler"],
    "engine api": ["", "llm", "memory", "options", "prompts", "tokenizer", "warmup"],
}

#: What a layer may import beside its own modules.
MAY_IMPORT = {
    "data": set(),
    "pure": {"data"},
    "report": {"data", "pure"},
    "render": {"data", "pure", "report"},
    "recorder": {"data"},
    "sources": {"data", "pure", "recorder"},
    "simulate": {"data", "pure", "recorder", "sources"},
    "reader": {"data", "pure", "report", "recorder", "sources"},
    "targets": {"data", "pure", "recorder", "sources", "simulate", "reader"},
    "live": {"data", "recorder", "sources"},
    "api": {"data", "pure", "report", "recorder", "sources", "reader", "live"},
    "leaves": set(MODULES_OF) - {"leaves"},
    "engine data": set(),
    "engine kernels": set(),
    "engine state": {"engine data"},
    "engine layers": {"engine data", "engine state"},
    "engine models": {"engine data", "engine state", "engine layers"},
    "engine runner": {"engine data", "engine state", "engine models"},
    "engine api": {
        "engine data",
        "engine state",
        "engine kernels",
        "engine models",
        "engine runner",
    },
}

LAYER_OF = {
    f"jitwatch.{name}".rstrip("."): layer for layer, names in MODULES_OF.items() for name in names
}


def layer_of(module: str) -> str | None:
    """The layer of a module; `engine.layers.*` names all that lies in that package."""
    package, _, name = module.partition(".")
    if package != "engine":
        return LAYER_OF.get(module)
    for layer, patterns in ENGINE_MODULES_OF.items():
        for pattern in patterns:
            whole = pattern.removesuffix(".*")
            if name == whole or (pattern != whole and name.startswith(f"{whole}.")):
                return layer
    return None


#: Layers that are functions of their arguments, and what would make them something else.
PURE_LAYERS = {"data", "pure", "report"}
IO = {"asyncio", "ctypes", "io", "logging", "multiprocessing", "os", "pathlib", "shutil", "socket"}
PROCESS = {"signal", "subprocess", "sys", "tempfile", "threading", "urllib"}
CHANCE_AND_CLOCK = {"datetime", "random", "time"}
LIBRARIES = {"numpy", "pandas", "pytest", "rich", "torch", "triton"}
IMPURE = IO | PROCESS | CHANCE_AND_CLOCK | LIBRARIES
#: Builtins that do I/O without an import.
IMPURE_BUILTINS = {"open", "print", "input", "__import__"}

#: Words that the engine must not know: who watches it, and where it isn't really running.
FOREIGN_TO_ENGINE = re.compile(r"\b(jitwatch|meta|sim)\b")


def imports_of(module: str, tree: ast.AST, *, is_package: bool, known: set[str]) -> Iterator[str]:
    """Every module that `tree` imports, at any depth; a name that isn't a module is dropped."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                above = parts[: len(parts) - node.level + is_package]
                base = ".".join([*above, base]).rstrip(".")
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                yield submodule if submodule in known else base


def read_package(package: str) -> dict[str, tuple[str, bool]]:
    """Dotted module name → (source text, whether it is a package) of what lies in the checkout."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        found[".".join(parts[:-1] if is_package else parts)] = (path.read_text(), is_package)
    return found


class WithoutTypeChecking(ast.NodeTransformer):
    """Drops what only a type checker runs."""

    def visit_If(self, node: ast.If) -> ast.AST | None:
        self.generic_visit(node)
        return None if ast.unparse(node.test).endswith("TYPE_CHECKING") else node


def graph_of(
    modules: Mapping[str, tuple[str, bool]], *, at_run_time: bool = False
) -> dict[str, set[str]]:
    """Module → what it imports; `at_run_time` leaves out what is imported for types only."""
    known = set(modules) | set(LAYER_OF) | set(read_package("engine"))
    graph = {}
    for name, (text, is_package) in modules.items():
        tree: ast.AST = ast.parse(text)
        if at_run_time:
            tree = WithoutTypeChecking().visit(tree)
        graph[name] = set(imports_of(name, tree, is_package=is_package, known=known))
    return graph


def direction_faults(modules: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Modules without a layer, imports against the direction, and cycles."""
    graph = graph_of(modules)
    faults = [f"{name} is in no layer of MODULES_OF" for name in graph if layer_of(name) is None]
    for name, imported in graph.items():
        layer = layer_of(name)
        for other in sorted(imported):
            other_layer = layer_of(other)
            if layer is None or other_layer in (None, layer):
                continue
            if other_layer not in MAY_IMPORT[layer]:
                faults.append(f"{name} ({layer}) imports {other} ({other_layer})")
    running = graph_of(modules, at_run_time=True)
    inside = {name: {n for n in running[name] if n in graph and n != name} for name in graph}
    try:
        graphlib.TopologicalSorter(inside).prepare()
    except graphlib.CycleError as error:
        faults.append(f"import cycle: {' <- '.join(error.args[1])}")
    return faults


def purity_faults(modules: Mapping[str, tuple[str, bool]]) -> list[str]:
    """I/O, clocks and GPU libraries in the pure layers; pandas outside its one module."""
    faults = []
    for name, imported in graph_of(modules).items():
        roots = {other.partition(".")[0] for other in imported}
        if name != "jitwatch.render.frames" and "pandas" in roots:
            faults.append(f"{name} imports pandas: only jitwatch.render.frames does")
        if LAYER_OF.get(name) not in PURE_LAYERS:
            continue
        faults += [f"{name} is pure and imports {root}" for root in sorted(roots & IMPURE)]
        faults += [
            f"{name} is pure and calls {node.func.id}()"
            for node in ast.walk(ast.parse(modules[name][0]))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in IMPURE_BUILTINS
        ]
    return faults


def engine_faults(modules: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Names, attributes, imports and strings of the engine that know the detector."""
    faults = []
    for name, (text, _) in modules.items():
        for node in ast.walk(ast.parse(text)):
            for word in words_of(node):
                faults += [f"{name} names {m}" for m in FOREIGN_TO_ENGINE.findall(word)]
    return faults


def words_of(node: ast.AST) -> Iterator[str]:
    """The identifiers and strings that this one node holds itself."""
    for field in ("id", "attr", "arg", "name", "asname", "module"):
        value = getattr(node, field, None)
        if isinstance(value, str):
            yield value
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def test_imports_point_one_way() -> None:
    assert direction_faults(read_package("jitwatch")) == []


def test_the_engines_imports_point_one_way() -> None:
    assert direction_faults(read_package("engine")) == []


def test_judging_is_pure_and_pandas_stays_in_frames() -> None:
    assert purity_faults(read_package("jitwatch")) == []


def test_the_engine_does_not_know_that_it_is_watched() -> None:
    assert engine_faults(read_package("engine")) == []


def test_importing_the_plugin_pulls_in_no_heavy_library() -> None:
    script = (
        "import sys; import jitwatch.plugin; "
        "print(sorted({'torch', 'triton', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        (
            "jitwatch.events",
            "from jitwatch.report import Report",
            "jitwatch.events (data) imports jitwatch.report (report)",
        ),
        (
            "jitwatch.render.terminal",
            "def late():\n    from jitwatch.sources import driver",
            "jitwatch.render.terminal (render) imports jitwatch.sources.driver (sources)",
        ),
        (
            "jitwatch.sources.triton",
            "from ..sweep import run",
            "jitwatch.sources.triton (sources) imports jitwatch.sweep (leaves)",
        ),
        (
            "jitwatch.causes",
            "import jitwatch",
            "jitwatch.causes (pure) imports jitwatch (api)",
        ),
        ("jitwatch.nowhere", "", "jitwatch.nowhere is in no layer of MODULES_OF"),
        (
            "engine.layers.norm",
            "from engine.kernels import norm",
            "engine.layers.norm (engine layers) imports engine.kernels.norm (engine kernels)",
        ),
        (
            "engine.models.llama",
            "from engine import runner",
            "engine.models.llama (engine models) imports engine.runner (engine runner)",
        ),
    ],
)
def test_a_wrong_direction_is_found(module: str, text: str, fault: str) -> None:
    assert direction_faults({module: (text, False)}) == [fault]


def test_a_type_points_one_way_too_but_makes_no_cycle() -> None:
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from jitwatch.{} import X\n"
    two = {"jitwatch.causes": ("from jitwatch import variants", False)}
    assert direction_faults({**two, "jitwatch.variants": (typed.format("causes"), False)}) == []
    assert direction_faults({**two, "jitwatch.variants": (typed.format("report"), False)}) == [
        "jitwatch.variants (pure) imports jitwatch.report (report)"
    ]


def test_a_cycle_is_found() -> None:
    faults = direction_faults(
        {
            "jitwatch.causes": ("from jitwatch import variants", False),
            "jitwatch.variants": ("from . import causes", False),
        }
    )
    assert len(faults) == 1
    assert faults[0].startswith("import cycle: ")


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        ("jitwatch.verdict", "import os.path", "jitwatch.verdict is pure and imports os"),
        (
            "jitwatch.report",
            "from pathlib import Path",
            "jitwatch.report is pure and imports pathlib",
        ),
        ("jitwatch.variants", "open('x')", "jitwatch.variants is pure and calls open()"),
        (
            "jitwatch.render.json",
            "import pandas as pd",
            "jitwatch.render.json imports pandas: only jitwatch.render.frames does",
        ),
    ],
)
def test_an_impure_module_is_found(module: str, text: str, fault: str) -> None:
    assert purity_faults({module: (text, False)}) == [fault]


def test_what_is_allowed_is_not_a_fault() -> None:
    modules = {
        "jitwatch.render.frames": ("import pandas\nfrom jitwatch.report import Report", False),
        "jitwatch.recorder": ("import os, time\nfrom jitwatch.events import Event", False),
        "jitwatch.sources": ("from jitwatch.sources import driver", True),
        "jitwatch.sources.driver": ("from ..events import Event", False),
    }
    assert direction_faults(modules) == []
    assert purity_faults(modules) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("import jitwatch", "engine.runner names jitwatch"),
        ("if x.device.type == 'meta': pass", "engine.runner names meta"),
        ("def run(sim): pass", "engine.runner names sim"),
    ],
)
def test_an_engine_that_knows_is_found(text: str, fault: str) -> None:
    assert engine_faults({"engine.runner": (text, False)}) == [fault]


def test_metadata_is_not_meta() -> None:
    assert engine_faults({"engine.runner": ("metadata = 'simple'", False)}) == []
