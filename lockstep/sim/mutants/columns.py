"""Planted bugs of rows with several columns: what differs in one of them, ties, and what expires."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.coordination import page as page_module
from lockstep.coordination import read_round as read_round_module
from lockstep.replica import digests as digests_module
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.storage.rows import difference as difference_module
from lockstep.storage.rows import reconcile
from lockstep.storage.rows import visible as visible_module
from lockstep.values.rows import Cell, Partition, ReadResult, Row

_Context = contextlib.AbstractContextManager[None]


def _digest_of_first_cells() -> _Context:
    """Digests tell rows apart by the first of their cells only."""
    original = digests_module.digest_of

    def cut(row: Row) -> Row:
        return msgspec.structs.replace(row, cells=row.cells[:1])

    def digest(result: ReadResult) -> bytes:
        partitions = tuple(
            msgspec.structs.replace(part, rows=tuple(cut(row) for row in part.rows))
            for part in result.partitions
        )
        return original(msgspec.structs.replace(result, partitions=partitions))

    return replaced((digests_module, "digest_of", digest), (read_round_module, "digest_of", digest))


def _first_cell_repaired() -> _Context:
    """Of the cells that a replica lacks of a row it is sent the first."""
    original = difference_module._lacking_row

    def lacking(merged: Row, known: Row | None) -> Row | None:
        found = original(merged, known)
        if found is None or known is None:
            return found
        return msgspec.structs.replace(found, cells=found.cells[:1])

    return replaced((difference_module, "_lacking_row", lacking))


def _marker_not_repaired() -> _Context:
    """A replica that has a row's cells is not sent its marker."""
    original = difference_module._lacking_row

    def lacking(merged: Row, known: Row | None) -> Row | None:
        found = original(merged, known)
        if found is None or known is None:
            return found
        left = msgspec.structs.replace(found, liveness=None)
        return left if left != Row(merged.clustering) else None

    return replaced((difference_module, "_lacking_row", lacking))


def _map_deletion_not_repaired() -> _Context:
    """A replica that has a row is not sent that a collection of it was deleted."""
    original = difference_module._lacking_row

    def lacking(merged: Row, known: Row | None) -> Row | None:
        found = original(merged, known)
        if found is None or known is None:
            return found
        left = msgspec.structs.replace(found, column_deletions=())
        return left if left != Row(merged.clustering) else None

    return replaced((difference_module, "_lacking_row", lacking))


def _value_beats_deletion() -> _Context:
    """Of a value and a deletion with one timestamp the value wins."""

    def rank(cell: Cell) -> tuple[int, int, bytes, int]:
        if cell.value is None:
            return (-1, cell.expires_at_s, b"", cell.ttl_s)
        return (1 if cell.ttl_s else 0, cell.expires_at_s, cell.value, cell.ttl_s)

    return replaced((reconcile, "_rank", rank))


def _larger_value_beats_expiring() -> _Context:
    """Of two values with one timestamp the larger wins, whether one of them expires or not."""

    def rank(cell: Cell) -> tuple[int, int, bytes, int]:
        return (2 if cell.value is None else 0, 0, cell.value or b"", cell.ttl_s)

    return replaced((reconcile, "_rank", rank))


def _deletion_covers_older_only() -> _Context:
    """A deleted row's cells stay when they have the deletion's own timestamp."""
    original = reconcile._surviving

    def surviving(cells: Any, columns: Any, covered_us: int) -> tuple[Cell, ...]:
        return original(cells, columns, covered_us - 1)

    return replaced((reconcile, "_surviving", surviving))


def _expires_a_second_late() -> _Context:
    """A value is shown for a second longer than it lives."""
    original = visible_module.live_view

    def late(partition: Partition, now_s: int, *rest: Any) -> Partition:
        return original(partition, now_s - 1, *rest)

    return replaced((page_module, "live_view", late))


COLUMNS = (
    Planted("digest_of_first_cells", "replicas that differ go unseen", "columns", _digest_of_first_cells),
    Planted("first_cell_repaired", "columns go back", "columns", _first_cell_repaired),
    Planted("marker_not_repaired", "rows without values go back", "columns", _marker_not_repaired),
    Planted("map_deletion_not_repaired", "elements return", "columns", _map_deletion_not_repaired),
    Planted("value_beats_deletion", "what was deleted stays", "columns", _value_beats_deletion),
    Planted("larger_beats_expiring", "what expires is ignored", "columns", _larger_value_beats_expiring),
    Planted("deletion_covers_older_only", "what was deleted stays", "columns", _deletion_covers_older_only),
    Planted("expires_a_second_late", "what expired is read", "columns", _expires_a_second_late),
)
