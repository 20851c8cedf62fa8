"""Tables and stored rows for the tests of reading many rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from lockstep.scans.scan_table import ScanTable
from lockstep.schema.clustering import derived_key, encode_prefix
from lockstep.schema.model import Column, ColumnKind, DroppedColumn, Table
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import fragments_of
from lockstep.storage.store import Pair
from lockstep.values.ids import mutation_id
from lockstep.values.rows import (
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Mutation,
    RangeDeletion,
    Row,
)
from lockstep.values.tokens import token_of

TABLE_ID, NOW_S = 256, 1_700_000_000
MICROS = 1_700_000_000_000_000
GONE_ID, AGAIN_US = 90, MICROS + 4


def table_of(
    partition_key: Sequence[str],
    clustering: Sequence[tuple[str, bool]],
    static: Sequence[str],
    regular: Sequence[str],
    *,
    again: bool = False,
) -> ScanTable:
    """Columns p0.., c0.., s0.., r0.. of these types; one column was dropped. `again`: and so was r0, once."""
    columns: list[Column] = []

    def add(name: str, text: str, kind: ColumnKind, position: int, descending: bool = False) -> None:
        columns.append(Column(len(columns) + 1, name, text, kind, position, descending))

    for position, text in enumerate(partition_key):
        add(f"p{position}", text, ColumnKind.PARTITION_KEY, position)
    for position, (text, descending) in enumerate(clustering):
        add(f"c{position}", text, ColumnKind.CLUSTERING, position, descending)
    for position, text in enumerate(static):
        add(f"s{position}", text, ColumnKind.STATIC, -1)
    for position, text in enumerate(regular):
        add(f"r{position}", text, ColumnKind.REGULAR, -1)
    dropped = [DroppedColumn(GONE_ID, "gone", "int", MICROS)]
    first = next((column for column in columns if column.name == "r0"), None)
    if again and first is not None:
        dropped.append(DroppedColumn(first.id, first.name, first.type, AGAIN_US))
    table = Table(TABLE_ID, "u", "k", "t", tuple(columns), dropped=tuple(dropped))
    return ScanTable(table)


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have answers of readers be of parts of few rows."""
    sizes = {"_TAKEN_FIRST": 7, "_TAKEN_MAX": 13, "_BATCH_ROWS": 11, "_PORTIONS_MAX": 3}
    for name, size in sizes.items():
        monkeypatch.setattr(f"lockstep.scans.rows_reading.{name}", size)


