"""The Spark room: reading and writing Lockstep tables from PySpark, and what a session needs to start.

Owns: finding a Java runtime, local sessions, the data source `lockstep` (batch read and append), and the
report that closes a demonstration. Invariant: what travels between Spark's processes names tables and
token ranges, never addresses, so that a plan made before a topology change is still right after it.
Neighbours: speaks only the native protocol to a cluster, with the codec of `cql.wire`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(app: str = "lockstep", cores: int = 2, **conf: Any) -> SparkSession:
    """A session on this machine with the settings that the data source needs for all that it can; `conf` adds
    or replaces some, with `_` for the dots of their names. ConfigurationError without Java or PySpark."""
    from lockstep.spark.report import local_session

    return local_session(app, cores, **conf)
