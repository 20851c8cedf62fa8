"""What of a merged partition a client may see at a moment, what a read of it weighs, and what of it nobody
needs any more.

Invariant: a row exists exactly when its marker or at least one of its cells is live, whatever columns the
command asks for, cells of dropped columns excepted; columns are therefore taken away here, after every source
was merged, and never earlier. Replicas answer with all cells of a row: a cell that was not asked for can
decide whether the row exists once another replica's deletion is known, and read repair must never see half a
row. What is dead is counted in merged content, so it does not depend on how many fragments there are. A row
with dead cells counts by those and not by its own deletion; the deletion of a whole partition does not count.
What is left shows readers what the whole shows them from `before_s` on. Whoever drops the rest from a store
drops all that it shadows there in the same step.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from lockstep.values.rows import (
    ALL_ROWS,
    MARKER_COLUMN,
    Cell,
    Deletion,
    Liveness,
    Partition,
    RangeDeletion,
    ReadCommand,
    Row,
)


def without_dead(row: Row, dead: Mapping[int, int]) -> Row | None:
    """The row without cells at or below the time of their column, by id; None when nothing is left."""
    cells = tuple(
        cell for cell in row.cells if cell.column not in dead or cell.timestamp_us > dead[cell.column]
    )
    if len(cells) == len(row.cells):
        return row
    if not cells and row.liveness is None and row.deletion is None and not row.column_deletions:
        return None
    return Row(row.clustering, row.liveness, row.deletion, cells, row.column_deletions)


def liveness_is_live(liveness: Liveness | None, now_s: int) -> bool:
    return liveness is not None and (not liveness.ttl_s or liveness.expires_at_s > now_s)


def row_is_live(row: Row, now_s: int, dropped: Container[int] = ()) -> bool:
    """Whether a canonical row exists for a client; a static row counts when it has a live cell. Cells of
    `dropped` columns do not count."""
    liveness = row.liveness
    if liveness is not None and (not liveness.ttl_s or liveness.expires_at_s > now_s):
        return True
    return any(
        cell.value is not None
        and (not cell.ttl_s or cell.expires_at_s > now_s)
        and cell.column not in dropped
        for cell in row.cells
    )


def live_row(
    row: Row, now_s: int, columns: frozenset[int] | None, dropped: Container[int] = ()
) -> Row | None:
    """The row with only its live cells of `columns` (None: all); None when it does not exist."""
    if not row_is_live(row, now_s, dropped):
        return None
    cells = tuple(
        cell
        for cell in row.cells
        if cell.value is not None
        and (not cell.ttl_s or cell.expires_at_s > now_s)
        and (columns is None or cell.column in columns)
    )
    return Row(row.clustering, row.liveness if liveness_is_live(row.liveness, now_s) else None, None, cells)


def shows_all(rows: Iterable[Row]) -> bool:
    """Whether canonical rows are at every moment shown to clients just as they are: all have a marker, and
    nothing in them is deleted or expires."""
    for row in rows:
        liveness = row.liveness
        if liveness is None or liveness.ttl_s or row.deletion is not None or row.column_deletions:
            return False
        for cell in row.cells:
            if cell.value is None or cell.ttl_s:
                return False
    return True


def live_view(
    partition: Partition, now_s: int, columns: Sequence[int] = (), dropped: Container[int] = ()
) -> Partition:
    """The partition without tombstones, deleted and expired content; `columns` () keeps all. Rows that have
    nothing but cells of `dropped` columns do not exist.

    `partition` must be canonical, as merging returns it. Its rows keep their order; a row that exists
    stays even when no cell of `columns` is left in it, and so does a static row.
    """
    wanted = frozenset(columns) if columns else None
    if wanted is None and partition.static is None and shows_all(partition.rows):
        if partition.deletion is None and not partition.range_deletions:
            return partition
        return Partition(partition.token, partition.key, None, (), None, partition.rows)
    static = None if partition.static is None else live_row(partition.static, now_s, wanted, dropped)
    found = (live_row(row, now_s, wanted, dropped) for row in partition.rows)
    rows = tuple(row for row in found if row is not None)
    return Partition(partition.token, partition.key, None, (), static, rows)


def counts_static(command: ReadCommand, key: bytes) -> bool:
    """Whether a partition with a live static row and no live rows counts as one row of the answer.

    Not when the command restricts clustering, and not when a page continues inside the partition.
    """
    if not command.reads_static or command.slices != ALL_ROWS:
        return False
    after = command.after
    return after is None or after.key != key or after.clustering is None


#: What a row or a cell has besides its value, about.
_PLACE_BYTES = 16


def weigh(partitions: Iterable[Partition], now_s: int) -> tuple[int, int]:
    """(dead cells, deleted rows without any, and deleted ranges of rows; about the bytes of it all)."""
    dead = size = 0
    for partition in partitions:
        dead += len(partition.range_deletions)
        if partition.static is not None:
            dead += _deletions(partition.static, now_s)
            for cell in partition.static.cells:
                size += _PLACE_BYTES + len(cell.value or b"")
        size += _PLACE_BYTES * len(partition.rows)
        for row in partition.rows:
            if row.deletion is not None or row.column_deletions:
                dead += _deletions(row, now_s)
                for cell in row.cells:
                    size += _PLACE_BYTES + len(cell.value or b"")
                continue
            for cell in row.cells:
                value = cell.value
                if value is None or (cell.ttl_s and cell.expires_at_s <= now_s):
                    dead += 1
                else:
                    size += len(value)
            size += _PLACE_BYTES * len(row.cells)
    return dead, size


def _deletions(row: Row, now_s: int) -> int:
    dead = len(row.column_deletions)
    for cell in row.cells:
        if cell.value is None or (cell.ttl_s and cell.expires_at_s <= now_s):
            dead += 1
    if not dead and row.deletion is not None and not row_is_live(row, now_s):
        return 1
    return dead


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
