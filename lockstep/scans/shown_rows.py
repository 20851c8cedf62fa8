"""Rows that were merged alone, as the serialised values of the columns that are wanted."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.scans.scan_table import ScanTable
from lockstep.schema.assembling import assembled
from lockstep.schema.clustering import decode, split_key
from lockstep.schema.model import Column, ColumnKind
from lockstep.storage.rows.visible import live_row, without_dead
from lockstep.values.rows import Cell, Row

Values = list[bytes | None]


class Shown:
    """Of one table as of one second; `columns` in the order of the values."""

    def __init__(self, table: ScanTable, columns: Sequence[Column], now_s: int) -> None:
        definition = table.table
        self._now_s = now_s
        self._columns = columns
        self._slots = {column.id: slot for slot, column in enumerate(columns)}
        self._kinds = {column.id: table.kinds[column.name] for column in columns}
        self._key_parts = len(definition.partition_key)
        self._clustering_kinds = [table.kinds[column.name] for column in definition.clustering]
        self._descending = [column.descending for column in definition.clustering]
        self._gone = frozenset(definition.gone)
        self._dead = dict(definition.dead)

    def static(self, row: Row | None) -> Row | None:
        """The static row as it shows, if it does."""
        return None if row is None else self._live(row)

    def _live(self, row: Row) -> Row | None:
        left = without_dead(row, self._dead) if self._dead else row
        return None if left is None else live_row(left, self._now_s, None, self._gone)

    def row(self, key: bytes, row: Row, static: Row | None) -> Values | None:
        """The values of a canonical row; None when it does not show. `static`: as `static` gives it."""
        live = self._live(row)
        if live is None:
            return None
        values = self._keyed(key, row.clustering)
        if static is not None:
            self._fill(values, static.cells)
        self._fill(values, live.cells)
        return values

    def lone(self, key: bytes, static: Row) -> Values:
        """What a partition shows that has static columns and no rows."""
        values = self._keyed(key, None)
        self._fill(values, static.cells)
        return values

    def _keyed(self, key: bytes, clustering: bytes | None) -> Values:
        parts = split_key(key, self._key_parts)
        rest = () if clustering is None else decode(self._clustering_kinds, self._descending, clustering)
        values: Values = []
        for column in self._columns:
            if column.kind is ColumnKind.PARTITION_KEY:
                values.append(parts[column.position])
            elif column.kind is ColumnKind.CLUSTERING and clustering is not None:
                values.append(rest[column.position])
            else:
                values.append(None)
        return values

    def _fill(self, values: Values, cells: Sequence[Cell]) -> None:
        gathered: dict[int, list[Cell]] = {}
        for cell in cells:
            slot = self._slots.get(cell.column)
            if slot is None:
                continue
            if cell.path is None:
                values[slot] = cell.value
            else:
                gathered.setdefault(cell.column, []).append(cell)
        for column, some in gathered.items():
            values[self._slots[column]] = assembled(self._kinds[column], some)
