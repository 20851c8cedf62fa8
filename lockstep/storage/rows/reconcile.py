"""Reconciliation: one state out of any number of sources, by Cassandra's rules, with deletions of ranges and
partitions.

Sources are the fragments of one replica or the answers of several. Per cell the higher timestamp wins; on a
tie a tombstone beats any value, an expiring value beats one that stays, then the later expiry (or deletion
time), then the larger value wins. A deletion covers everything under it with a timestamp at or below its own.

Invariant: merging is idempotent, commutative and associative, and what it returns is canonical: nothing that
one of its own deletions covers, cells sorted by (column, path), rows by clustering, each once. Ranges are
sorted by start, do not overlap, touching ranges with the same deletion are one range, and none is weaker than
the partition deletion. Two lists that delete the same rows are equal, which makes merging idempotent,
commutative and associative.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Sequence

from lockstep.values.rows import Cell, ColumnDeletion, Deletion, Liveness, Partition, RangeDeletion, Row


def stronger(left: Deletion | None, right: Deletion | None) -> Deletion | None:
    """The one with the higher timestamp; on a tie the one made later, so that the order is total."""
    if left is None or right is None:
        return right if left is None else left
    if left.timestamp_us != right.timestamp_us:
        return left if left.timestamp_us > right.timestamp_us else right
    return left if left.deleted_at_s >= right.deleted_at_s else right


def normal_ranges(ranges: Sequence[RangeDeletion], floor: Deletion | None) -> tuple[RangeDeletion, ...]:
    """The normal form of any list of range deletions under a partition deletion."""
    live = [r for r in ranges if not r.end or r.start < r.end]
    if floor is not None:
        live = [r for r in live if r.deletion.timestamp_us > floor.timestamp_us]
    if len(live) < 2:
        return tuple(live)
    live.sort(key=lambda r: r.start)
    if all(a.end and a.end <= b.start for a, b in itertools.pairwise(live)):
        return tuple(_joined(live))
    return tuple(_joined(_flattened(live)))


def _flattened(ranges: Sequence[RangeDeletion]) -> list[RangeDeletion]:
    """Cut ranges sorted by start at every bound; in each piece the strongest one rules."""
    bounds = dict.fromkeys(r.start for r in ranges) | dict.fromkeys(r.end for r in ranges if r.end)
    cuts = sorted(bounds)
    pieces: list[RangeDeletion] = []
    ruling: list[tuple[int, int, int]] = []
    entered = 0
    for at, cut in enumerate(cuts):
        while entered < len(ranges) and ranges[entered].start <= cut:
            deletion = ranges[entered].deletion
            heapq.heappush(ruling, (-deletion.timestamp_us, -deletion.deleted_at_s, entered))
            entered += 1
        while ruling and ranges[ruling[0][2]].end and ranges[ruling[0][2]].end <= cut:
            heapq.heappop(ruling)
        if ruling:
            end = cuts[at + 1] if at + 1 < len(cuts) else b""
            pieces.append(RangeDeletion(cut, end, ranges[ruling[0][2]].deletion))
    return pieces


def _joined(ranges: Sequence[RangeDeletion]) -> list[RangeDeletion]:
    joined = [ranges[0]]
    for piece in ranges[1:]:
        last = joined[-1]
        if last.end and last.end == piece.start and last.deletion == piece.deletion:
            joined[-1] = RangeDeletion(last.start, piece.end, last.deletion)
        else:
            joined.append(piece)
    return joined


class Shadow:
    """What a partition's deletions say about each of its rows; ranges must be in normal form."""

    __slots__ = ("_floor", "_ranges", "_starts")

    def __init__(self, floor: Deletion | None, ranges: Sequence[RangeDeletion]) -> None:
        self._floor = floor
        self._ranges = ranges
        self._starts = [r.start for r in ranges]

    @property
    def floor(self) -> Deletion | None:
        """What covers the whole partition."""
        return self._floor

    def over(self, clustering: bytes) -> Deletion | None:
        """The strongest deletion that covers the row, not counting the row's own."""
        covering = range_over(self._starts, self._ranges, clustering)
        return self._floor if covering is None else covering.deletion


def range_over(
    starts: Sequence[bytes], ranges: Sequence[RangeDeletion], clustering: bytes
) -> RangeDeletion | None:
    """The range of a normal list that contains the clustering bytes; `starts` are its starts."""
    at = bisect.bisect_right(starts, clustering) - 1
    if at < 0 or (ranges[at].end and clustering >= ranges[at].end):
        return None
    return ranges[at]


_OLDEST = -(1 << 63) - 1
_CellPlace = tuple[int, bytes | None]


def stronger_cell(left: Cell, right: Cell) -> Cell:
    """The winner of two states of one cell."""
    if left.timestamp_us != right.timestamp_us:
        return left if left.timestamp_us > right.timestamp_us else right
    return left if _rank(left) >= _rank(right) else right


def _rank(cell: Cell) -> tuple[int, int, bytes, int]:
    if cell.value is None:
        return (2, cell.expires_at_s, b"", cell.ttl_s)
    return (1 if cell.ttl_s else 0, cell.expires_at_s, cell.value, cell.ttl_s)


