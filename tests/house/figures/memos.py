"""Places that write behind the back of a frozen value: into its `__dict__`, or past its `__setattr__`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ..sources import dotted
from .tree import Tree

_WRITERS = ("setdefault", "update", "pop")
_FORCED = ("object.__setattr__", "msgspec.structs.force_setattr", "structs.force_setattr", "force_setattr")


def memos(tree: Tree) -> dict[str, int]:
    """{module: writes}."""
    found = {
        source.module: sum(1 for _ in _writes(source.tree))
        for source in tree.sources
        if "__dict__" in source.text or "setattr" in source.text
    }
    return {module: count for module, count in found.items() if count}


def cached_properties(tree: Tree) -> int:
    """How many `functools.cached_property` there are: the memo that says what it is."""
    return sum(
        dotted(item).rpartition(".")[2] == "cached_property"
        for source in tree.sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef)
        for item in node.decorator_list
    )


def _writes(tree: ast.Module) -> Iterator[int]:
    """Lines of the writes. A name bound to some `__dict__` stands for it until the end of its function."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    seen: set[ast.AST] = set()
    for scope in (*functions, tree):
        names = {name for node in ast.walk(scope) for name in _bound(node)}
        for node in ast.walk(scope):
            if node not in seen and _writes_here(node, names if scope is not tree else set()):
                seen.add(node)
                yield getattr(node, "lineno", 1)


def _bound(node: ast.AST) -> Iterator[str]:
    if (
        isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and _is_dict(node.value, set())
    ):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _writes_here(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Subscript):
        return not isinstance(node.ctx, ast.Load) and _is_dict(node.value, names)
    if isinstance(node, ast.Call):
        if dotted(node.func) in _FORCED:
            return True
        function = node.func
        return (
            isinstance(function, ast.Attribute)
            and function.attr in _WRITERS
            and _is_dict(function.value, names)
        )
    return False


def _is_dict(node: ast.expr, names: set[str]) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "__dict__"
    return isinstance(node, ast.Name) and node.id in names
