"""Which tensor arguments a Triton kernel may write, read from its source.

Conservative: what can't be followed counts as written. Used to drop the known
values of tensors that a launched kernel may have overwritten.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

#: Functions of triton.language whose first argument is written to.
STORES = ("store", "store_tensor_descriptor")
#: Modules whose other functions write nothing.
LANGUAGE_MODULES = ("triton.language", "triton.language.core", "triton.experimental")


@cache
def written_parameters(fn: Any) -> frozenset[str]:
    """Names of the parameters of the JITFunction `fn` that it may store to."""
    return _written(fn, ())


def _written(fn: Any, outer: tuple[Any, ...]) -> frozenset[str]:
    names = frozenset(fn.arg_names)
    if fn in outer:
        return names
    try:
        tree = fn.parse()
    except (SyntaxError, AssertionError, OSError):
        return names
    sources = {name: {name} for name in names}
    for _ in range(3):  # assignments in loops feed earlier lines: three rounds settle pointers
        for node in ast.walk(tree):
            _follow(node, sources)
    scope = fn.get_capture_scope() if hasattr(fn, "get_capture_scope") else fn.__globals__
    written: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            written |= _written_by_call(node, sources, scope, (*outer, fn))
    return frozenset(written & names)


def _follow(node: ast.AST, sources: dict[str, set[str]]) -> None:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        targets = [node.target]
    else:
        return
    if node.value is None:
        return
    found = _pointers_in(node.value, sources)
    for target in targets:
        for name in ast.walk(target):
            if isinstance(name, ast.Name):
                sources.setdefault(name.id, set()).update(found)


def _pointers_in(node: ast.AST, sources: dict[str, set[str]]) -> set[str]:
    """Parameters that an expression's value may point into; a loaded value points nowhere."""
    if isinstance(node, ast.Call) and _callee(node) == "load":
        return set()
    if isinstance(node, ast.Name):
        return sources.get(node.id, set())
    return {name for child in ast.iter_child_nodes(node) for name in _pointers_in(child, sources)}


def _written_by_call(
    node: ast.Call, sources: dict[str, set[str]], scope: dict[str, Any], outer: tuple[Any, ...]
) -> set[str]:
    name = _callee(node)
    values = [*node.args, *(keyword.value for keyword in node.keywords)]
    if name in STORES or name.startswith("atomic_"):
        method = isinstance(node.func, ast.Attribute) and _resolve(node.func.value, scope) is None
        first = node.func.value if method and isinstance(node.func, ast.Attribute) else values[0]
        return _pointers_in(first, sources) | _pointers_in(values[0], sources)
    callee = _resolve(node.func, scope)
    if hasattr(callee, "arg_names") and hasattr(callee, "parse"):
        inner = _written(callee, outer)
        passed = dict(zip(callee.arg_names, node.args, strict=False))
        passed |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        return {
            pointer
            for parameter, value in passed.items()
            if parameter in inner
            for pointer in _pointers_in(value, sources)
        }
    module = getattr(callee, "__module__", "") or ""
    if callee is None and isinstance(node.func, ast.Attribute):
        return set()  # a method of a tensor value: `.to(...)`, `.load(...)`
    if module.startswith(LANGUAGE_MODULES) or module == "builtins":
        return set()
    return {pointer for value in values for pointer in _pointers_in(value, sources)}


def _callee(node: ast.Call) -> str:
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _resolve(node: ast.AST, scope: dict[str, Any]) -> Any:
    """The object a dotted name stands for in the kernel's module, or None."""
    if isinstance(node, ast.Name):
        import builtins

        return scope.get(node.id, getattr(builtins, node.id, None))
    if isinstance(node, ast.Attribute):
        owner = _resolve(node.value, scope)
        return getattr(owner, node.attr, None) if owner is not None else None
    return None
