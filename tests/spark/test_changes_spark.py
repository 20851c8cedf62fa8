"""Streams of changes through a real session: triggers, offsets and checkpoints are Spark's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection

from .support import connect, insert, options
from .test_changes import PAIR, QUICK, capture

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[CqlConnection]:
    made = connect(cluster)
    yield made
    made.close()


def stream(spark: SparkSession, cluster: LocalCluster, table: str, **more: str) -> DataFrame:
    given = options(cluster, table, **{**QUICK, "startingOffsets": "earliest", **more})
    return spark.readStream.format("lockstep").options(**given).load()


def into_files(frame: DataFrame, at: Path) -> list[dict[str, Any]]:
    """Run the stream to its end; the progress of its batches."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(at / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(at / "files"))
    )
    assert query.awaitTermination(120)
    return [dict(one) for one in query.recentProgress]


def test_a_stream_ends_and_is_gone_on_with(
    spark: SparkSession, cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    capture(connection, "streamed (id int PRIMARY KEY, v int)")
    insert(connection, "streamed", PAIR, [(number, number) for number in range(300)])
    frame = stream(spark, cluster, "streamed", maxRowsPerTrigger="120")
    batches = into_files(frame, tmp_path)
    assert [one["numInputRows"] for one in batches if one["numInputRows"]] == [120, 120, 60]
    insert(connection, "streamed", PAIR, [(number, -number) for number in range(1, 51)])
    into_files(stream(spark, cluster, "streamed", maxRowsPerTrigger="120"), tmp_path)
    found = spark.read.parquet(str(tmp_path / "files"))
    values = sorted(row["v"] for row in found.select("v").collect())
    assert values == [*range(-50, 0), *range(300)]
    # The newest batch is planned again as it was when only its commit is missing.
    newest = max((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)
    into_files(stream(spark, cluster, "streamed", maxRowsPerTrigger="120"), tmp_path)
    assert spark.read.parquet(str(tmp_path / "files")).count() == 350


def test_the_page_says_what_works(
    spark: SparkSession, cluster: LocalCluster, connection: CqlConnection
) -> None:
    page = (Path(__file__).parents[2] / "docs/pipeline/cdc.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    capture(connection, "paged (id int PRIMARY KEY, v int, tags set<text>)")
    told = code.replace('hosts="127.0.0.1"', f'hosts="{cluster.contact_points[0]}", port=19142')
    known: dict[str, Any] = {"spark": spark}
    exec(told.replace('"orders"', '"paged"'), known)  # noqa: S102
    for name in known["changes"].columns:
        named = name.replace("_tags", "_x")
        assert name in ("id", "v", "tags") or f"`{named}`" in page
