"""The report that closes a demonstration: every table counted and exported by Spark, and a chart.

Invariant: a table is scanned once; its numbers are those of the exported file, so what is reported is
what can be looked at afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from lockstep.spark.chart import Span, draw, read_samples
from lockstep.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHART: Final = "latency"


class TableReport(msgspec.Struct, frozen=True):
    """One table. `expected_rows` is None when nobody knows; `distinct_keys` shows that no row came twice."""

    table: str
    rows: int
    distinct_keys: int
    expected_rows: int | None
    parquet: str
    scan_s: float

    @property
    def right(self) -> bool:
        """Whether each row came once, and as many as expected."""
        return self.rows == self.distinct_keys and self.expected_rows in (None, self.rows)


class Summary(msgspec.Struct, frozen=True):
    """`scan_s` is the time from the table to Parquet, `total_s` everything but the start of Java."""

    tables: tuple[TableReport, ...]
    charts: tuple[str, ...]
    total_s: float

    @property
    def right(self) -> bool:
        return all(table.right for table in self.tables)

    @property
    def scan_s(self) -> float:
        return sum(table.scan_s for table in self.tables)


def summarise(
    *,
    hosts: Sequence[str],
    port: int,
    keyspace: str,
    tables: Mapping[str, int | None],
    out: Path,
    samples: Path | None = None,
    spans: Sequence[Span] = (),
    title: str = "Latency while the cluster changed",
    session: SparkSession | None = None,
) -> Summary:
    """Count and export `tables` (name -> rows expected, or None) to `out`, and draw `samples` there.

    A session is made, and stopped at the end, unless one is given. Raises what Spark raises when a table
    cannot be read, ConfigurationError when there is no Java or the samples have other columns.
    """
    out.mkdir(parents=True, exist_ok=True)
    used = session or local_session(f"report of {keyspace}")
    begin_s = time.monotonic()
    try:
        reports = tuple(
            _export(used, {"hosts": ",".join(hosts), "port": str(port), "keyspace": keyspace, "table": name},
                    expected, out / f"{name}.parquet")
            for name, expected in tables.items()
        )  # fmt: skip
    finally:
        if session is None:
            used.stop()
    charts: tuple[str, ...] = ()
    if samples is not None:
        charts = tuple(str(path) for path in draw(read_samples(samples), spans, title, out / CHART))
    return Summary(reports, charts, time.monotonic() - begin_s)


def _export(
    session: SparkSession, options: Mapping[str, str], expected: int | None, target: Path
) -> TableReport:
    from pyspark.sql import functions

    begin_s = time.monotonic()
    frame = session.read.format("lockstep").options(**options).load()
    frame.write.mode("overwrite").parquet(str(target))
    scan_s = time.monotonic() - begin_s
    keys = _key_columns(options)
    counted = (
        session.read.parquet(str(target))
        .agg(functions.count("*"), functions.countDistinct(*[functions.col(f"`{key}`") for key in keys]))
        .first()
    )
    assert counted is not None
    return TableReport(options["table"], counted[0], counted[1], expected, str(target), scan_s)


def _key_columns(options: Mapping[str, str]) -> list[str]:
    from lockstep.spark.options import parse_options
    from lockstep.spark.source import table_shape

    return [column.name for column in table_shape(parse_options(options)).key]
