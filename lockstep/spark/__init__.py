"""The Spark room: reading and writing Lockstep tables from PySpark, and what a session needs to start.

Owns: finding a Java runtime, local sessions, the data source `lockstep` (batch read and append), and the
report that closes a demonstration. Invariant: what travels between Spark's processes names tables and
token ranges, never addresses, so that a plan made before a topology change is still right after it.
Neighbours: speaks only the native protocol to a cluster, with the codec of `cql.wire`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def session(app: str = "lockstep", cores: int = 2, **conf: Any) -> SparkSession:
    """A session on this machine with the settings that the data source needs for all that it can; `conf` adds
    or replaces some, with `_` for the dots of their names. ConfigurationError without Java or PySpark."""
    from lockstep.spark.report import local_session

    return local_session(app, cores, **conf)


def scan_arrow(
    keyspace: str,
    table: str,
    columns: Sequence[str] = (),
    *,
    filters: Sequence[tuple[str, str, Any]] = (),
    **options: str,
) -> pa.RecordBatchReader:
    """The rows of a table at one instant, as a reader of Arrow batches; needs pyarrow, and no Spark.

    `columns`: names, in their order; all when there are none. `filters`: (column, operator, value) that all
    hold, with =, !=, <, <=, >, >=, `in` or `not in`; replicas read only the partitions and slices that these
    name. `options` are those of the format lockstep, such as `hosts="10.0.0.1"`, `consistencyLevel="ONE"` or
    `limit="100"`. What it holds on the nodes is given back when the reader has come to its end, is closed, or
    is gone.
    """
    from lockstep.spark.arrow_scan import scan

    return scan(keyspace, table, columns, filters, options)
