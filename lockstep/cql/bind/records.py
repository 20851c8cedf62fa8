"""Partitions as read to records (keys decoded, static columns joined, collections assembled), and GROUP BY:
records folded into groups.

Invariant: a record has one entry a slot of the selection; a column without a live cell is None. The rows of a
group are neighbours in the order of the answer, so that one group is open at a time; a group never spans
partitions, except that of a SELECT without GROUP BY.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import msgspec

from lockstep.cql.compile.expressions import Moment, Record, Selection
from lockstep.cql.compile.prepared import TableShape
from lockstep.cql.compile.restrictions import Restrictions
from lockstep.cql.parse import tree
from lockstep.cql.wire.primitives import read_bytes
from lockstep.schema.assembling import assembled
from lockstep.schema.clustering import decode
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CqlType
from lockstep.values.errors import InvalidRequest
from lockstep.values.outlines import Folds, Told, ToldGroup
from lockstep.values.rows import Cell, Partition, Row


class Selected(Protocol):
    """A table, and what is wanted of its rows."""

    @property
    def shape(self) -> TableShape: ...

    @property
    def selection(self) -> Selection: ...


class RecordReader:
    """Tables of one selection that say which cell goes to which slot."""

    def __init__(self, select: Selected) -> None:
        selection, shape = select.selection, select.shape
        self._shape = shape
        self._width = len(selection.columns) + len(selection.cells)
        self._key_slots: list[tuple[int, int]] = []
        self._clustering_slots: list[tuple[int, int]] = []
        self._value_slots: dict[int, int] = {}
        self._collections: dict[int, CqlType] = {}
        for slot, column in enumerate(selection.columns):
            if column.kind is ColumnKind.PARTITION_KEY:
                self._key_slots.append((slot, column.position))
            elif column.kind is ColumnKind.CLUSTERING:
                self._clustering_slots.append((slot, column.position))
            else:
                self._value_slots[column.id] = slot
                kind = shape.types[column.name]
                if kind.is_multicell or kind.name == "counter":
                    self._collections[slot] = shape.types[column.name]
        slots = len(self._key_slots) + len(self._clustering_slots) + len(self._value_slots)
        assert slots == len(selection.columns), "a column has one slot"
        # Outputs count cell slots from the end of the record.
        last = self._width - 1
        self._cell_slots = {
            cell.column: last - index for index, cell in enumerate(selection.cells) if not cell.whole
        }
        self._whole_slots = {
            cell.column: last - index for index, cell in enumerate(selection.cells) if cell.whole
        }

    def base(self, partition: Partition, key_parts: Sequence[bytes]) -> Record:
        """What the rows of the partition have in common."""
        base: Record = [None] * self._width
        for slot, position in self._key_slots:
            base[slot] = key_parts[position]
        if partition.static is not None:
            self._fill(base, partition.static)
        return base

    def records(
        self, partition: Partition, key_parts: Sequence[bytes], static_row_counts: bool
    ) -> Iterator[tuple[bytes | None, Record]]:
        """(clustering, record) of each row; clustering None for a partition with static content only."""
        base = self.base(partition, key_parts)
        static = partition.static
        if not partition.rows:
            if static is not None and static_row_counts and any(c.value is not None for c in static.cells):
                yield None, base
            return
        types, descending = self._shape.clustering_types, self._shape.descending
        for row in partition.rows:
            record = base.copy()
            if self._clustering_slots:
                values = decode(types, descending, row.clustering)
                for slot, position in self._clustering_slots:
                    record[slot] = values[position]
            self._fill(record, row)
            yield row.clustering, record

    def _fill(self, record: Record, row: Row) -> None:
        slots, cell_slots, whole_slots = self._value_slots, self._cell_slots, self._whole_slots
        gathered: dict[int, list[Cell]] = {}
        for cell in row.cells:
            if cell.value is None:
                continue
            slot = slots.get(cell.column)
            if slot is not None:
                if cell.path is None:
                    record[slot] = cell.value
                else:
                    gathered.setdefault(slot, []).append(cell)
            if cell_slots and cell.column in cell_slots:
                record[cell_slots[cell.column]] = cell
            if whole_slots and cell.column in whole_slots:
                at = whole_slots[cell.column]
                record[at] = [*(record[at] or ()), cell]
        for slot, cells in gathered.items():
            record[slot] = assembled(self._collections[slot], cells)


ResultRow = tuple[bytes | None, ...]


def whole_value(kind: CqlType, stored: bytes | None) -> bytes | None:
    """What a client gets of a value of this type."""
    return None if stored is None else kind.completed(stored)


def check_grouping(
    statement: tree.Select, shape: TableShape, restrictions: Restrictions
) -> tuple[tree.Term, ...]:
    """The terms that tell groups of one partition apart; InvalidRequest when they do not follow the key."""
    table = shape.table
    fixed = {choice.names[0] for choice in restrictions.partition if not choice.is_in}
    fixed |= {name for choice in restrictions.clustering if not choice.is_in for name in choice.names}
    keys = (*table.partition_key, *table.clustering)
    found: list[tree.Term] = []
    at = 0
    for position, term in enumerate(statement.group_by):
        column = _grouped_column(term, shape)
        if column.kind not in (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING):
            raise InvalidRequest(
                f"Group by is currently only supported on the columns of the PRIMARY KEY, got {column.name}"
            )
        while at < len(keys) and keys[at].name != column.name and keys[at].name in fixed:
            at += 1
        if at >= len(keys) or keys[at].name != column.name:
            raise InvalidRequest(
                "Group by currently only support groups of columns following their declared order "
                "in the PRIMARY KEY"
            )
        at += 1
        if isinstance(term, tree.Call):
            if position != len(statement.group_by) - 1 or column.kind is not ColumnKind.CLUSTERING:
                raise InvalidRequest(
                    "Functions are only supported on the last column of GROUP BY, a clustering column"
                )
            found.append(term)
        elif column.kind is ColumnKind.CLUSTERING:
            found.append(term)
    rest = [column.name for column in table.partition_key[at:] if column.name not in fixed]
    if rest:
        raise InvalidRequest("Group by is not supported on only a part of the partition key")
    if statement.distinct and found:
        raise InvalidRequest("Grouping on clustering columns is not allowed for SELECT DISTINCT queries")
    assert len(found) <= len(table.clustering), "a group has one value of each clustering column"
    return tuple(found)


def _grouped_column(term: tree.Term, shape: TableShape) -> Column:
    if isinstance(term, tree.ColumnName):
        return shape.column(term.name)
    assert isinstance(term, tree.Call)
    named = [argument for argument in term.arguments if isinstance(argument, tree.ColumnName)]
    if len(named) != 1:
        raise InvalidRequest("Group by functions must have one column among their arguments")
    return shape.column(named[0].name)


class Groups:
    """Folds records into groups; `by_key`: groups end with their partition (there is a GROUP BY)."""

    def __init__(self, selection: Selection, moment: Moment, *, by_key: bool) -> None:
        self._selection = selection
        self._moment = moment
        self._by_key = by_key
        self._mark: tuple[Any, ...] | None = None
        self._first: Record | None = None
        self._clustering = b""
        self._states: list[Any] = []

    def begins(self, key: bytes, record: Record) -> bool:
        """Whether the record belongs to another group than the open one."""
        return self._mark is None or self._mark != self._mark_of(key, record)

    @property
    def is_open(self) -> bool:
        return self._mark is not None

    def _mark_of(self, key: bytes, record: Record) -> tuple[Any, ...]:
        if not self._by_key:
            return ()
        return (key, *(evaluate(record, self._moment) for evaluate in self._selection.grouping))

    def add(self, key: bytes, clustering: bytes, record: Record) -> None:
        """Fold a record into the open group, or open one with it."""
        if self._mark is None:
            self._mark = self._mark_of(key, record)
            self._first, self._clustering = record, clustering
            self._states = [folding.aggregate.start for folding in self._selection.foldings]
        for index, folding in enumerate(self._selection.foldings):
            data = folding.evaluate(record, self._moment)
            if data is not None:
                self._states[index] = folding.aggregate.step(self._states[index], data)

    def join(self, told: Told) -> None:
        """Take what was told of rows where there is one group, whose aggregates need nothing else of them."""
        if not told.rows or not told.folds:
            return
        if self._mark is None:
            self._mark = ()
            self._states = [folding.aggregate.start for folding in self._selection.foldings]
        self._join(told.folds)

    def _join(self, folds: Folds) -> None:
        for index, (folding, (count, data)) in enumerate(zip(self._selection.foldings, folds, strict=True)):
            join = folding.aggregate.join
            assert join is not None, "an outline has aggregates whose parts can be joined"
            self._states[index] = join(self._states[index], count, data)

    def first_of(self, told: ToldGroup) -> Record:
        """The record that a group began with where it was told."""
        record: Record = []
        at = 0
        for _ in self._selection.columns:
            value, at = read_bytes(told.first, at)
            record.append(value)
        assert at == len(told.first), "columns are all that is told of a record"
        return record

    def add_told(self, told: ToldGroup, first: Record) -> None:
        """Fold what was told of a group into it, or open it."""
        if self._mark is None:
            self._mark = self._mark_of(told.key, first)
            self._first, self._clustering = first, told.clustering or b""
            self._states = [folding.aggregate.start for folding in self._selection.foldings]
        self._join(told.folds)

    def close(self) -> tuple[bytes, ResultRow]:
        """End the open group: its first clustering and its result row. Without a group: that of no rows."""
        selection = self._selection
        if self._mark is None:
            self._states = [folding.aggregate.start for folding in selection.foldings]
        pairs = zip(selection.foldings, self._states, strict=True)
        folded = tuple(folding.aggregate.finish(state) for folding, state in pairs)
        moment = msgspec.structs.replace(self._moment, folded=folded)
        record = self._first
        if record is None:
            record = [None] * (len(selection.columns) + len(selection.cells))
        row = tuple([output.evaluate(record, moment) for output in selection.outputs])
        clustering = self._clustering
        self._mark, self._first, self._states, self._clustering = None, None, [], b""
        return clustering, row
