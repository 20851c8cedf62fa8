"""Fragments of one table made those of another: its id, its columns' ids, and counters that nobody counts on.

Invariant: the order of keys stays. Different shards of a counter stay different, and none becomes one that a
node of the restoring cluster counts in.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import msgspec

from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_row, encode_row
from lockstep.storage.store import Pair
from lockstep.values.rows import MARKER_COLUMN, Cell, Row

_ID = struct.Struct(">I")
_ID_AT = 1
_ID_END = _ID_AT + _ID.size
#: A shard's path is its node's id and the generation in which it counted. Generations grow by one when a node
#: starts to count anew, so their upper half is free for the backup that a shard came with.
_SHARD = struct.Struct(">IQ")
_SALT_BITS = 31


class TableMapping:
    """`columns` has the new id of each column; cells of others are left out. `salt` is drawn once for each
    backup; 0 for tables that do not count."""

    def __init__(
        self, table_from: int, table_to: int, columns: Mapping[int, int], *, exact: bool, salt: int = 0
    ) -> None:
        """`exact`: every column that any fragment names is in `columns`."""
        self._from = _ID.pack(table_from)
        self._to = _ID.pack(table_to)
        self._columns = {**columns, MARKER_COLUMN: MARKER_COLUMN}
        self._keeps_values = exact and not salt and all(a == b for a, b in columns.items())
        self._salt = (salt & ((1 << _SALT_BITS) - 1)) << 32

    def of_backup(self, key: bytes) -> bytes:
        """The place of a key of the restored table, or of a bound of keys, in the backup."""
        return key[:_ID_AT] + _ID.pack(_ID.unpack_from(key, _ID_AT)[0] - self._shift) + key[_ID_END:]

    @property
    def _shift(self) -> int:
        to, source = _ID.unpack(self._to)[0], _ID.unpack(self._from)[0]
        return int(to - source)

    def changed(self, pair: Pair) -> Pair | None:
        """None when nothing is left of it. CorruptFile when it is no fragment."""
        key, value = pair
        store_key = key[:_ID_AT] + self._to + key[_ID_END:]
        if self._keeps_values:
            return store_key, value
        prefix = keys.split_partition(key)[2]
        if key[len(prefix) : len(prefix) + 1] == keys.KIND_HEADER:
            return store_key, value
        row = self._row(decode_row(key, value, b""))
        return None if row == Row(b"") else (store_key, encode_row(row))

    def _row(self, row: Row) -> Row:
        columns = self._columns
        cells = [self._cell(cell) for cell in row.cells if cell.column in columns]
        gone = [
            msgspec.structs.replace(one, column=columns[one.column])
            for one in row.column_deletions
            if one.column in columns
        ]
        cells.sort(key=lambda cell: (cell.column, cell.path or b""))
        gone.sort(key=lambda one: one.column)
        return Row(row.clustering, row.liveness, row.deletion, tuple(cells), tuple(gone))

    def _cell(self, cell: Cell) -> Cell:
        path = cell.path
        if self._salt and path is not None:
            node, generation = _SHARD.unpack(path)
            path = _SHARD.pack(node, generation ^ self._salt)
        return msgspec.structs.replace(cell, column=self._columns[cell.column], path=path)
