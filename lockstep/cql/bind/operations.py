"""What one assignment or column deletion does to one row, cells and collection deletions; and several changes
of one partition in one request made one mutation.

Invariant: operations only write. Those that need the list that is there (`reads_list`) find it among what was
read before the request was planned. The merged mutation has the effect of its parts in any order: per cell
the newer timestamp wins; at equal timestamps a tombstone, then an expiring cell, then the larger value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.cql.compile.context import Context, ListIds
from lockstep.cql.compile.literals import shown
from lockstep.cql.compile.prepared import Scope, TableShape
from lockstep.cql.compile.terms import TermPlan, Values, compile_term
from lockstep.cql.parse import tree
from lockstep.cql.wire.messages import UNSET
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import (
    CollectionType,
    CqlType,
    SetType,
    TupleType,
    UserDefinedType,
    field_path,
    parse_type,
)
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import COUNTER_BOUND
from lockstep.values.rows import Cell, ColumnDeletion, Deletion, Liveness, Mutation, Row

#: What two cells of one place become.
Both = Callable[[Cell, Cell], Cell]


def merged_mutations(parts: Sequence[Mutation], *, adds: bool = False) -> tuple[Mutation, ...]:
    """One mutation for each (table, key), in order of first appearance. `adds`: cells are changes of
    counters, all of which count."""
    groups: dict[tuple[int, bytes], list[Mutation]] = {}
    for part in parts:
        groups.setdefault((part.table_id, part.key), []).append(part)
    return tuple(
        group[0] if len(group) == 1 else _merged(group, _sum if adds else winner) for group in groups.values()
    )


def _merged(group: Sequence[Mutation], both: Both) -> Mutation:
    first = group[0]
    assert len({part.mutation_id for part in group}) == 1, "what one request writes has one id"
    deletion: Deletion | None = None
    static: Row | None = None
    rows: dict[bytes, Row] = {}
    for part in group:
        deletion = _newer_deletion(deletion, part.deletion)
        if part.static is not None:
            static = part.static if static is None else _merged_rows(static, part.static, both)
        for row in part.rows:
            earlier = rows.get(row.clustering)
            rows[row.clustering] = row if earlier is None else _merged_rows(earlier, row, both)
    return Mutation(
        first.table_id,
        first.token,
        first.key,
        first.mutation_id,
        max(part.timestamp_us for part in group),
        deletion,
        tuple(found for part in group for found in part.range_deletions),
        static,
        tuple(rows[clustering] for clustering in sorted(rows)),
    )


def _merged_rows(a: Row, b: Row, both: Both) -> Row:
    assert a.clustering == b.clustering, "what becomes one row has one place"
    cells: dict[tuple[int, bytes], Cell] = {}
    for cell in (*a.cells, *b.cells):
        place = (cell.column, cell.path or b"")
        earlier = cells.get(place)
        cells[place] = cell if earlier is None else both(earlier, cell)
    deletions: dict[int, ColumnDeletion] = {}
    for found in (*a.column_deletions, *b.column_deletions):
        known = deletions.get(found.column)
        if known is None or known.deletion.timestamp_us < found.deletion.timestamp_us:
            deletions[found.column] = found
    return Row(
        a.clustering,
        _newer_liveness(a.liveness, b.liveness),
        _newer_deletion(a.deletion, b.deletion),
        tuple(cells[place] for place in sorted(cells)),
        tuple(deletions[column] for column in sorted(deletions)),
    )


def _sum(a: Cell, b: Cell) -> Cell:
    assert a.value is not None and b.value is not None, "a change of a counter has a value"
    total = int.from_bytes(a.value, "big", signed=True) + int.from_bytes(b.value, "big", signed=True)
    if not -COUNTER_BOUND <= total < COUNTER_BOUND:
        raise InvalidRequest("The changes of one counter in a batch overflow it")
    return msgspec.structs.replace(a, value=total.to_bytes(8, "big", signed=True))


def winner(a: Cell, b: Cell) -> Cell:
    """The one of two cells of one place that stays."""
    return a if _rank(a) >= _rank(b) else b


def _rank(cell: Cell) -> tuple[int, bool, bool, int, bytes]:
    return (
        cell.timestamp_us,
        cell.value is None,
        cell.ttl_s > 0,
        cell.expires_at_s,
        cell.value or b"",
    )


def _newer_deletion(a: Deletion | None, b: Deletion | None) -> Deletion | None:
    if a is None or b is None:
        return a if b is None else b
    return a if a.timestamp_us >= b.timestamp_us else b


def _newer_liveness(a: Liveness | None, b: Liveness | None) -> Liveness | None:
    if a is None or b is None:
        return a if b is None else b
    rank_a = (a.timestamp_us, a.ttl_s > 0, a.expires_at_s)
    return a if rank_a >= (b.timestamp_us, b.ttl_s > 0, b.expires_at_s) else b


class RowWriter:
    """Gathers the cells of one row of one statement. All have its timestamp, so of two writes of one cell a
    deletion wins, else the greater value; their order means nothing."""

    __slots__ = (
        "cells",
        "context",
        "deletions",
        "expires_at_s",
        "list_ids",
        "place",
        "timestamp_us",
        "ttl_s",
        "values",
    )

    def __init__(
        self,
        values: Values,
        context: Context,
        timestamp_us: int,
        ttl_s: int,
        list_ids: ListIds,
        place: tuple[int, bytes, bytes],
    ) -> None:
        self.place = place
        self.values = values
        self.context = context
        self.timestamp_us = timestamp_us
        self.ttl_s = ttl_s
        self.expires_at_s = context.now_s + ttl_s if ttl_s else 0
        self.list_ids = list_ids
        self.cells: dict[tuple[int, bytes], Cell] = {}
        self.deletions: dict[int, ColumnDeletion] = {}

    def put(self, column: int, value: bytes, path: bytes | None = None) -> None:
        self._write(Cell(column, value, self.timestamp_us, self.ttl_s, self.expires_at_s, path))

    def erase(self, column: int, path: bytes | None = None) -> None:
        self._write(Cell(column, None, self.timestamp_us, 0, self.context.deleted_at_s, path))

    def _write(self, cell: Cell) -> None:
        place = (cell.column, cell.path or b"")
        earlier = self.cells.setdefault(place, cell)
        if earlier is not cell:
            self.cells[place] = winner(earlier, cell)

    def clear(self, column: int, timestamp_us: int) -> None:
        """Delete a whole collection up to a timestamp."""
        self.deletions[column] = ColumnDeletion(column, Deletion(timestamp_us, self.context.deleted_at_s))

    def present(self, column: int) -> Sequence[Cell]:
        """Cells of a list in the order of its elements, as earlier operations of the statement leave it."""
        known = self.list_ids.known.get((*self.place, column), ())
        written = [cell for (of, _), cell in self.cells.items() if of == column]
        if not written:
            return known
        merged = {cell.path or b"": cell for cell in known}
        for cell in written:
            there = merged.setdefault(cell.path or b"", cell)
            merged[cell.path or b""] = winner(there, cell)
        return [merged[path] for path in sorted(merged) if merged[path].value is not None]

    def sorted_cells(self) -> tuple[Cell, ...]:
        return tuple(self.cells[key] for key in sorted(self.cells))

    def sorted_deletions(self) -> tuple[ColumnDeletion, ...]:
        return tuple(self.deletions[column] for column in sorted(self.deletions))


class Operation:
    """One compiled assignment. `exclusive`: no other operation may touch the column. `reads_list`: it needs
    the list that is there."""

    exclusive = True
    reads_list = False

    def __init__(self, column: Column, kind: CqlType, term: TermPlan | None) -> None:
        self.column = column
        self.kind = kind
        self.term = term

    def write(self, row: RowWriter) -> None:
        raise AssertionError("abstract")

    def value(self, row: RowWriter) -> bytes | object | None:
        assert self.term is not None
        return self.term.get(row.values, row.context)

    def parts(self, data: bytes) -> list[bytes]:
        assert isinstance(self.kind, CollectionType)
        return self.kind.split(data)


class SetValue(Operation):
    """A column that is one cell."""

    def write(self, row: RowWriter) -> None:
        value = self.value(row)
        if isinstance(value, bytes):
            row.put(self.column.id, value)
        elif value is None:
            row.erase(self.column.id)


class AddElements(Operation):
    """Cells of the given list, set or map; nothing for null."""

    exclusive = False
    prepend = False

    def write(self, row: RowWriter) -> None:
        value = self.value(row)
        if isinstance(value, bytes):
            self.add(row, value)

    def add(self, row: RowWriter, data: bytes) -> None:
        column, parts, name = self.column.id, self.parts(data), self.kind.name
        if name == "list":
            ids = row.list_ids.take(len(parts), prepend=self.prepend)
            for part, id_ in zip(parts, ids, strict=True):
                row.put(column, part, id_)
        elif name == "set":
            for part in parts:
                row.put(column, b"", part)
        else:
            assert len(parts) % 2 == 0, "each key of a map has its value"
            for at in range(0, len(parts), 2):
                row.put(column, parts[at + 1], parts[at])


class PrependElements(AddElements):
    prepend = True


class SetCollection(AddElements):
    """Replace a whole collection: delete what is older, then add."""

    exclusive = True

    def write(self, row: RowWriter) -> None:
        value = self.value(row)
        if value is UNSET:
            return
        row.clear(self.column.id, row.timestamp_us - 1)
        if isinstance(value, bytes):
            self.add(row, value)


class SetUserValue(Operation):
    """Replace a value that is not frozen: delete what is older, then set its fields that are not null."""

    def write(self, row: RowWriter) -> None:
        value = self.value(row)
        if value is UNSET:
            return
        row.clear(self.column.id, row.timestamp_us - 1)
        if isinstance(value, bytes):
            assert isinstance(self.kind, UserDefinedType)
            for position, part in enumerate(self.kind.split(value)):
                if part is not None:
                    row.put(self.column.id, part, field_path(position))


class SetField(Operation):
    """One field of a value that is not frozen; without a term the field is deleted."""

    exclusive = False

    def __init__(self, column: Column, kind: CqlType, term: TermPlan | None, position: int) -> None:
        super().__init__(column, kind, term)
        self.path = field_path(position)

    def write(self, row: RowWriter) -> None:
        value = None if self.term is None else self.value(row)
        if isinstance(value, bytes):
            row.put(self.column.id, value, self.path)
        elif value is None:
            row.erase(self.column.id, self.path)


class RemoveElements(Operation):
    """Tombstones for elements of a set or keys of a map; `kind` is a set type."""

    exclusive = False

    def write(self, row: RowWriter) -> None:
        value = self.value(row)
        if isinstance(value, bytes):
            for part in self.parts(value):
                row.erase(self.column.id, part)


class SetElement(Operation):
    """One map entry; without a term one of a set or map is deleted."""

    exclusive = False

    def __init__(self, column: Column, kind: CqlType, term: TermPlan | None, key: TermPlan) -> None:
        super().__init__(column, kind, term)
        self.key = key

    def write(self, row: RowWriter) -> None:
        path = self.key.get(row.values, row.context)
        if not isinstance(path, bytes):
            what = "map key" if self.kind.name == "map" else "set element"
            raise InvalidRequest(f"Invalid {'null' if path is None else 'unset'} {what}")
        value = None if self.term is None else self.value(row)
        if isinstance(value, bytes):
            row.put(self.column.id, value, path)
        elif value is None:
            row.erase(self.column.id, path)


class SetByIndex(Operation):
    """One element of a list, known by its index; without a term it is deleted."""

    exclusive = False
    reads_list = True

    def __init__(self, column: Column, kind: CqlType, term: TermPlan | None, index: TermPlan) -> None:
        super().__init__(column, kind, term)
        self.index = index

    def write(self, row: RowWriter) -> None:
        data, value = self.index.get(row.values, row.context), None if self.term is None else self.value(row)
        if data is UNSET and self.term is None:
            return
        if not isinstance(data, bytes) or not data:
            what = "null" if data is None or data == b"" else "unset"
            raise InvalidRequest(f"Invalid {what} value for list index")
        index, cells = int.from_bytes(data, "big", signed=True), row.present(self.column.id)
        if not cells:
            what = "delete an element from" if self.term is None else "set an element on"
            raise InvalidRequest(f"Attempted to {what} a list which is null")
        if not 0 <= index < len(cells):
            raise InvalidRequest(f"List index {index} out of bound, list has size {len(cells)}")
        if isinstance(value, bytes):
            row.put(self.column.id, value, cells[index].path)
        elif value is None:
            row.erase(self.column.id, cells[index].path)


class Discard(Operation):
    """Every element of a list that equals one of the given ones goes."""

    exclusive = False
    reads_list = True

    def write(self, row: RowWriter) -> None:
        value = self.value(row)
        if not isinstance(value, bytes):
            return
        gone = dict.fromkeys(self.parts(value))
        for cell in row.present(self.column.id):
            if cell.value in gone:
                row.erase(self.column.id, cell.path)


class AddToCounter(Operation):
    """A change of a counter: one cell with the difference, which a replica turns into a cell of its own."""

    def __init__(self, column: Column, kind: CqlType, term: TermPlan, sign: int) -> None:
        super().__init__(column, kind, term)
        self.sign = sign

    def write(self, row: RowWriter) -> None:
        value = self.value(row)
        if value is UNSET:
            return
        if not isinstance(value, bytes) or not value:
            raise InvalidRequest("Invalid null value for counter increment")
        difference = self.sign * int.from_bytes(value, "big", signed=True)
        if not -COUNTER_BOUND <= difference < COUNTER_BOUND:
            raise InvalidRequest(f"The negation of {-difference} overflows supported counter precision")
        row.put(self.column.id, difference.to_bytes(8, "big", signed=True))


class ClearColumn(Operation):
    """DELETE of a column."""

    def write(self, row: RowWriter) -> None:
        if self.kind.is_multicell or self.kind.name == "counter":
            row.clear(self.column.id, row.timestamp_us)
        else:
            row.erase(self.column.id)


def set_operation(column: Column, kind: CqlType, value: tree.Term, scope: Scope) -> Operation:
    """`column = value`."""
    if kind.name == "counter":
        raise InvalidRequest(
            f"Cannot set the value of counter column {column.name} "
            "(counters can only be incremented/decremented, not set)"
        )
    return operation_of(column, kind, compile_term(value, kind, column.name, scope))


def operation_of(column: Column, kind: CqlType, term: TermPlan) -> Operation:
    """What gives a column the value of a term."""
    if kind.name == "counter":
        raise InvalidRequest("INSERT statements are not allowed on counter tables, use UPDATE instead")
    if not kind.is_multicell:
        return SetValue(column, kind, term)
    return (SetUserValue if isinstance(kind, UserDefinedType) else SetCollection)(column, kind, term)


def assignment_operation(shape: TableShape, assignment: tree.Assignment, scope: Scope) -> Operation:
    """Compile one assignment of UPDATE; InvalidRequest when the column does not allow it."""
    column = shape.column(assignment.name)
    kind, name = shape.types[column.name], column.name
    if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        raise InvalidRequest(f"PRIMARY KEY part {name} found in SET part")
    if assignment.operation == "set":
        return set_operation(column, kind, assignment.value, scope)
    if assignment.operation == "field":
        assert assignment.field is not None
        what = f"operation ({name}.{assignment.field} = {shown(assignment.value)})"
        position, field = _field(kind, name, assignment.field, what, "UDT")
        term = compile_term(assignment.value, field, f"{name}.{assignment.field}", scope)
        return SetField(column, kind, term, position)
    if assignment.other is not None and assignment.other != name:
        raise InvalidRequest("Only expressions of the form X = X +<value> are supported.")
    if assignment.operation == "element":
        return _element_assignment(column, kind, assignment, scope)
    sign = "-" if assignment.operation == "remove" else "+"
    if kind.name == "counter" and assignment.operation != "prepend":
        term = compile_term(assignment.value, kind, name, scope)
        return AddToCounter(column, kind, term, -1 if sign == "-" else 1)
    if assignment.operation == "prepend" and kind.name != "list":
        what = f"{shown(assignment.value)} + {name}"
        raise InvalidRequest(f"Invalid operation ({name} = {what}) for non list column {name}")
    what = f"Invalid operation ({name} = {name} {sign} {shown(assignment.value)})"
    if not kind.is_collection:
        is_tuple = isinstance(kind, TupleType) and sign == "+"
        raise InvalidRequest(f"{what} for {'tuple' if is_tuple else 'non counter'} column {name}")
    if not kind.is_multicell:
        raise InvalidRequest(f"{what} for frozen collection column {name}")
    if assignment.operation == "remove":
        if kind.name == "list":
            return Discard(column, kind, compile_term(assignment.value, kind, name, scope))
        removed = SetType(kind.key if kind.name == "map" else kind.element, frozen=False)
        return RemoveElements(column, removed, _changed_by(assignment, column, kind, removed, scope))
    if assignment.operation == "prepend":
        return PrependElements(column, kind, compile_term(assignment.value, kind, name, scope))
    return AddElements(column, kind, _changed_by(assignment, column, kind, kind, scope))


def _changed_by(
    assignment: tree.Assignment, column: Column, kind: CqlType, given: CqlType, scope: Scope
) -> TermPlan:
    """What is added to a collection or removed from it."""
    try:
        return compile_term(assignment.value, given, column.name, scope)
    except InvalidRequest:
        if kind.name != "map":
            raise
        change, what = ("addition", "map") if given is kind else ("substraction", "set")
        raise InvalidRequest(
            f"Value for a map {change} has to be a {what}, but was: '{shown(assignment.value)}'"
        ) from None


def _field(kind: CqlType, column: str, field: str, what: str, shown: str) -> tuple[int, CqlType]:
    """(position, type) of a field of a column that is a user-defined type and not frozen."""
    if not isinstance(kind, UserDefinedType):
        raise InvalidRequest(f"Invalid {what} for non-{shown} column {column}")
    if not kind.is_multicell:
        raise InvalidRequest(f"Invalid {what} for frozen {shown} column {column}")
    found = kind.field(field)
    if found is None:
        raise InvalidRequest(f"UDT column {column} does not have a field named {field}")
    return found


def _element_assignment(
    column: Column, kind: CqlType, assignment: tree.Assignment, scope: Scope
) -> Operation:
    name = column.name
    assert assignment.element is not None
    what = f"Invalid operation ({name}[{shown(assignment.element)}] = {shown(assignment.value)})"
    if not kind.is_collection:
        raise InvalidRequest(f"{what} for non collection column {name}")
    if not kind.is_multicell:
        raise InvalidRequest(f"{what} for frozen collection column {name}")
    if kind.name == "set":
        raise InvalidRequest(f"{what} for set column {name}")
    if kind.name == "list":
        index = compile_term(assignment.element, parse_type("int"), f"idx({name})", scope)
        value = compile_term(assignment.value, kind.element, f"value({name})", scope)
        return SetByIndex(column, kind, value, index)
    key = compile_term(assignment.element, kind.key, f"key({name})", scope)
    return SetElement(column, kind, compile_term(assignment.value, kind.value, f"value({name})", scope), key)


def deletion_operation(shape: TableShape, deletion: tree.ColumnDelete, scope: Scope) -> Operation:
    """Compile one column of DELETE."""
    column = shape.column(deletion.name)
    kind, name = shape.types[column.name], column.name
    if column.kind in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
        raise InvalidRequest(f"Invalid identifier {name} for deletion (should not be a PRIMARY KEY part)")
    if deletion.field is not None:
        position, _ = _field(kind, name, deletion.field, "field deletion operation", "UDT")
        return SetField(column, kind, None, position)
    if deletion.element is None:
        return ClearColumn(column, kind, None)
    if not kind.is_collection:
        raise InvalidRequest(f"Invalid deletion operation for non collection column {name}")
    if not kind.is_multicell:
        raise InvalidRequest(f"Invalid deletion operation for frozen collection column {name}")
    if kind.name == "list":
        index = compile_term(deletion.element, parse_type("int"), f"idx({name})", scope)
        return SetByIndex(column, kind, None, index)
    member = kind.key if kind.name == "map" else kind.element
    receiver = f"key({name})" if kind.name == "map" else f"value({name})"
    return SetElement(column, kind, None, compile_term(deletion.element, member, receiver, scope))
