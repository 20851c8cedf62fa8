"""What an outline makes of rows, one by one and many together.

Invariant: what is told of rows does not depend on which of them were looked at together.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import xxhash

from lockstep.cql.functions.aggregates import Aggregate, aggregate
from lockstep.cql.wire.responses import encode_rows
from lockstep.schema.clustering import decode, split_key
from lockstep.schema.types import CqlType, parse_type
from lockstep.values.outlines import (
    CLUSTERING,
    EDITION,
    PARTITION_KEY,
    STATIC,
    Fold,
    Folds,
    Outline,
    OutlineFilter,
    OutlineFold,
    Told,
    ToldGroup,
)
from lockstep.values.rows import Cell, Partition, Position, Row

Values = list[bytes | None]
#: What the rows of one group have in common.
Mark = tuple[bytes, ...]
Bytes = bytes | memoryview
LENGTH: Final = struct.Struct("<I")


class OutlineShape:
    """An outline with its types at hand. `columns`: whose values it wants of each row, in its order; behind
    those that are `told`, those that filters look at."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        told = outline.packs or tuple(fold.column for fold in outline.folds if fold.column is not None)
        #: Columns of aggregates; behind them come those of which a group's first row is told.
        self.folded = len(told)
        self.grouping = outline.grouping
        if self.grouping is not None:
            told = (*told, *self.grouping.firsts)
        self.told = len(told)
        self.columns = (*told, *(one.column for one in outline.filters))
        self.filters = [BoundFilter(one) for one in outline.filters]
        self.kinds = [parse_type(column.type) for column in self.columns]
        self.key_kinds = [parse_type(text) for text in outline.partition_key]
        self.clustering_kinds = [parse_type(text) for text, _ in outline.clustering]
        self.descending = [descends for _, descends in outline.clustering]
        self._wants_key = any(column.kind == PARTITION_KEY for column in self.columns)
        self._wants_clustering = any(column.kind == CLUSTERING for column in self.columns)

    def values(
        self, key: bytes, clustering: bytes | None, static: Sequence[Cell], cells: Sequence[Cell]
    ) -> Values:
        """Of one row that shows, from its live cells. `clustering` None: its partition has no rows."""
        if not self.columns:
            return []
        parts = split_key(key, len(self.key_kinds)) if self._wants_key else ()
        rest: Sequence[bytes] = ()
        if self._wants_clustering and clustering is not None:
            rest = decode(self.clustering_kinds, self.descending, clustering)
        of_row = {cell.column: cell.value for cell in cells}
        of_static = {cell.column: cell.value for cell in static}
        found: Values = []
        for column in self.columns:
            if column.kind == PARTITION_KEY:
                found.append(parts[column.position])
            elif column.kind == CLUSTERING:
                found.append(rest[column.position] if rest else None)
            else:
                found.append((of_static if column.kind == STATIC else of_row).get(column.id))
        return found

    def mark(self, key: bytes, clustering: bytes | None) -> Mark:
        """Of the group that a row is of."""
        assert self.grouping is not None, "rows are told by groups"
        depth = self.grouping.depth
        if depth is None:
            return ()
        if not depth or clustering is None:
            return (key,)
        return (key, *decode(self.clustering_kinds, self.descending, clustering)[:depth])

    def passed(self, values: Values) -> Values | None:
        """What is told of a row with these values; None when a filter leaves it out."""
        if not self.filters:
            return values
        looked_at = values[self.told :]
        if not all(one.passes(value) for one, value in zip(self.filters, looked_at, strict=True)):
            return None
        return values[: self.told]


_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class BoundFilter:
    """A filter with its type at hand. `compare` is for what sorts as values do."""

    def __init__(self, wanted: OutlineFilter) -> None:
        self.wanted = wanted
        self.compare = _COMPARISONS[wanted.operator]
        self.kind = parse_type(wanted.column.type)
        self._sort_key = self.kind.sort_key
        self._target = self._sort_key(wanted.value)
        #: Different values sort differently, so those that sort alike are equal byte for byte.
        self.alternatives: frozenset[bytes] | None = None
        if wanted.operator == "=":
            self.alternatives = frozenset((wanted.value,) if wanted.listed is None else wanted.listed)

    def passes(self, value: bytes | None) -> bool:
        """Whether the condition holds of a row with this value."""
        if value is None or self.alternatives is not None:
            return value in (self.alternatives or ())
        return bool(self.compare(self._sort_key(value), self._target))


@lru_cache(maxsize=256)
def _kinds_of(fold: OutlineFold) -> tuple[CqlType | None, Aggregate | None]:
    """(type of the column, the aggregate where it is an extreme one): there is one fold for each group."""
    kind = None if fold.column is None else parse_type(fold.column.type)
    return kind, aggregate(fold.name, kind) if fold.name in ("min", "max") else None


