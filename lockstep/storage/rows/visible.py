"""What a client may see of a merged partition at a moment.

Invariant: a row exists exactly when its marker or at least one of its cells is live, whatever columns the
command asks for, cells of dropped columns excepted; columns are therefore taken away here, after every
source was merged, and never earlier.
Replicas answer with all cells of a row: a cell that was not asked for can decide whether the row exists
once another replica's deletion is known, and read repair must never see half a row.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from lockstep.values.rows import ALL_ROWS, Liveness, Partition, ReadCommand, Row


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


def live_view(
    partition: Partition, now_s: int, columns: Sequence[int] = (), dropped: Container[int] = ()
) -> Partition:
    """The partition without tombstones, deleted and expired content; `columns` () keeps all. Rows that have
    nothing but cells of `dropped` columns do not exist.

    `partition` must be canonical, as merging returns it. Its rows keep their order; a row that exists
    stays even when no cell of `columns` is left in it, and so does a static row.
    """
    wanted = frozenset(columns) if columns else None
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