def stronger_liveness(left: Liveness | None, right: Liveness | None) -> Liveness | None:
    """The newer row marker; on a tie an expiring one, then the one that expires later."""
    if left is None or right is None:
        return right if left is None else left
    return left if _liveness_rank(left) >= _liveness_rank(right) else right


def _liveness_rank(liveness: Liveness) -> tuple[int, bool, int, int]:
    return (liveness.timestamp_us, liveness.ttl_s > 0, liveness.expires_at_s, liveness.ttl_s)


def merge_rows(rows: Sequence[Row], over: Deletion | None = None) -> Row | None:
    """One canonical row out of states of the same row, under an outer deletion; None when nothing is left."""
    first = rows[0]
    if len(rows) == 1 or _overwrites(first, rows):
        return shadowed(first, over)
    if all(row == first for row in rows):
        return shadowed(first, over)
    deletion, liveness = first.deletion, first.liveness
    columns = {entry.column: entry for entry in first.column_deletions}
    cells: dict[_CellPlace, Cell] = {(cell.column, cell.path): cell for cell in first.cells}
    for row in rows[1:]:
        deletion = stronger(deletion, row.deletion)
        liveness = stronger_liveness(liveness, row.liveness)
        for entry in row.column_deletions:
            known = columns.get(entry.column)
            if known is None or stronger(known.deletion, entry.deletion) is entry.deletion:
                columns[entry.column] = entry
        for cell in row.cells:
            place = (cell.column, cell.path)
            rival = cells.get(place)
            cells[place] = cell if rival is None else stronger_cell(rival, cell)
    merged = Row(
        first.clustering,
        liveness,
        deletion,
        tuple(sorted(cells.values(), key=_cell_order)),
        tuple(columns[column] for column in sorted(columns)),
    )
    return shadowed(merged, over)


def _overwrites(first: Row, rows: Sequence[Row]) -> bool:
    """Whether the first row is all that is left of the rows, as where the same cells are written again: those
    of the others are older, each of them."""
    liveness, cells = first.liveness, first.cells
    if first.deletion is not None or first.column_deletions:
        return False
    for row in rows:
        if row is first:
            continue
        if row.deletion is not None or row.column_deletions or len(row.cells) != len(cells):
            return False
        other = row.liveness
        if other is not None and (liveness is None or other.timestamp_us >= liveness.timestamp_us):
            return False
        for newer, older in zip(cells, row.cells, strict=True):
            if older.timestamp_us >= newer.timestamp_us or older.column != newer.column:
                return False
            if older.path != newer.path:
                return False
    return True


def _cell_order(cell: Cell) -> tuple[int, bytes]:
    return (cell.column, cell.path or b"")


def shadowed(row: Row, over: Deletion | None) -> Row | None:
    """The row without what the outer deletion and its own deletions cover; None when nothing is left."""
    deletion, liveness, cells, columns = row.deletion, row.liveness, row.cells, row.column_deletions
    if over is None and deletion is None and not columns:
        return row if cells or liveness is not None else None
    covered_us = _OLDEST if over is None else over.timestamp_us
    if deletion is not None:
        if deletion.timestamp_us > covered_us:
            covered_us = deletion.timestamp_us
        else:
            deletion = None
    if liveness is not None and liveness.timestamp_us <= covered_us:
        liveness = None
    if columns:
        columns = tuple(entry for entry in columns if entry.deletion.timestamp_us > covered_us)
    cells = _surviving(cells, columns, covered_us)
    if not cells and liveness is None and deletion is None and not columns:
        return None
    return Row(row.clustering, liveness, deletion, cells, columns)


def _surviving(
    cells: tuple[Cell, ...], columns: tuple[ColumnDeletion, ...], covered_us: int
) -> tuple[Cell, ...]:
    if not columns:
        return tuple(cell for cell in cells if cell.timestamp_us > covered_us)
    covered = {entry.column: entry.deletion.timestamp_us for entry in columns}
    return tuple(cell for cell in cells if cell.timestamp_us > covered.get(cell.column, covered_us))


def merge_partitions(sources: Sequence[Partition], *, reverse: bool = False) -> Partition:
    """One canonical state of a partition out of any positive number of states of it.

    Rows of the result are in clustering order, or the other way round when `reverse`.
    """
    first = sources[0]
    deletion = first.deletion
    for source in sources:
        assert source.key == first.key and source.token == first.token, "sources are of one partition"
        deletion = stronger(deletion, source.deletion)
    ranges = normal_ranges([r for source in sources for r in source.range_deletions], deletion)
    statics = [source.static for source in sources if source.static is not None]
    static = merge_rows(statics, deletion) if statics else None
    by_clustering: dict[bytes, list[Row]] = {}
    for source in sources:
        for row in source.rows:
            by_clustering.setdefault(row.clustering, []).append(row)
    shadow = Shadow(deletion, ranges) if ranges else None
    rows: list[Row] = []
    for clustering in sorted(by_clustering, reverse=reverse):
        over = deletion if shadow is None else shadow.over(clustering)
        merged = merge_rows(by_clustering[clustering], over)
        if merged is not None:
            rows.append(merged)
    return Partition(first.token, first.key, deletion, ranges, static, tuple(rows))


def is_empty(partition: Partition) -> bool:
    """True when the partition says nothing at all, not even that something was deleted."""
    return not (
        partition.rows
        or partition.deletion is not None
        or partition.range_deletions
        or partition.static is not None
    )