class FoldedValues:
    """One aggregate over the values of a column. An aggregate has a state; what is told of it is how many
    values count and, but for `count`, their exact sum or the extreme one."""

    __slots__ = ("_best", "_extreme", "_kind", "_sum", "_takes_sum", "count")

    def __init__(self, fold: OutlineFold) -> None:
        self._takes_sum = fold.name in ("sum", "avg")
        self._kind, self._extreme = _kinds_of(fold)
        self.count = 0
        self._sum = 0
        self._best: bytes | None = None

    def add_cells(self, cells: Iterable[bytes | None]) -> None:
        for cell in cells:
            if cell is None:
                continue
            if self._takes_sum:
                assert self._kind is not None, "sums are of columns"
                number: Any = self._kind.deserialize(cell)
                if number is None:
                    continue
                self._sum += number
            elif self._extreme is not None:
                self._best = self._extreme.step(self._best, cell)
            self.count += 1

    def add(self, count: int, total: int = 0, candidates: Sequence[bytes] = ()) -> None:
        """Values that were looked at together: how many, their sum where it is wanted, and those among which
        the smallest and the largest are."""
        self.count += count
        self._sum += total
        if self._extreme is not None:
            for cell in candidates:
                self._best = self._extreme.step(self._best, cell)

    def add_told(self, told: Fold) -> None:
        """As `add`, of values of which it was told."""
        count, data = told
        total = int.from_bytes(data or b"", "big", signed=True) if self._takes_sum else 0
        self.add(count, total, () if data is None else (data,))

    def told(self) -> Fold:
        return self.count, summed(self._sum) if self._takes_sum else self._best


