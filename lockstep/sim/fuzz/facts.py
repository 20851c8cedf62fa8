"""What was written to a table, what of it can be seen at a time, and which rows a relation of WHERE or IF
holds for.

Invariant: nothing is ever forgotten or merged: every write adds facts, and a look takes the strongest of all
facts of a place. Slow, and hardly possible to get wrong. A comparison with what is null never holds, except
`=` and `!=` with null in conditions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.kinds import BIGINT, INT, Say, listed
from lockstep.sim.fuzz.tables import Column, Table, rank
from lockstep.values.tokens import token_of


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


class Cell(msgspec.Struct, frozen=True):
    """`value` None is a tombstone; `ends_s` is when it expires, or was deleted."""

    stamp: int
    value: Any
    raw: bytes
    ttl_s: int
    ends_s: int


class Mark(msgspec.Struct, frozen=True):
    """That an INSERT made the row."""

    stamp: int
    ttl_s: int
    ends_s: int


class Row:
    """Facts of one row: cells by column and path; paths of lists sort as their elements do."""

    def __init__(self, clustering: tuple[Any, ...]) -> None:
        self.clustering = clustering
        self.marks: list[Mark] = []
        self.deletions: list[int] = []
        self.cells: dict[str, dict[Any, list[Cell]]] = {}
        self.columns: dict[str, list[int]] = {}

    def put(self, column: str, path: Any, cell: Cell) -> None:
        self.cells.setdefault(column, {}).setdefault(path, []).append(cell)


class Seen(msgspec.Struct):
    """A visible row: values by column, and the cells that they are of."""

    values: dict[str, Any]
    cells: dict[str, list[tuple[Any, Cell]]]
    live: bool


class Facts:
    """Facts of one partition."""

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key
        self.deletions: list[int] = []
        #: (what the clusterings hold that it covers, timestamp).
        self.ranges: list[tuple[tuple[Relation, ...], int]] = []
        self.rows: dict[tuple[bytes, ...], Row] = {}
        self.static = Row(())


class Content:
    """All partitions of one table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.partitions: dict[tuple[bytes, ...], Facts] = {}
        #: Until when cells of a column are dead, that was dropped with a timestamp.
        self.dead: dict[str, int] = {}

    def partition(self, key: tuple[Any, ...]) -> Facts:
        place = _wires(self.table.of("partition"), key)
        return self.partitions.setdefault(place, Facts(key))

    def row(self, key: tuple[Any, ...], clustering: tuple[Any, ...]) -> Row:
        place = _wires(self.table.of("clustering"), clustering)
        return self.partition(key).rows.setdefault(place, Row(clustering))

    def forget(self, column: str, stamp: int | None) -> None:
        """The column is dropped, and comes back empty; what is written at the drop's timestamp or below it is
        dead also then."""
        if stamp is not None:
            self.dead[column] = max(stamp, self.dead.get(column, stamp))
        for facts in self.partitions.values():
            for row in (*facts.rows.values(), facts.static):
                row.cells.pop(column, None)
                row.columns.pop(column, None)

    def token(self, key: tuple[Any, ...]) -> int:
        return token_of(self.key_bytes(key))

    def key_bytes(self, key: tuple[Any, ...]) -> bytes:
        parts = _wires(self.table.of("partition"), key)
        if len(parts) == 1:
            return parts[0]
        return b"".join(len(part).to_bytes(2, "big") + part + b"\0" for part in parts)

    def in_token_order(self) -> list[Facts]:
        return sorted(self.partitions.values(), key=lambda f: (self.token(f.key), self.key_bytes(f.key)))

    def rows(self, facts: Facts, now_s: int) -> list[tuple[tuple[Any, ...], Seen]]:
        """Visible rows of a partition as they lie there."""
        columns = self.table.of("clustering")
        found = []
        for row in sorted(facts.rows.values(), key=lambda row: rank(columns, row.clustering)):
            seen = self._row(facts, row, now_s)
            if seen.live:
                found.append((row.clustering, seen))
        return found

    def _row(self, facts: Facts, row: Row, now_s: int) -> Seen:
        names = [column.name for column in self.table.of("clustering")]
        values = dict(zip(names, row.clustering, strict=True))
        covers = [
            stamp
            for relations, stamp in facts.ranges
            if all(holds(self.table, relation, values.__getitem__, 0) for relation in relations)
        ]
        return self.see(row, [*facts.deletions, *covers], self.table.of("regular"), now_s)

    def static(self, facts: Facts, now_s: int) -> Seen:
        return self.see(facts.static, facts.deletions, self.table.of("static"), now_s)

    def find(self, key: tuple[Any, ...], clustering: tuple[Any, ...], now_s: int) -> Seen | None:
        """One row, when it is visible."""
        facts = self.partition(key)
        row = facts.rows.get(_wires(self.table.of("clustering"), clustering))
        seen = None if row is None else self._row(facts, row, now_s)
        return seen if seen is not None and seen.live else None

    def see(self, row: Row, deletions: list[int], columns: tuple[Column, ...], now_s: int) -> Seen:
        """What is left of a row under its own and outer deletions."""
        covered = max([*deletions, *row.deletions], default=_NEVER)
        mark = max(row.marks, key=_mark_strength, default=None)
        live = mark is not None and mark.stamp > covered and not _over(mark, now_s)
        seen = Seen({}, {}, live)
        for column in columns:
            gone = max([covered, *row.columns.get(column.name, ())])
            cells = [
                (path, winner)
                for path, rivals in row.cells.get(column.name, {}).items()
                for winner in [rivals[0] if len(rivals) == 1 else max(rivals, key=_strength)]
                if winner.stamp > gone and winner.value is not None and not _over(winner, now_s)
            ]
            seen.cells[column.name] = _sorted_cells(column.kind, cells)
            seen.values[column.name] = _value(column.kind, seen.cells[column.name])
            seen.live = seen.live or bool(cells)
        return seen


