"""Reconciliation: one state out of any number of sources, by Cassandra's rules.

Sources are the fragments of one replica or the answers of several. Per cell the higher timestamp wins; on
a tie a tombstone beats any value, an expiring value beats one that stays, then the later expiry (or
deletion time), then the larger value wins. A deletion covers everything under it with a timestamp at or
below its own.

Invariant: merging is idempotent, commutative and associative, and what it returns is canonical: nothing
that one of its own deletions covers, cells sorted by (column, path), rows by clustering, each once.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.storage.rows.deletions import Shadow, normal_ranges, stronger
from lockstep.values.rows import Cell, ColumnDeletion, Deletion, Liveness, Partition, Row

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
    if len(rows) == 1:
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
