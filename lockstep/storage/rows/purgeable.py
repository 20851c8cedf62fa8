"""What of a canonical partition nobody needs any more: tombstones and expired content that are old enough.

Invariant: what is left shows readers what the whole shows them from `before_s` on. Whoever drops the rest
from a store drops all that it shadows there in the same step.
"""

from __future__ import annotations

from lockstep.values.rows import MARKER_COLUMN, Cell, Deletion, Liveness, Partition, RangeDeletion, Row


def deletion_left(deletion: Deletion | None, before_s: int) -> Deletion | None:
    """None when it may go."""
    return None if deletion is None or deletion.deleted_at_s < before_s else deletion


def ranges_left(ranges: tuple[RangeDeletion, ...], before_s: int) -> tuple[RangeDeletion, ...]:
    return tuple(one for one in ranges if one.deletion.deleted_at_s >= before_s)


def _liveness_left(liveness: Liveness | None, before_s: int) -> Liveness | None:
    if liveness is not None and liveness.ttl_s and liveness.expires_at_s < before_s:
        return None
    return liveness


def _cell_is_dead(cell: Cell, before_s: int) -> bool:
    """Both a tombstone's deletion and the expiry of a value are in `expires_at_s`."""
    return (cell.value is None or cell.ttl_s > 0) and cell.expires_at_s < before_s


def row_left(row: Row, before_s: int) -> Row | None:
    """The canonical row without what may go, itself when nothing may; None when nothing is left."""
    deletion = deletion_left(row.deletion, before_s)
    liveness = _liveness_left(row.liveness, before_s)
    cells, columns = row.cells, row.column_deletions
    if cells and cells[0].column == MARKER_COLUMN and _cell_is_dead(cells[0], before_s):
        return None if deletion is None else Row(row.clustering, None, deletion)
    if any(_cell_is_dead(cell, before_s) for cell in cells):
        cells = tuple(cell for cell in cells if not _cell_is_dead(cell, before_s))
    if columns:
        columns = tuple(entry for entry in columns if entry.deletion.deleted_at_s >= before_s)
    same = deletion is row.deletion and liveness is row.liveness and cells is row.cells
    if same and len(columns) == len(row.column_deletions):
        return row
    if deletion is None and liveness is None and not cells and not columns:
        return None
    return Row(row.clustering, liveness, deletion, cells, columns)


def partition_left(partition: Partition, before_s: int) -> Partition:
    """The canonical partition without what may go; it may be empty."""
    static = None if partition.static is None else row_left(partition.static, before_s)
    rows = (row_left(row, before_s) for row in partition.rows)
    return Partition(
        partition.token,
        partition.key,
        deletion_left(partition.deletion, before_s),
        ranges_left(partition.range_deletions, before_s),
        static,
        tuple(row for row in rows if row is not None),
    )
