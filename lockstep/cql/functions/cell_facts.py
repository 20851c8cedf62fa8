"""writetime, maxwritetime and ttl: of columns, and of elements, fields and slices of them.

Invariant: what a value is made of is told in the order of its parts: of a user's type one fact for each
field, null where it has none; what is not there has no facts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from lockstep.cql.bind import evaluation
from lockstep.cql.bind.evaluation import Evaluate, Moment, Record
from lockstep.cql.compile.literals import shown
from lockstep.cql.compile.prepared import TableShape
from lockstep.cql.parse import tree
from lockstep.schema.model import ColumnKind
from lockstep.schema.types import CqlType, ListType, MapType, SetType, UserDefinedType, field_position
from lockstep.values.errors import InvalidRequest
from lockstep.values.rows import Cell

NAMES = ("ttl", "writetime", "maxwritetime")
_PARTS = tree.Element | tree.Span | tree.Field

#: The cells that are asked about, None for a field without one.
Choose = Callable[[Sequence[Cell], Record, Moment], Sequence[Cell | None]]


class Compiler(Protocol):
    """What compiles the expressions of one SELECT, as far as facts of cells need it."""

    shape: TableShape

    def cell_slot(self, column: int, *, whole: bool) -> int: ...

    def compile(self, term: tree.Term) -> tuple[Evaluate, CqlType]: ...

    def plain_term(self, term: tree.Term, kind: CqlType) -> tuple[Evaluate, CqlType]: ...


def cell_fact(expressions: Compiler, call: tree.Call) -> tuple[Evaluate, CqlType]:
    term = call.arguments[0] if len(call.arguments) == 1 else None
    named, first = term, None
    while isinstance(named, _PARTS):
        # What is selected from a slice is told apart by its own key.
        sliced = isinstance(named, tree.Span) and not isinstance(first, tree.Span | None)
        named, first = named.term, first if sliced else named
    if not isinstance(named, tree.ColumnName):
        raise InvalidRequest(f"{call.name} expects a column, or an element, slice or field of one")
    column = expressions.shape.column(named.name)
    if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        raise InvalidRequest(f"Cannot use selection function {call.name} on PRIMARY KEY part {column.name}")
    kind = expressions.shape.types[column.name]
    if kind.name == "counter":
        raise InvalidRequest(f"Cannot use selection function {call.name} on counters")
    returns = evaluation.INT if call.name == "ttl" else evaluation.BIGINT
    index = expressions.cell_slot(column.id, whole=kind.is_multicell)
    empty = _NO_PARTS if isinstance(term, tree.Span) else None
    if not kind.is_multicell:
        there = expressions.compile(term)[0] if isinstance(term, _PARTS) else None
        return _of_one(index, _FACTS[call.name], there, empty), returns
    choose = _choice(expressions, first, kind)
    if isinstance(term, _PARTS) and isinstance(term.term, _PARTS):
        if isinstance(first, tree.Span):
            raise InvalidRequest(f"{call.name} of a slice of a slice is not supported")
        there = expressions.compile(term)[0]
        return _of_inner(index, _FACTS[call.name], choose, there, empty), returns
    if call.name == "maxwritetime":
        return _newest(index, choose), returns
    single = isinstance(term, tree.Element | tree.Field)
    told = _of_several(index, _FACTS[call.name], choose, single=single)
    return told, returns if single else ListType(returns, frozen=False)


# ---- facts


def _write_time(cell: Cell, now_s: int) -> bytes:
    return cell.timestamp_us.to_bytes(8, "big", signed=True)


def _time_to_live(cell: Cell, now_s: int) -> bytes | None:
    if not cell.ttl_s:
        return None
    return max(cell.expires_at_s - now_s, 0).to_bytes(4, "big", signed=True)


Fact = Callable[[Cell, int], bytes | None]
#: A collection of nothing, which is what a slice beside all that is there comes to.
_NO_PARTS = bytes(4)
_FACTS: dict[str, Fact] = {"ttl": _time_to_live, "writetime": _write_time, "maxwritetime": _write_time}


def _of_one(index: int, fact: Fact, there: Evaluate | None, empty: bytes | None) -> Evaluate:
    """Of a value that is one cell; `there` is the part that is asked about, which may be missing or empty."""

    def evaluate(record: Record, moment: Moment) -> bytes | None:
        cell: Cell | None = record[-1 - index]
        if cell is None or (there is not None and there(record, moment) in (None, empty)):
            return None
        return fact(cell, moment.context.now_s)

    return evaluate


def _of_several(index: int, fact: Fact, choose: Choose, *, single: bool) -> Evaluate:
    def evaluate(record: Record, moment: Moment) -> bytes | None:
        chosen = choose(record[-1 - index] or (), record, moment)
        told = [None if cell is None else fact(cell, moment.context.now_s) for cell in chosen]
        if single:
            return told[0] if told else None
        # A part without the fact is null, which lists of values cannot be read with by every client.
        return _with_nulls(told) if told else None

    return evaluate


def _of_inner(index: int, fact: Fact, choose: Choose, there: Evaluate, empty: bytes | None) -> Evaluate:
    """Of a part of an element or field, which is as old as that; `there` is the part itself."""

    def evaluate(record: Record, moment: Moment) -> bytes | None:
        if there(record, moment) in (None, empty):
            return None
        chosen = choose(record[-1 - index] or (), record, moment)
        return next((fact(cell, moment.context.now_s) for cell in chosen if cell is not None), None)

    return evaluate


def _newest(index: int, choose: Choose) -> Evaluate:
    def evaluate(record: Record, moment: Moment) -> bytes | None:
        chosen = choose(record[-1 - index] or (), record, moment)
        newest = max((cell for cell in chosen if cell is not None), key=_stamp, default=None)
        return None if newest is None else _write_time(newest, 0)

    return evaluate


def _stamp(cell: Cell) -> int:
    return cell.timestamp_us


def _with_nulls(parts: Sequence[bytes | None]) -> bytes:
    out = [len(parts).to_bytes(4, "big")]
    for part in parts:
        out.append(b"\xff\xff\xff\xff" if part is None else len(part).to_bytes(4, "big") + part)
    return b"".join(out)


# ---- which cells


def _choice(expressions: Compiler, term: tree.Term | None, kind: CqlType) -> Choose:
    if isinstance(term, tree.Field):
        return _field(position_in(term, kind))
    if isinstance(term, tree.Element):
        of_key = key_type(term, kind)
        key = expressions.plain_term(term.key, of_key)[0]
        return _between(of_key, f"element selection on {shown(term.term)}", (key, key))
    if isinstance(term, tree.Span):
        of_key = key_type(term, kind)
        ends = [
            None if end is None else expressions.plain_term(end, of_key)[0] for end in (term.low, term.high)
        ]
        return _between(of_key, f"slice selection on {shown(term.term)}", ends)
    if isinstance(kind, UserDefinedType):
        return _fields(len(kind.elements))
    return lambda cells, record, moment: _in_order(kind, cells)


def _field(position: int) -> Choose:
    def choose(cells: Sequence[Cell], record: Record, moment: Moment) -> Sequence[Cell | None]:
        return [cell for cell in cells if field_position(cell.path or b"") == position]

    return choose


def _fields(count: int) -> Choose:
    def choose(cells: Sequence[Cell], record: Record, moment: Moment) -> Sequence[Cell | None]:
        held = {field_position(cell.path or b""): cell for cell in cells}
        return [held.get(position) for position in range(count)] if held else ()

    return choose


def _between(of_key: CqlType, place: str, ends: Sequence[Evaluate | None]) -> Choose:
    sort_key = of_key.sort_key

    def bound(end: Evaluate | None, record: Record, moment: Moment) -> Any:
        if end is None:
            return None
        value = end(record, moment)
        if value is None:
            raise InvalidRequest(f"Invalid null value for {place}")
        return sort_key(value)

    def choose(cells: Sequence[Cell], record: Record, moment: Moment) -> Sequence[Cell | None]:
        low, high = (bound(end, record, moment) for end in ends)
        found = sorted((sort_key(cell.path or b""), at) for at, cell in enumerate(cells))
        return [
            cells[at] for key, at in found if (low is None or key >= low) and (high is None or key <= high)
        ]

    return choose


def _in_order(kind: CqlType, cells: Sequence[Cell]) -> list[Cell]:
    """Cells of a collection in the order of its parts."""
    if isinstance(kind, ListType):
        return sorted(cells, key=lambda cell: cell.path or b"")
    assert isinstance(kind, MapType | SetType)
    of_path = kind.key if isinstance(kind, MapType) else kind.element
    return sorted(cells, key=lambda cell: of_path.sort_key(cell.path or b""))


# ---- what is inside a type


def key_type(selected: tree.Element | tree.Span, kind: CqlType) -> CqlType:
    """Of the keys that select parts of a map or set."""
    if isinstance(kind, MapType):
        return kind.key
    if isinstance(kind, SetType):
        return kind.element
    what, name = ("Element" if isinstance(selected, tree.Element) else "Slice"), shown(selected.term)
    if kind.name == "list":
        raise InvalidRequest(f"{what} selection is only allowed on sets and maps, but {name} is a list")
    words = f"{name} is of type {kind.text} is" if what == "Element" else f"{name} of type {kind.text} is"
    raise InvalidRequest(f"Invalid {what.lower()} selection: {words} not a collection")


def position_in(selected: tree.Field, kind: CqlType) -> int:
    if not isinstance(kind, UserDefinedType):
        raise InvalidRequest(
            f"Invalid field selection: {shown(selected.term)} of type {kind.text} is not a user type"
        )
    found = kind.field(selected.field)
    if found is None:
        raise InvalidRequest(f"{shown(selected.term)} of type {kind.text} has no field {selected.field}")
    return found[0]
