"""What one source lacks of a merged partition: the content of a read repair.

Invariant: merging a source with its difference gives the same as merging it with the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.storage.rows.reconcile import range_over, stronger
from lockstep.values.rows import Deletion, Mutation, Partition, RangeDeletion, Row


def difference(merged: Partition, source: Partition | None) -> Partition | None:
    """What `source` must be sent to know everything `merged` says; None when it lacks nothing.

    Both are canonical; `source` None means it answered with nothing for this partition. Only content
    that the read saw is compared, so a source that stopped at a limit may be sent what it already has.
    """
    if source is None:
        source = Partition(merged.token, merged.key)
    deletion = _lacking(merged.deletion, source.deletion)
    ranges = _lacking_ranges(merged.range_deletions, source.range_deletions)
    static = None if merged.static is None else _lacking_row(merged.static, source.static)
    known = {row.clustering: row for row in source.rows}
    rows: list[Row] = []
    for row in merged.rows:
        other = known.get(row.clustering)
        lacking = None if other == row else _lacking_row(row, other)
        if lacking is not None:
            rows.append(lacking)
    if deletion is None and not ranges and static is None and not rows:
        return None
    return Partition(merged.token, merged.key, deletion, ranges, static, tuple(rows))


def _lacking(merged: Deletion | None, known: Deletion | None) -> Deletion | None:
    if merged is None or (known is not None and stronger(known, merged) == known):
        return None
    return merged


def _lacking_ranges(
    merged: Sequence[RangeDeletion], known: Sequence[RangeDeletion]
) -> tuple[RangeDeletion, ...]:
    starts = [r.start for r in known]
    return tuple(r for r in merged if not _is_within(r, range_over(starts, known, r.start)))


def _is_within(wanted: RangeDeletion, known: RangeDeletion | None) -> bool:
    if known is None or known.deletion != wanted.deletion:
        return False
    return not known.end or bool(wanted.end and wanted.end <= known.end)


def _lacking_row(merged: Row, known: Row | None) -> Row | None:
    if known is None:
        return merged
    cells = {(cell.column, cell.path): cell for cell in known.cells}
    columns = {entry.column: entry for entry in known.column_deletions}
    lacking = Row(
        merged.clustering,
        merged.liveness if merged.liveness != known.liveness else None,
        _lacking(merged.deletion, known.deletion),
        tuple(cell for cell in merged.cells if cells.get((cell.column, cell.path)) != cell),
        tuple(entry for entry in merged.column_deletions if columns.get(entry.column) != entry),
    )
    return lacking if lacking != Row(merged.clustering) else None


def repair_mutation(table_id: int, lacking: Partition, mutation_id: bytes) -> Mutation:
    """The difference as a write; `mutation_id` must be new. Cells keep their own timestamps."""
    return Mutation(
        table_id,
        lacking.token,
        lacking.key,
        mutation_id,
        newest_timestamp_us(lacking),
        lacking.deletion,
        lacking.range_deletions,
        lacking.static,
        lacking.rows,
    )


def newest_timestamp_us(partition: Partition) -> int:
    """The highest timestamp of anything in a partition that is not empty."""
    times = [entry.deletion.timestamp_us for entry in partition.range_deletions]
    if partition.deletion is not None:
        times.append(partition.deletion.timestamp_us)
    rows = partition.rows if partition.static is None else (partition.static, *partition.rows)
    for row in rows:
        times.extend(cell.timestamp_us for cell in row.cells)
        times.extend(entry.deletion.timestamp_us for entry in row.column_deletions)
        if row.liveness is not None:
            times.append(row.liveness.timestamp_us)
        if row.deletion is not None:
            times.append(row.deletion.timestamp_us)
    return max(times)