class View:
    """A store's content at one instant."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        found = [pair for pair in self._pairs if lower <= pair[0] < upper]
        return reversed(found) if reverse else iter(found)

    def cursor(self, lower: bytes, upper: bytes, *, caches: bool = False) -> Opened:
        return Opened(self.scan(lower, upper))

    def close(self) -> None: ...


class Opened:
    """A range as a store opens it."""

    def __init__(self, pairs: Iterator[Pair]) -> None:
        self._pairs: Iterator[Pair] | None = pairs

    def take(self, count: int) -> list[Pair]:
        assert self._pairs is not None, "it is closed"
        return list(itertools.islice(self._pairs, count))

    def close(self) -> None:
        assert self._pairs is not None, "it is closed once"
        self._pairs = None


class Writer:
    """Writes rows of serialised values into what a store would hold."""

    def __init__(
        self, table: ScanTable, dice: Random, pools: Mapping[str, Sequence[bytes]], *, gaps: bool = True
    ) -> None:
        """`gaps`: some columns of a row have no value, and some rows no marker."""
        self._table = table
        self._dice = dice
        self._pools = pools
        self._gaps = gaps
        self._number = 0
        self.content: dict[bytes, bytes] = {}

    @property
    def pairs(self) -> list[Pair]:
        return sorted(self.content.items())

    def fill(self, partitions: int, rows: int, odd: float) -> None:
        """`odd`: the chance of whatever is not a plain row."""
        table, dice = self._table.table, self._dice
        for _ in range(partitions):
            key = derived_key([dice.choice(self._pools[column.name]) for column in table.partition_key])
            if not key:
                continue
            for _ in range(rows if table.clustering else dice.choice([1, 1, 2])):
                self._write(key, rows=(self._row(self._clustering(), odd),))
            if dice.random() < odd / 2:
                self._write(key, deletion=Deletion(MICROS + dice.randrange(8), NOW_S - 1))
            if table.clustering and dice.random() < odd:
                start, end = sorted((self._clustering(), self._clustering()))
                range_ = RangeDeletion(start, end, Deletion(MICROS + dice.randrange(8), NOW_S - 1))
                self._write(key, range_deletions=(range_,))
            if table.static and dice.random() < 0.3:
                self._write(key, static=Row(b"", None, None, self._cells(ColumnKind.STATIC, odd)))

    def _write(self, key: bytes, **what: Any) -> None:
        self._number += 1
        token = token_of(key)
        made = Mutation(
            TABLE_ID,
            token,
            key,
            mutation_id(1, 1, self._number),
            MICROS + self._dice.randrange(8),
            **what,
        )
        for _, store_key, value in fragments_of(made, keys.partition_prefix(TABLE_ID, token, key)):
            self.content[store_key] = value

    def _clustering(self) -> bytes:
        columns = self._table.table.clustering
        values = [self._dice.choice(self._pools[column.name]) for column in columns]
        kinds = [self._table.kinds[column.name] for column in columns]
        return encode_prefix(kinds, [column.descending for column in columns], values) if columns else b""

    def _row(self, clustering: bytes, odd: float) -> Row:
        dice = self._dice
        stamp = MICROS + dice.randrange(8)
        cells = self._cells(ColumnKind.REGULAR, odd)
        if dice.random() >= odd:
            markers = (Liveness(stamp), None) if self._gaps else (Liveness(stamp),)
            return Row(clustering, dice.choice(markers), None, cells)
        whole = [column.id for column in self._table.table.regular if "<" in column.type]
        return Row(
            clustering,
            dice.choice(
                [
                    None,
                    Liveness(
                        dice.choice([stamp, 5]), *dice.choice([(9, NOW_S), (90_000, NOW_S + 5_000), (0, 0)])
                    ),
                ]
            ),
            Deletion(MICROS + dice.randrange(8), 1) if dice.random() < 0.3 else None,
            cells,
            tuple(ColumnDeletion(one, Deletion(MICROS + 3, 1)) for one in whole if dice.random() < 0.3),
        )

    def _cells(self, kind: ColumnKind, odd: float) -> tuple[Cell, ...]:
        dice = self._dice
        found: list[Cell] = []
        for column in self._table.table.columns:
            if column.kind is kind and (not self._gaps or dice.random() < 0.8):
                found += self._cells_of(column, odd)
        if dice.random() < odd:
            found.append(Cell(GONE_ID, b"\x00\x00\x00\x01", MICROS))
        return tuple(found)

    def _cells_of(self, column: Column, odd: float) -> Iterator[Cell]:
        dice = self._dice
        stamp = MICROS + dice.randrange(8)
        kind = self._table.kinds[column.name]
        if kind.is_multicell:
            for path in sorted({dice.randbytes(16 if kind.name == "list" else 4) for _ in range(2)}):
                value = b"" if kind.name == "set" else dice.randbytes(4)
                yield Cell(column.id, value, stamp, path=path)
            return
        value = dice.choice(self._pools[column.name])
        if dice.random() < odd / 2:
            yield Cell(column.id, value, stamp, *dice.choice([(9, NOW_S), (90_000, NOW_S + 1)]))
        elif self._gaps and dice.random() < 0.2:
            yield Cell(column.id, None, stamp, 0, NOW_S - 1)
        else:
            yield Cell(column.id, value, stamp)
