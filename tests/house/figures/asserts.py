"""Assertions in the pure rooms: what they hold, and whether they stand in passing or in a validate()."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import NamedTuple

from ..sources import Source, dotted
from .tree import Tree


class Asserts(NamedTuple):
    """Of one room. `narrowing` tells only a type; `in_validate` and `invariants` say something of a value."""

    functions: int = 0
    narrowing: int = 0
    in_validate: int = 0
    invariants: int = 0

    def plus(self, other: Asserts) -> Asserts:
        return Asserts(*(one + two for one, two in zip(self, other, strict=True)))


def asserts(tree: Tree, rooms: Iterable[str]) -> dict[str, dict[str, float]]:
    """Per room, and of all of them together, with invariants per function without and with validate()."""
    found = {room: Asserts() for room in rooms}
    for source in tree.sources:
        if source.room in found:
            found[source.room] = found[source.room].plus(count(source))
    whole = Asserts()
    for one in found.values():
        whole = whole.plus(one)
    return {room: _row(one) for room, one in (*sorted(found.items()), ("all pure rooms", whole))}


def _row(one: Asserts) -> dict[str, float]:
    functions = max(one.functions, 1)
    return {
        **one._asdict(),
        "per function": round(one.invariants / functions, 3),
        "with validate": round((one.invariants + one.in_validate) / functions, 3),
    }


def count(source: Source) -> Asserts:
    functions = narrowing = in_validate = invariants = 0
    waiting: list[tuple[ast.AST, bool]] = [(source.tree, False)]
    while waiting:
        node, validating = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
            validating = validating or is_validate(node.name)
        elif isinstance(node, ast.Assert):
            narrowing += (narrow := narrows(node.test))
            in_validate += validating and not narrow
            invariants += not validating and not narrow
        waiting += [(child, validating) for child in ast.iter_child_nodes(node)]
    return Asserts(functions, narrowing, in_validate, invariants)


def is_validate(name: str) -> bool:
    """validate, _validate_log, validate_operations, ..."""
    return name.strip("_").partition("_")[0] == "validate"


def narrows(test: ast.expr) -> bool:
    """Whether an assertion only tells a type checker what a thing is: `x is not None`, isinstance, callable.

    Of `a and b` all parts must; of `a or b` too.
    """
    if isinstance(test, ast.BoolOp):
        return all(narrows(value) for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return isinstance(test.operand, ast.Call) and narrows(test.operand)
    if isinstance(test, ast.Call):
        return dotted(test.func) in ("isinstance", "issubclass", "callable")
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.IsNot):
        right = test.comparators[0]
        return isinstance(right, ast.Constant) and right.value is None
    return False
