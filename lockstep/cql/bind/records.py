"""Partitions as read to records: keys decoded, static columns joined, collections assembled.

Invariant: a record has one entry a slot of the selection; a column without a live cell is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from lockstep.cql.compile.catalog import TableShape
from lockstep.cql.compile.selection import Record, Selection
from lockstep.schema.clustering import decode
from lockstep.schema.model import ColumnKind
from lockstep.schema.types import CollectionType, CqlType, UserDefinedType
from lockstep.values.limits import COUNTER_BOUND
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
        # Outputs count cell slots from the end of the record.
        last = self._width - 1
        self._cell_slots = {
            cell.column: last - index for index, cell in enumerate(selection.cells) if not cell.whole
        }
        self._whole_slots = {
            cell.column: last - index for index, cell in enumerate(selection.cells) if cell.whole
        }

    def records(
        self, partition: Partition, key_parts: Sequence[bytes], static_row_counts: bool
    ) -> Iterator[tuple[bytes | None, Record]]:
        """(clustering, record) of each row; clustering None for a partition with static content only."""
        base: Record = [None] * self._width
        for slot, position in self._key_slots:
            base[slot] = key_parts[position]
        static = partition.static
        if static is not None:
            self._fill(base, static)
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
            record[slot] = _assembled(self._collections[slot], cells)


def _assembled(kind: CqlType, cells: Sequence[Cell]) -> bytes:
    """Serialised collection of its cells; `join` brings sets and maps into their order."""
    if isinstance(kind, UserDefinedType):
        return kind.joined_cells((_path(cell), cell.value or b"") for cell in cells)
    if kind.name == "counter":
        return counter_sum(cell.value or b"" for cell in cells)
    assert isinstance(kind, CollectionType)
    if kind.name == "list":
        return kind.join([cell.value or b"" for cell in sorted(cells, key=_path)])
    if kind.name == "set":
        return kind.join([_path(cell) for cell in cells])
    parts: list[Any] = []
    for cell in cells:
        parts += (cell.path, cell.value)
    return kind.join(parts)


def counter_sum(shards: Iterable[bytes]) -> bytes:
    """What a counter shows: the sum of what was counted by each node, in 64 bits."""
    total = sum(int.from_bytes(shard, "big", signed=True) for shard in shards)
    return ((total + COUNTER_BOUND) % (2 * COUNTER_BOUND) - COUNTER_BOUND).to_bytes(8, "big", signed=True)


def _path(cell: Cell) -> bytes:
    assert cell.path is not None
    return cell.path