def summed(total: int) -> bytes:
    """A sum as it is told."""
    return total.to_bytes(total.bit_length() // 8 + 1, "big", signed=True)


def folded(fold: OutlineFold, cells: Iterable[bytes | None]) -> Fold:
    """What is told of these values alone."""
    one = FoldedValues(fold)
    one.add_cells(cells)
    return one.told()


class GroupFold:
    """What is made of the rows of one group, of which the last one is at `end`."""

    __slots__ = ("_first", "_folds", "_many", "_outline", "end")

    def __init__(self, outline: Outline, first: bytes, end: Position, folds: Folds) -> None:
        self._outline = outline
        self._first = first
        self.end = end
        self._folds = folds
        #: Once there is more of the group than what it began with.
        self._many: list[FoldedValues] | None = None

    def add(self, end: Position, folds: Folds) -> None:
        """What was made of more of its rows."""
        if self._many is None:
            self._many = [FoldedValues(fold) for fold in self._outline.folds]
            for one, told in zip(self._many, self._folds, strict=True):
                one.add_told(told)
        for one, told in zip(self._many, folds, strict=True):
            one.add_told(told)
        self.end = end

    def told(self) -> ToldGroup:
        end, folds = self.end, self._folds
        if self._many is not None:
            folds = tuple([one.told() for one in self._many])
        return ToldGroup(self._first, folds, end.token, end.key, end.clustering)


class Telling:
    """Gathers what is told of an answer. `packed_bytes`: of the rows that were packed or given so far, and of
    those with which groups began. `closed`: the answer ends where one more group would begin."""

    def __init__(self, outline: Outline) -> None:
        self.shape = OutlineShape(outline)
        self.packs = bool(outline.packs)
        self.gives = outline.gives
        self._parts: list[bytes] = []
        self.folds = [FoldedValues(fold) for fold in outline.folds] if outline.grouping is None else []
        self.groups: list[GroupFold] = []
        self.closed = False
        self._mark: Mark | None = None
        self._given: list[tuple[int, bytes, Row | None, list[Row]]] = []
        self.rows = self.dead = self.packed_bytes = 0
        #: Of places, of how long each of these is, and of what is there.
        self._hashes = (xxhash.xxh3_128(), xxhash.xxh3_128(), xxhash.xxh3_128())

    def pack(self, values: Values) -> bytes:
        """A row as the protocol writes it; nothing where rows are not wanted."""
        return encode_rows((values,)) if self.packs else b""

    def row(self, values: Values, packed: bytes) -> None:
        """One more row."""
        self.rows += 1
        if self.packs:
            self._parts.append(packed)
            self.packed_bytes += len(packed)
            return
        at = 0
        for fold, wanted in zip(self.folds, self.shape.outline.folds, strict=True):
            if wanted.column is None:
                fold.add(1)
                continue
            fold.add_cells((values[at],))
            at += 1

    def packed_rows(self, rows: int, data: bytes) -> None:
        """So many rows, packed."""
        self.rows += rows
        self._parts.append(data)
        self.packed_bytes += len(data)

    def pack_first(self, values: Values) -> bytes:
        """What is told of a row that begins a group."""
        return encode_rows((values[self.shape.folded :],))

    def begins(self, mark: Mark) -> bool:
        """Whether a row with this mark begins a group."""
        return self._mark != mark

    def group(self, mark: Mark | None, rows: int, first: bytes, end: Position, folds: Folds) -> None:
        """So many rows with this mark, the last of which is at `end`; a group begins with them where it is
        another one than the last, as it is where there is none."""
        self.rows += rows
        if mark is not None and self._mark == mark:
            self.groups[-1].add(end, folds)
            return
        self._mark = mark
        self.groups.append(GroupFold(self.shape.outline, first, end, folds))
        self.packed_bytes += len(first)

    def group_row(self, token: int, key: bytes, clustering: bytes | None, values: Values) -> None:
        """One more row of a group."""
        mark = self.shape.mark(key, clustering)
        first = self.pack_first(values) if self._mark != mark else b""
        columns = iter(values)
        folds = [
            (1, None) if fold.column is None else folded(fold, (next(columns),))
            for fold in self.shape.outline.folds
        ]
        self.group(mark, 1, first, Position(token, key, clustering or None), tuple(folds))

    def give(self, token: int, key: bytes, static: Row | None, rows: Sequence[Row], size_bytes: int) -> None:
        """Rows that show, of so many bytes as they are stored; without any the static row shows."""
        self.rows += len(rows) or 1
        self.packed_bytes += size_bytes
        if self._given and self._given[-1][:2] == (token, key):
            self._given[-1][3].extend(rows)
            return
        self._given.append((token, key, static, list(rows)))

    def given(self) -> tuple[Partition, ...]:
        return tuple(
            Partition(token, key, None, (), static, tuple(rows)) for token, key, static, rows in self._given
        )

    def live(self, partition: Partition, *, static_counts: bool) -> None:
        """A partition of live content only, with all its rows."""
        shape, static = self.shape, partition.static
        static_cells = () if static is None else static.cells
        for row in partition.rows:
            values = shape.passed(shape.values(partition.key, row.clustering, static_cells, row.cells))
            if values is not None:
                self.shown(partition, row, values)
        if not partition.rows and static_counts and any(cell.value is not None for cell in static_cells):
            values = shape.passed(shape.values(partition.key, None, static_cells, ()))
            if values is not None:
                self.shown(partition, None, values)

    def shown(self, partition: Partition, row: Row | None, values: Values, size_bytes: int = 0) -> None:
        """One row that shows, of so many bytes as it is stored. `partition`: what it has with others in
        common; without a row that shows."""
        if self.gives:
            rows = () if row is None else (row,)
            self.give(partition.token, partition.key, partition.static, rows, size_bytes)
        elif self.shape.grouping is not None:
            clustering = None if row is None else row.clustering
            self.group_row(partition.token, partition.key, clustering, values)
        else:
            self.row(values, self.pack(values))

    def content(self, places: Bytes, lengths: Bytes, values: Bytes) -> None:
        """What was read, in its order: places, their lengths as `LENGTH` has them, and what is there, which
        itself tells where it ends."""
        for one, data in zip(self._hashes, (places, lengths, values), strict=True):
            one.update(data)

    def content_at(self, place: bytes, value: bytes) -> None:
        """As `content`, of one place."""
        self.content(place, LENGTH.pack(len(place)), value)

    def told(self) -> Told:
        folds = tuple(fold.told() for fold in self.folds)
        groups = tuple([group.told() for group in self.groups])
        digest = xxhash.xxh3_128_digest(b"".join([one.digest() for one in self._hashes]))
        packed = b"".join(self._parts)
        return Told(self.rows, digest, packed, folds, self.dead, groups, self.closed, EDITION)


def joined(outline: Outline, parts: Sequence[Told]) -> Told:
    """Of neighbouring parts of one read, in their order. A group that goes on in the next part is there
    twice."""
    if len(parts) == 1:
        return parts[0]
    folds: list[tuple[int, bytes | None]] = []
    for at, fold in enumerate(outline.folds if outline.grouping is None else ()):
        whole = FoldedValues(fold)
        for part in parts:
            whole.add_told(part.folds[at])
        folds.append(whole.told())
    return Told(
        sum(part.rows for part in parts),
        b"",
        b"".join([part.packed for part in parts]),
        tuple(folds),
        sum(part.dead for part in parts),
        tuple([group for part in parts for group in part.groups]),
        parts[-1].closed,
        EDITION,
    )


def joined_given(parts: Iterable[Partition]) -> tuple[Partition, ...]:
    """Of neighbouring parts of one read, in their order: a partition that goes on is there once."""
    found: list[Partition] = []
    for part in parts:
        last = found[-1] if found else None
        if last is not None and (last.token, last.key) == (part.token, part.key):
            found[-1] = Partition(part.token, part.key, None, (), last.static, last.rows + part.rows)
        else:
            found.append(part)
    return tuple(found)
