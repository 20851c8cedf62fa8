"""Counting what a read had to look at and no client sees: tombstones and expired cells.

Invariant: the count is of merged content, so it does not depend on how many fragments there are. A row with
dead cells counts by those and not by its own deletion, and the deletion of a whole partition does not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.storage.visible import row_is_live
from lockstep.values.rows import Partition, Row


def count_dead(partitions: Iterable[Partition], now_s: int) -> int:
    """Dead cells, deleted rows without any, and deleted ranges of rows."""
    dead = 0
    for partition in partitions:
        dead += len(partition.range_deletions)
        if partition.static is not None:
            dead += _of_row(partition.static, now_s)
        for row in partition.rows:
            dead += _of_row(row, now_s)
    return dead


def _of_row(row: Row, now_s: int) -> int:
    dead = len(row.column_deletions)
    for cell in row.cells:
        if cell.value is None or (cell.ttl_s and cell.expires_at_s <= now_s):
            dead += 1
    if not dead and row.deletion is not None and not row_is_live(row, now_s):
        return 1
    return dead
