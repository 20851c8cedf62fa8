"""Assertions in the pure rooms: what they hold, and whether they stand in passing or in a validate()."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from ..sources import Source, dotted

#: A room that is pure but for the notes that a request carries along.
BESIDE: Final = ("quorum",)
#: Statements of a function, its docstring and assertions left out, from which it is counted as a larger one.
LARGER_STATEMENTS_MIN: Final = 3

#: Per room, what the figure "with validate" may not fall below; it only rises.
FLOORS: Final[Mapping[str, float]] = {
    "consensus": 0.62,
    "cql": 0.09,
    "gossip": 0.55,
    "metadata": 0.37,
    "placement": 0.44,
    "quorum": 0.45,
    "recovery": 0.3,
    "ring": 0.45,
    "schema": 0.2,
    "topology": 0.31,
    "tracking": 0.3,
    "values": 0.27,
}


def below_floors(found: Mapping[str, Mapping[str, float]], floors: Mapping[str, float]) -> list[str]:
    """Rooms with fewer assertions than they had, and what they have."""
    return [
        f"{room}: {found[room]['with validate']} assertions a function, and there were {floor}"
        for room, floor in floors.items()
        if found[room]["with validate"] < floor
    ]


class Asserts(NamedTuple):
    """Of one room. `narrowing` tells only a type; `in_validate` and `invariants` say something of a value.
    `larger` are the functions of LARGER_STATEMENTS_MIN statements: a property that returns a field has no
    invariant of its own."""

    functions: int = 0
    narrowing: int = 0
    in_validate: int = 0
    invariants: int = 0
    larger: int = 0

    def plus(self, other: Asserts) -> Asserts:
        return Asserts(*(one + two for one, two in zip(self, other, strict=True)))


def asserts(
    sources: Iterable[Source], rooms: Iterable[str], beside: Iterable[str] = ()
) -> dict[str, dict[str, float]]:
    """Per room, and of all `rooms` together, with invariants per function without and with validate(), and
    the latter per larger function. Rooms `beside` are counted by themselves alone."""
    rooms = tuple(rooms)
    found = {room: Asserts() for room in (*rooms, *beside)}
    for source in sources:
        if source.room in found:
            found[source.room] = found[source.room].plus(count(source))
    whole = Asserts()
    for room in rooms:
        whole = whole.plus(found[room])
    return {room: _row(one) for room, one in (*sorted(found.items()), ("all pure rooms", whole))}


def _row(one: Asserts) -> dict[str, float]:
    functions = max(one.functions, 1)
    return {
        **one._asdict(),
        "per function": round(one.invariants / functions, 3),
        "with validate": round((one.invariants + one.in_validate) / functions, 3),
        "per larger": round((one.invariants + one.in_validate) / max(one.larger, 1), 3),
    }


def count(source: Source) -> Asserts:
    functions = narrowing = in_validate = invariants = larger = 0
    waiting: list[tuple[ast.AST, bool]] = [(source.tree, False)]
    while waiting:
        node, validating = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
            larger += is_larger(node)
            validating = validating or is_validate(node.name)
        elif isinstance(node, ast.Assert):
            narrowing += (narrow := narrows(node.test))
            in_validate += validating and not narrow
            invariants += not validating and not narrow
        waiting += [(child, validating) for child in ast.iter_child_nodes(node)]
    return Asserts(functions, narrowing, in_validate, invariants, larger)


def is_larger(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it has three statements, at any depth, that are neither assertions nor its docstring."""
    statements = [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]
    said = sum(isinstance(node, ast.Assert) for node in statements)
    said += ast.get_docstring(function, clean=False) is not None
    return len(statements) - said >= LARGER_STATEMENTS_MIN


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