_NEVER = -(1 << 63)


def _wires(columns: tuple[Column, ...], values: tuple[Any, ...]) -> tuple[bytes, ...]:
    return tuple(kinds.wire(column.kind, value) for column, value in zip(columns, values, strict=True))


def _over(fact: Cell | Mark, now_s: int) -> bool:
    return fact.ttl_s > 0 and fact.ends_s <= now_s


def _strength(cell: Cell) -> tuple[Any, ...]:
    return (cell.stamp, cell.value is None, cell.ttl_s > 0, cell.ends_s, cell.raw)


def _mark_strength(mark: Mark) -> tuple[Any, ...]:
    return (mark.stamp, mark.ttl_s > 0, mark.ends_s)


def _sorted_cells(kind: kinds.Kind, cells: list[tuple[Any, Cell]]) -> list[tuple[Any, Cell]]:
    if kind.is_cells and kind.name in ("set", "map"):
        return sorted(cells, key=lambda pair: kinds.order(kind.parts[0], pair[0]))
    return sorted(cells, key=lambda pair: pair[0]) if kind.is_cells else cells


def _value(kind: kinds.Kind, cells: list[tuple[Any, Cell]]) -> Any:
    """A column's value out of its visible cells; None when there are none."""
    if not cells:
        return None
    if not kind.is_cells:
        return cells[0][1].value
    if kind.name == "map":
        return tuple((path, cell.value) for path, cell in cells)
    if kind.name == "udt":
        held = dict(cells)
        return tuple(held[place].value if place in held else None for place in range(len(kind.parts)))
    return tuple(path if kind.name == "set" else cell.value for path, cell in cells)


def each(content: Content, now_s: int) -> Iterator[tuple[Facts, Seen, list[tuple[tuple[Any, ...], Seen]]]]:
    """(facts, static row, rows) of all partitions in the order of tokens."""
    for facts in content.in_token_order():
        yield facts, content.static(facts, now_s), content.rows(facts, now_s)
