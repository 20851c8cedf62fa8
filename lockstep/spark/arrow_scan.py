"""A table as Arrow batches without Spark, for pyarrow, pandas, polars and whatever else takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lockstep.spark.options import Options, parse_options
from lockstep.spark.snapshot_reading import SnapshotScan
from lockstep.spark.snapshots import Snapshot, close_snapshot, open_snapshot
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN


def scan(keyspace: str, table: str, columns: Sequence[str], options: dict[str, str]) -> pa.RecordBatchReader:
    """See `lockstep.spark.scan_arrow`."""
    given = {"keyspace": keyspace, "table": table, **options}
    if columns:
        given["columns"] = ",".join(columns)
    parsed = parse_options(given)
    snapshot = open_snapshot(parsed)
    try:
        names = parsed.columns or tuple(column.name for column in snapshot.table.in_order)
        found = SnapshotScan(parsed, snapshot, names)
    except BaseException:
        close_snapshot(parsed, snapshot)
        raise
    return pa.RecordBatchReader.from_batches(found.schema, _batches(parsed, snapshot, found))


def _batches(options: Options, snapshot: Snapshot, found: SnapshotScan) -> Iterator[pa.RecordBatch]:
    left = options.limit
    try:
        for batch in found.ranges([(TOKEN_MIN, TOKEN_MAX)]):
            yield batch.slice(0, left) if options.limit else batch
            left -= batch.num_rows
            if options.limit and left <= 0:
                return
    finally:
        close_snapshot(options, snapshot)
