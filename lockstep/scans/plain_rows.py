"""What an outline wants of many stored rows, those of one form together.

Invariant: what is found of a row is what merging its fragments and showing it as of one second gives. Rows of
several fragments, and of forms that few share, are left to be merged alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from lockstep.scans.gather import PADDING, Cells, Fixed, Joined, Raw, Varying
from lockstep.scans.passing import passing
from lockstep.scans.row_groups import Segment, bounds_of, folds_of
from lockstep.scans.row_groups import segments as _segments
from lockstep.scans.row_keys import RowKeys, Unescaped
from lockstep.scans.row_shapes import Alike, ShapeRules, Shapes
from lockstep.scans.telling import OutlineShape, Telling, Values, folded
from lockstep.storage.store import Pair
from lockstep.values.outlines import CLUSTERING, PARTITION_KEY, REGULAR, OutlineColumn
from lockstep.values.rows import ReadCommand

_NULL: Final = b"\xff\xff\xff\xff"


class Shown:
    """Of fragments of one form the `rows` that show, by their numbers, and what is told of them. `dead`:
    tombstones in all."""

    def __init__(self, alike: Alike, columns: list[Raw | None], shape: OutlineShape) -> None:
        self.rows = alike.rows
        self.dead = alike.shape.dead * len(alike.rows)
        if shape.filters:
            mask = passing(shape.filters, columns[shape.told :], len(alike.rows))
            columns = columns[: shape.told]
            if not mask.all():
                kept = np.flatnonzero(mask)
                self.rows = alike.rows[kept]
                columns = [None if one is None else one.taken(kept) for one in columns]
        self.columns = columns
        self.count = len(self.rows)


class Together:
    """Rows that share forms, of one portion. `alone`: which fragments are not among them; `same`: whether a
    fragment is of the same row as the one before it; `runs`: of which group each is, where there are any."""

    def __init__(
        self,
        pairs: Sequence[Pair],
        row_keys: RowKeys,
        values: Joined,
        groups: list[Shown],
        alone: Any,
        same: Any,
        runs: Any = None,
    ) -> None:
        self.pairs = pairs
        self._row_keys = row_keys
        self._values = values
        self.groups = groups
        self._alone = alone
        self._same = same
        self.runs = runs

    @property
    def is_uniform(self) -> bool:
        """Whether all rows share one form."""
        return len(self.groups) == 1 and not len(self._alone)

    @property
    def size_bytes(self) -> int:
        """Of all fragments, without what their keys have in common."""
        return self._row_keys.joined.size_bytes + self._values.size_bytes

    def content(self) -> tuple[memoryview, bytes, memoryview]:
        """See `Telling.content`; only where all rows share one form."""
        places = self._row_keys.joined
        return places.content, places.lengths.astype("<u4").tobytes(), self._values.content

    def rows_alone(self) -> Iterator[tuple[int, int]]:
        """(first fragment, behind the last) of each row that is to be merged alone."""
        at = 0
        while at < len(self._alone):
            first = int(self._alone[at])
            end = first + 1
            while self._same[end]:
                end += 1
            at += end - first
            yield first, end


class PlainRows:
    """Of one outline and one table."""

    def __init__(self, shape: OutlineShape, command: ReadCommand) -> None:
        self._shape = shape
        rules = ShapeRules(
            dict(shape.outline.widths),
            frozenset(command.dropped),
            frozenset(column for column, _ in command.dead),
        )
        self._shapes = Shapes(rules)
        self._key_positions = {one.position for one in shape.columns if one.kind == PARTITION_KEY}
        self._clustering_positions = {one.position for one in shape.columns if one.kind == CLUSTERING}

    @staticmethod
    def keys(pairs: Sequence[Pair]) -> RowKeys:
        return RowKeys(pairs)

    def together(self, pairs: Sequence[Pair], row_keys: RowKeys) -> Together:
        """Of fragments of rows only."""
        same = row_keys.joined.repeats()
        unescaped = row_keys.unescaped()
        of_keys = self._of_keys(unescaped)
        candidates = ~(same[:-1] | same[1:]) & unescaped.good
        joined = Joined([value for _, value in pairs])
        alone = np.ones(len(pairs), dtype=bool)
        groups: list[Shown] = []
        for alike in self._shapes.sorted_out(joined, np.flatnonzero(candidates)):
            alone[alike.rows] = False
            every = len(alike.rows) == len(pairs)
            columns = [_column(one, alike, of_keys, every) for one in self._shape.columns]
            groups.append(Shown(alike, columns, self._shape))
        runs = self._runs(unescaped, len(pairs))
        return Together(pairs, row_keys, joined, groups, np.flatnonzero(alone), same, runs)

    def _runs(self, unescaped: Unescaped, count: int) -> Any:
        shape = self._shape
        if shape.grouping is None:
            return None
        if shape.grouping.depth is None:
            return np.zeros(count, dtype="i8")
        return unescaped.runs(shape.clustering_kinds, shape.descending, shape.grouping.depth)

    def _of_keys(self, unescaped: Unescaped) -> dict[tuple[int, int], Raw]:
        """By kind and position."""
        found: dict[tuple[int, int], Raw] = {}
        if self._key_positions:
            of_key = unescaped.partition_key(self._shape.key_kinds, self._key_positions)
            found.update({(PARTITION_KEY, position): raw for position, raw in of_key.items()})
        if self._clustering_positions:
            kinds, descending = self._shape.clustering_kinds, self._shape.descending
            of_row = unescaped.clustering(kinds, descending, self._clustering_positions)
            found.update({(CLUSTERING, position): raw for position, raw in of_row.items()})
        return found


def _column(
    column: OutlineColumn, alike: Alike, of_keys: dict[tuple[int, int], Raw], every: bool
) -> Raw | None:
    """`every`: whether no row of the portion is missing."""
    if column.kind == REGULAR:
        return alike.column(column.id)
    # Of a partition with nothing but rows, static columns are null.
    raw = of_keys.get((column.kind, column.position))
    return raw if raw is None or every else raw.taken(alike.rows)


def packed(columns: Sequence[Raw | None], count: int) -> list[bytes]:
    """Rows as the protocol writes them."""
    parts = [_rows_of(part) if not isinstance(part, list) else part for part in _parts(columns, count)]
    if not parts:
        return [b""] * count
    return parts[0] if len(parts) == 1 else [b"".join(row) for row in zip(*parts, strict=True)]


def packed_whole(columns: Sequence[Raw | None], count: int) -> bytes:
    """As `packed`, all of them one behind the other."""
    parts = _parts(columns, count)
    if len(parts) == 1 and not isinstance(parts[0], list):
        data: bytes = parts[0].tobytes()
        return data
    lists = [_rows_of(part) if not isinstance(part, list) else part for part in parts]
    return b"".join(itertools.chain.from_iterable(zip(*lists, strict=True)))


def _rows_of(table: Any) -> list[bytes]:
    data, width = table.tobytes(), table.shape[1]
    return [data[at : at + width] for at in range(0, len(data), width)]


def _parts(columns: Sequence[Raw | None], count: int) -> list[Any]:
    """Rows of bytes, of one width as a table and of several as a list; side by side they are packed rows."""
    found: list[Any] = []
    tables: list[Any] = []

    def flush() -> None:
        if tables:
            found.append(np.concatenate(tables, axis=1))
            tables.clear()

    for raw in columns:
        if raw is None:
            tables.append(_repeated(_NULL, count))
            continue
        if isinstance(raw, Cells):
            flush()
            found.append([_NULL if one is None else len(one).to_bytes(4, "big") + one for one in raw.values])
            continue
        table = raw.table if isinstance(raw, Fixed) else raw.equal_table(PADDING)
        if table is not None:
            tables += (_repeated(table.shape[1].to_bytes(4, "big"), count), table)
            continue
        assert isinstance(raw, Varying), "only values of different lengths have no table"
        tables.append(np.ascontiguousarray(raw.lengths.astype(">i4")).view("u1").reshape(count, 4))
        flush()
        found.append(raw.cells())
    flush()
    return found


def segments(shape: OutlineShape, shown: Shown, runs: Any) -> list[Segment]:
    """Rows that show by their groups."""
    if not shown.count:
        return []
    bounds = bounds_of(shown.rows, runs)
    folded, firsts = shown.columns[: shape.folded], shown.columns[shape.folded :]
    rows = packed([None if one is None else one.taken(bounds[0]) for one in firsts], len(bounds[0]))
    return _segments(shape.outline, shown.rows, runs, bounds, folded, rows)


def segment_alone(shape: OutlineShape, at: int, run: int, values: Values, first: bytes) -> Segment:
    """A row that was merged alone, by itself."""
    columns = iter(values)
    folds = [
        (1, None) if fold.column is None else folded(fold, (next(columns),)) for fold in shape.outline.folds
    ]
    return Segment(run, at, at, 1, tuple(folds), first)


def _repeated(data: bytes, count: int) -> Any:
    return np.broadcast_to(np.frombuffer(data, dtype="u1"), (count, len(data)))


def fold(telling: Telling, columns: Sequence[Raw | None], count: int) -> None:
    """Take the values of so many rows into all aggregates."""
    telling.rows += count
    at = 0
    for one, wanted in zip(telling.folds, telling.shape.outline.folds, strict=True):
        if wanted.column is None:
            one.add(count)
            continue
        raw = columns[at]
        at += 1
        if raw is not None:
            (told,) = folds_of(wanted, raw, np.array([0]), np.array([count]))
            one.add_told(told)
