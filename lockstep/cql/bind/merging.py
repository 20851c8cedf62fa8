"""Several changes of one partition in one request become one mutation.

Invariant: the merged mutation has the effect of its parts in any order: per cell the newer timestamp
wins; at equal timestamps a tombstone, then an expiring cell, then the larger value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import COUNTER_BOUND
from lockstep.values.rows import Cell, ColumnDeletion, Deletion, Liveness, Mutation, Row

#: What two cells of one place become.
Both = Callable[[Cell, Cell], Cell]


def merged_mutations(parts: Sequence[Mutation], *, adds: bool = False) -> tuple[Mutation, ...]:
    """One mutation for each (table, key), in order of first appearance. `adds`: cells are changes of
    counters, all of which count."""
    groups: dict[tuple[int, bytes], list[Mutation]] = {}
    for part in parts:
        groups.setdefault((part.table_id, part.key), []).append(part)
    return tuple(
        group[0] if len(group) == 1 else _merged(group, _sum if adds else winner) for group in groups.values()
    )


def _merged(group: Sequence[Mutation], both: Both) -> Mutation:
    first = group[0]
    deletion: Deletion | None = None
    static: Row | None = None
    rows: dict[bytes, Row] = {}
    for part in group:
        deletion = _newer_deletion(deletion, part.deletion)
        if part.static is not None:
            static = part.static if static is None else _merged_rows(static, part.static, both)
        for row in part.rows:
            earlier = rows.get(row.clustering)
            rows[row.clustering] = row if earlier is None else _merged_rows(earlier, row, both)
    return Mutation(
        first.table_id,
        first.token,
        first.key,
        first.mutation_id,
        max(part.timestamp_us for part in group),
        deletion,
        tuple(found for part in group for found in part.range_deletions),
        static,
        tuple(rows[clustering] for clustering in sorted(rows)),
    )


def _merged_rows(a: Row, b: Row, both: Both) -> Row:
    cells: dict[tuple[int, bytes], Cell] = {}
    for cell in (*a.cells, *b.cells):
        place = (cell.column, cell.path or b"")
        earlier = cells.get(place)
        cells[place] = cell if earlier is None else both(earlier, cell)
    deletions: dict[int, ColumnDeletion] = {}
    for found in (*a.column_deletions, *b.column_deletions):
        known = deletions.get(found.column)
        if known is None or known.deletion.timestamp_us < found.deletion.timestamp_us:
            deletions[found.column] = found
    return Row(
        a.clustering,
        _newer_liveness(a.liveness, b.liveness),
        _newer_deletion(a.deletion, b.deletion),
        tuple(cells[place] for place in sorted(cells)),
        tuple(deletions[column] for column in sorted(deletions)),
    )


def _sum(a: Cell, b: Cell) -> Cell:
    assert a.value is not None and b.value is not None, "a change of a counter has a value"
    total = int.from_bytes(a.value, "big", signed=True) + int.from_bytes(b.value, "big", signed=True)
    if not -COUNTER_BOUND <= total < COUNTER_BOUND:
        raise InvalidRequest("The changes of one counter in a batch overflow it")
    return msgspec.structs.replace(a, value=total.to_bytes(8, "big", signed=True))


def winner(a: Cell, b: Cell) -> Cell:
    """The one of two cells of one place that stays."""
    return a if _rank(a) >= _rank(b) else b


def _rank(cell: Cell) -> tuple[int, bool, bool, int, bytes]:
    return (
        cell.timestamp_us,
        cell.value is None,
        cell.ttl_s > 0,
        cell.expires_at_s,
        cell.value or b"",
    )


def _newer_deletion(a: Deletion | None, b: Deletion | None) -> Deletion | None:
    if a is None or b is None:
        return a if b is None else b
    return a if a.timestamp_us >= b.timestamp_us else b


def _newer_liveness(a: Liveness | None, b: Liveness | None) -> Liveness | None:
    if a is None or b is None:
        return a if b is None else b
    rank_a = (a.timestamp_us, a.ttl_s > 0, a.expires_at_s)
    return a if rank_a >= (b.timestamp_us, b.ttl_s > 0, b.expires_at_s) else b
