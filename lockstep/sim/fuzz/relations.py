"""Relations of WHERE and IF: their text, and whether a row holds them.

Invariant: a comparison with what is null never holds, except `=` and `!=` with null in conditions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.binding import BIGINT, INT, Say, listed
from lockstep.sim.fuzz.tables import Column, Table


class Relation(msgspec.Struct, frozen=True):
    """`value` is a tuple for several columns, and of such for IN; `token` compares the token of all columns.

    `key` is of an element or a field: `m[key] = value`; with `token` the columns whose token the value is.
    """

    columns: tuple[str, ...]
    op: str
    value: Any
    token: bool = False
    key: Any = None

    def text(self, table: Table, say: Say) -> str:
        shown = [table.column(name) for name in self.columns]
        one = shown[0].kind
        if self.token:
            of_key = "" if self.key is None else f"token{_several(shown, self.key, say)}"
            return f"token({', '.join(self.columns)}) {self.op} {of_key or say(BIGINT, self.value)}"
        if self.key is not None:
            if one.name == "udt":
                place, part = f"{shown[0].name}.{one.fields[self.key]}", one.parts[self.key]
            else:
                element = INT if one.name == "list" else one.parts[0]
                place, part = f"{shown[0].name}[{say(element, self.key)}]", one.parts[-1]
            if self.op == "IN":
                return f"{place} IN {listed(say, part, self.value)}"
            return f"{place} {self.op} {say(part, self.value)}"
        if self.op == "CONTAINS":
            return f"{shown[0].name} CONTAINS {say(one.parts[-1], self.value)}"
        if self.op == "CONTAINS KEY":
            return f"{shown[0].name} CONTAINS KEY {say(one.parts[0], self.value)}"
        if len(shown) == 1 and self.op == "IN":
            return f"{shown[0].name} IN {listed(say, one, self.value)}"
        if len(shown) == 1:
            return f"{shown[0].name} {self.op} {say(one, self.value)}"
        left = f"({', '.join(self.columns)})"
        if self.op == "IN":
            return f"{left} IN ({', '.join(_several(shown, value, say) for value in self.value)})"
        return f"{left} {self.op} {_several(shown, self.value, say)}"


def _several(columns: Sequence[Column], values: Sequence[Any], say: Say) -> str:
    return f"({', '.join(say(c.kind, v) for c, v in zip(columns, values, strict=True))})"


def where_text(table: Table, relations: Sequence[Relation], say: Say) -> str:
    return " WHERE " + " AND ".join(r.text(table, say) for r in relations) if relations else ""


def keys_of(columns: Sequence[Column], where: Sequence[Relation]) -> list[tuple[Any, ...]]:
    """All combinations that `=` and IN name."""
    named = {r.columns[0]: r for r in where}
    options = []
    for column in columns:
        relation = named[column.name]
        options.append(tuple(relation.value) if relation.op == "IN" else (relation.value,))
    return list(itertools.product(*options))


def holds(table: Table, relation: Relation, of: Callable[[str], Any], token: int) -> bool:
    """Whether a row holds it; `of` gives the row's values."""
    if relation.token:
        return _compared(relation.op, token, relation.value)
    columns = [table.column(name) for name in relation.columns]
    kind = columns[0].kind
    held = of(columns[0].name)
    if relation.key is not None:
        return _element_holds(kind, held, relation)
    if relation.op == "CONTAINS":
        items = [] if held is None else [v for _, v in held] if kind.name == "map" else list(held)
        return any(_same(kind.parts[-1], item, relation.value) for item in items)
    if relation.op == "CONTAINS KEY":
        return held is not None and any(_same(kind.parts[0], key, relation.value) for key, _ in held)
    if len(columns) > 1:
        return _tuple_holds(columns, relation, tuple(of(column.name) for column in columns))
    if held is None:
        return False
    if relation.op == "IN":
        return any(_same(kind, held, value) for value in relation.value)
    return _compared(relation.op, kinds.order(kind, held), kinds.order(kind, relation.value))


def _element_holds(kind: kinds.Kind, held: Any, relation: Relation) -> bool:
    if held is None:
        return False
    if kind.name == "list":
        found = [held[relation.key]] if relation.key < len(held) else []
    else:
        found = [value for key, value in held if _same(kind.parts[0], key, relation.key)]
    part = kind.parts[-1]
    return any(
        _compared(relation.op, kinds.order(part, one), kinds.order(part, relation.value)) for one in found
    )


def _tuple_holds(columns: Sequence[Column], relation: Relation, held: tuple[Any, ...]) -> bool:
    if relation.op in ("=", "IN"):
        wanted = relation.value if relation.op == "IN" else (relation.value,)
        return any(
            all(_same(c.kind, one, other) for c, one, other in zip(columns, held, value, strict=True))
            for value in wanted
        )
    left = tuple(kinds.order(c.kind, v) for c, v in zip(columns, held, strict=True))
    right = tuple(kinds.order(c.kind, v) for c, v in zip(columns, relation.value, strict=True))
    return _compared(relation.op, left, right)


def _same(kind: kinds.Kind, one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(kinds.order(kind, one) == kinds.order(kind, other))


def _compared(op: str, left: Any, right: Any) -> bool:
    if op in ("=", "!="):
        return bool(left == right) is (op == "=")
    if op in ("<", "<="):
        return bool(left < right) or (op == "<=" and left == right)
    return bool(right < left) or (op == ">=" and left == right)


def condition_holds(table: Table, relation: Relation, values: dict[str, Any]) -> bool:
    """Of IF: null is a value like others, and less and more than nothing."""
    column = table.column(relation.columns[0])
    kind, held = column.kind, values.get(column.name)
    if relation.key is not None:
        kind, held = _element(kind, held, relation.key)
    if relation.op == "IN":
        return any(_same(kind, held, value) for value in relation.value)
    if relation.op.startswith("CONTAINS"):
        return holds(table, relation, values.get, 0)
    if relation.op in ("=", "!="):
        return _same(kind, held, relation.value) is (relation.op == "=")
    if held is None or relation.value is None:
        return False
    return _compared(relation.op, kinds.order(kind, held), kinds.order(kind, relation.value))


def _element(kind: kinds.Kind, held: Any, key: Any) -> tuple[kinds.Kind, Any]:
    """An element or a field; null where there is none."""
    if kind.name == "udt":
        return kind.parts[key], None if held is None else held[key]
    part = kind.parts[-1]
    if held is None:
        return part, None
    if kind.name == "list":
        return part, held[key] if key < len(held) else None
    return part, next((value for found, value in held if _same(kind.parts[0], found, key)), None)
