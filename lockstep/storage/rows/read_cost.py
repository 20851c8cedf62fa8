"""Weighing what a read found: what no client sees of it, and how large it is.

Invariant: what is dead is counted in merged content, so it does not depend on how many fragments there are.
A row with dead cells counts by those and not by its own deletion; the deletion of a whole partition does not
count.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.storage.rows.visible import row_is_live
from lockstep.values.rows import Partition, Row

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
