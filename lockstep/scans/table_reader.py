"""One reader of many rows: stored fragments of a range in, Arrow batches of what a client sees out.

Invariant: whatever way a row takes, the answer is that of merging all its fragments by the rules of
`storage.rows` and showing it as of one second. Rows of one fragment that share a form are decoded together by
whole columns; rows of several fragments, of forms that few share, and partitions with deletions or static
columns are merged as reads merge them. Rows come in key order, each once. Fragments are held back until
nothing of their row can follow.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from lockstep.scans.arrow_columns import arrow_type, decode_cells, decode_raw, wire_layout
from lockstep.scans.gather import Joined
from lockstep.scans.row_keys import RowKeys, Unescaped
from lockstep.scans.row_shapes import Alike, ShapeRules, Shapes
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.shown_rows import Shown
from lockstep.schema.model import ColumnKind
from lockstep.schema.types import CqlType
from lockstep.storage.reading import WholeFold
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_rows
from lockstep.storage.rows.reconcile import merge_rows
from lockstep.storage.store import Pair
from lockstep.values.errors import CorruptFile, InvalidRequest
from lockstep.values.rows import Row


class TableReader:
    """Give it pairs in key order with `feed`, then `finish`.

    `columns`: names, in the order of the batches. `lone_statics`: a partition with nothing but static columns
    shows as a row; not so where the range begins inside of it (`begun_in`, its prefix), or rows were chosen.
    """

    def __init__(
        self,
        table: ScanTable,
        columns: Sequence[str],
        now_s: int,
        decimal_scale: int,
        *,
        lone_statics: bool = True,
        begun_in: bytes = b"",
        together: bool = True,
    ) -> None:
        """`together` False: every row is merged alone."""
        self._wanted = [(table.column(name), table.kinds[name]) for name in columns]
        self._scale = decimal_scale
        self._together = together
        self._shown = Shown(table, [column for column, _ in self._wanted], now_s)
        self._lone_statics = lone_statics
        self._begun_in = begun_in
        definition = table.table
        self._key_kinds = [table.kinds[column.name] for column in definition.partition_key]
        self._clustering_kinds = [table.kinds[column.name] for column in definition.clustering]
        self._descending = [column.descending for column in definition.clustering]
        widths = {
            column.id: width for column in definition.columns if (width := _width(table.kinds[column.name]))
        }
        dated = frozenset(column for column, _ in definition.dead)
        self._shapes = Shapes(ShapeRules(widths, frozenset(definition.gone), dated, now_s))
        self.schema = pa.schema(
            [pa.field(column.name, arrow_type(kind, decimal_scale)) for column, kind in self._wanted]
        )
        self._held: list[Pair] = []
        self._fold: WholeFold | None = None
        self._fold_rows = 0
        #: Where reading goes on behind all that was given.
        self.next_key = b""
        #: Rows that were merged alone.
        self.merged_rows = 0
        self._lasts = True

    def feed(self, pairs: Sequence[Pair]) -> list[pa.RecordBatch]:
        """What is known of the rows before the last one of `pairs`."""
        if not pairs:
            return []
        self._held = [*self._held, *pairs]
        place = self._held[-1][0][: -keys.WRITE_BYTES]
        at = bisect.bisect_left(self._held, place, key=operator.itemgetter(0))
        ready, self._held = self._held[:at], self._held[at:]
        self.next_key = self._held[0][0]
        return self._read(ready)

    def finish(self) -> list[pa.RecordBatch]:
        """The rest."""
        ready, self._held = self._held, []
        if ready:
            self.next_key = keys.partition_end(keys.split_partition(ready[-1][0])[2])
        return [*self._read(ready), *self._closed()]

    @property
    def begun(self) -> bytes:
        """The prefix of the partition that reading goes on in, where rows of it have been given."""
        fold = self._fold
        if fold is None:
            return b""
        return fold.prefix if self._fold_rows or fold.prefix == self._begun_in else b""

    @property
    def is_between(self) -> bool:
        """Whether what is read next does not depend on what its partition had before."""
        return self._fold is None

    def take_lasts(self) -> bool:
        """Whether what was given since the last call shows at any second."""
        lasts, self._lasts = self._lasts, True
        return lasts

    # -- portions -------------------------------------------------------------------------------------

    def _read(self, pairs: Sequence[Pair]) -> list[pa.RecordBatch]:
        """Whole rows, partition by partition where these have more than rows."""
        if not pairs:
            return []
        if not self._together:
            heads = np.arange(len(pairs))
        else:
            row_keys = RowKeys(pairs)
            heads = np.flatnonzero(~row_keys.are_rows)
            if not len(heads) and self._fold is None:
                return _listed(self._rows(pairs, row_keys))
        batches: list[pa.RecordBatch] = []
        at = 0
        while at < len(pairs):
            if self._fold is None:
                rest = heads[np.searchsorted(heads, at) :]
                head = int(rest[0]) if len(rest) else len(pairs)
                if head > at:
                    batches += _listed(self._rows(pairs[at:head], RowKeys(pairs[at:head])))
                at = head
                if at < len(pairs):
                    self._fold = WholeFold(*keys.split_partition(pairs[at][0]))
                    self._fold_rows = 0
                continue
            end = bisect.bisect_left(pairs, self._fold.end, lo=at, key=operator.itemgetter(0))
            batches += self._folded(self._fold, pairs[at:end])
            at = end
            if at < len(pairs):
                batches += self._closed()
        return batches

    def _folded(self, fold: WholeFold, pairs: Iterable[Pair]) -> list[pa.RecordBatch]:
        """What a partition shows of its next whole rows."""
        for pair in pairs:
            fold.add(pair)
        fold.finish()
        rows = fold.taken()
        self._look_for_expiry(rows)
        static = self._shown.static(fold.static)
        self.merged_rows += len(rows)
        shown = [cells for row in rows if (cells := self._shown.row(fold.key, row, static)) is not None]
        self._fold_rows += len(shown)
        return _listed(self._batch_of(shown))

    def _closed(self) -> list[pa.RecordBatch]:
        """The partition that was merged alone has ended: what it shows when it has no rows."""
        fold, self._fold = self._fold, None
        if fold is None or self._fold_rows or not self._lone_statics or fold.prefix == self._begun_in:
            return []
        static = self._shown.static(fold.static)
        if static is None:
            return []
        return _listed(self._batch_of([self._shown.lone(fold.key, static)]))

    def _batch_of(self, rows: Sequence[Sequence[bytes | None]]) -> pa.RecordBatch | None:
        if not rows:
            return None
        arrays = [
            decode_cells(kind, [row[slot] for row in rows], self._scale)
            for slot, (_, kind) in enumerate(self._wanted)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    # -- many rows ------------------------------------------------------------------------------------

    def _rows(self, pairs: Sequence[Pair], row_keys: RowKeys) -> pa.RecordBatch | None:
        """Of partitions that have nothing but rows."""
        same = row_keys.joined.repeats()
        values = [value for _, value in pairs]
        try:
            parts = self._together_of(values, row_keys.unescaped(), same)
        except InvalidRequest:
            # A value has no Arrow form, maybe of a row that does not show: told once the rows are known.
            parts = []
        if len(parts) == 1 and len(parts[0][0]) == len(pairs):
            return self._in_order(parts)
        decoded = np.zeros(len(pairs), dtype=bool)
        for rows, _ in parts:
            decoded[rows] = True
        if not decoded.all():
            parts += self._merged(pairs, np.flatnonzero(~decoded), same)
        return self._in_order(parts)

    def _together_of(
        self, values: Sequence[bytes], unescaped: Unescaped, same: Any
    ) -> list[tuple[Any, list[pa.Array]]]:
        """(rows, columns) of those that share forms."""
        key_arrays = self._key_arrays(unescaped)
        alone = ~(same[:-1] | same[1:]) & unescaped.good
        found = []
        for alike in self._shapes.sorted_out(Joined(values), np.flatnonzero(alone)):
            self._lasts = self._lasts and not alike.shape.expires
            found.append((alike.rows, self._arrays(alike, key_arrays)))
        return found

    def _key_arrays(self, unescaped: Unescaped) -> dict[int, pa.Array]:
        """By slot."""
        slots: dict[int, pa.Array] = {}
        by_position = self._slots_of(ColumnKind.PARTITION_KEY)
        for position, raw in unescaped.partition_key(self._key_kinds, set(by_position)).items():
            slots[by_position[position]] = decode_raw(self._key_kinds[position], raw, self._scale)
        by_position = self._slots_of(ColumnKind.CLUSTERING)
        kinds = self._clustering_kinds
        for position, raw in unescaped.clustering(kinds, self._descending, set(by_position)).items():
            slots[by_position[position]] = decode_raw(kinds[position], raw, self._scale)
        return slots

    def _slots_of(self, kind: ColumnKind) -> dict[int, int]:
        """By position in the key."""
        return {column.position: slot for slot, (column, _) in enumerate(self._wanted) if column.kind is kind}

    def _arrays(self, alike: Alike, key_arrays: dict[int, pa.Array]) -> list[pa.Array]:
        """All columns of rows of one form."""
        rows, arrays = alike.rows, []
        for slot, (column, kind) in enumerate(self._wanted):
            array = key_arrays.get(slot)
            if array is not None:
                arrays.append(array if len(rows) == len(array) else array.take(pa.array(rows)))
                continue
            raw = alike.column(column.id) if column.kind is ColumnKind.REGULAR else None
            if raw is None:
                arrays.append(pa.nulls(len(rows), arrow_type(kind, self._scale)))
            else:
                arrays.append(decode_raw(kind, raw, self._scale))
        return arrays

    def _merged(self, pairs: Sequence[Pair], left: Any, same: Any) -> list[tuple[Any, list[pa.Array]]]:
        """The rows that are merged alone: (first fragment of each that shows, columns)."""
        numbers, shown = [], []
        at = 0
        while at < len(left):
            first = int(left[at])
            end = first + 1
            while end < len(pairs) and same[end]:
                end += 1
            at += end - first
            cells = self._shown_of(pairs[first:end])
            if cells is not None:
                numbers.append(first)
                shown.append(cells)
        self.merged_rows += len(numbers)
        batch = self._batch_of(shown)
        return [] if batch is None else [(np.array(numbers), batch.columns)]

    def _shown_of(self, group: Sequence[Pair]) -> Sequence[bytes | None] | None:
        _, key, prefix = keys.split_partition(group[0][0])
        row: Row | None = merge_rows(decode_rows(group, len(prefix) + 1))
        if row is None:
            return None
        self._look_for_expiry((row,))
        return self._shown.row(key, row, None)

    def _look_for_expiry(self, rows: Iterable[Row]) -> None:
        if self._lasts and any(map(expires, rows)):
            self._lasts = False

    def _in_order(self, parts: Sequence[tuple[Any, list[pa.Array]]]) -> pa.RecordBatch | None:
        if not parts:
            return None
        if len(parts) == 1:
            return pa.RecordBatch.from_arrays(parts[0][1], schema=self.schema)
        order = pa.array(np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable"))
        columns = [
            pa.concat_arrays([arrays[slot] for _, arrays in parts]).take(order)
            for slot in range(len(self._wanted))
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def _listed(batch: pa.RecordBatch | None) -> list[pa.RecordBatch]:
    return [] if batch is None or not batch.num_rows else [batch]


def _width(kind: CqlType) -> int:
    """Bytes of every value of the type, 0 when they differ."""
    layout = wire_layout(kind)
    return 0 if layout is None else int(np.dtype(layout).itemsize)


def expires(row: Row) -> bool:
    """Whether something of it has an end."""
    marker = row.liveness
    return (marker is not None and marker.ttl_s > 0) or any(cell.ttl_s for cell in row.cells)


def partition_of(store_key: bytes) -> bytes:
    """The prefix of the partition that a key for going on lies in; nothing when it is between partitions."""
    try:
        return keys.split_partition(store_key)[2]
    except CorruptFile:
        return b""


def is_head_of(store_key: bytes, other: bytes) -> bool:
    """Whether a fragment is of the whole partition, its deletions or static columns, that `other` lies in."""
    prefix = partition_of(other)
    return bool(prefix) and store_key.startswith(prefix) and store_key[len(prefix)] < keys.KIND_ROW[0]
