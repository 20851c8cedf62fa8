"""Changes of a table into files and into another table, by the job: each once, whatever is repeated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection
from lockstep.spark.jobs import cdc, places
from lockstep.spark.jobs.cdc import Cdc
from lockstep.spark.jobs.running import Silent
from lockstep.spark.jobs.tables import Access, TableName
from lockstep.values.errors import ConfigurationError, PreconditionError

from .support import PORTS, connect, insert
from .test_changes import PAIR, capture

pytestmark = pytest.mark.slow

FOLLOWED = (
    "followed (p int, c int, d int, v text, n int, s int static, tags set<text>, marks map<int, text>, "
    "PRIMARY KEY (p, c, d)) WITH CLUSTERING ORDER BY (c ASC, d DESC)"
)


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[CqlConnection]:
    made = connect(cluster)
    yield made
    made.close()


def access(cluster: LocalCluster) -> Access:
    return Access(",".join(cluster.contact_points), PORTS[0], others=(("safetyIntervalMs", "0"),))


def run(spark: SparkSession, cluster: LocalCluster, wanted: Cdc) -> cdc.CdcReport:
    return cdc.run(spark, access(cluster), wanted, Silent())


def content(connection: CqlConnection, table: str) -> list[tuple[Any, ...]]:
    rows = connection.query(f"SELECT p, c, d, v, n, s, tags, marks FROM shop.{table}")
    return sorted(tuple(map(repr, row.values())) for row in rows)


def repeated(checkpoint: Path) -> None:
    """As after the death of a driver between a batch and its commit."""
    newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda one: int(one.name))
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


FIRST = (
    "INSERT INTO {} (p, c, d, v, n, s, tags, marks) VALUES (1, 1, 1, 'a', 1, 7, {{'x', 'y'}}, {{1: 'a'}})",
    "INSERT INTO {} (p, c, d, v) VALUES (1, 1, 2, 'b')",
    "INSERT INTO {} (p, c, d, v) VALUES (1, 1, 3, 'c')",
    "INSERT INTO {} (p, c, d) VALUES (1, 2, 1)",
    "UPDATE {} SET n = 5, tags = tags + {{'z'}}, marks[2] = 'b' WHERE p = 1 AND c = 1 AND d = 1",
    "UPDATE {} SET tags = tags - {{'x'}}, v = null WHERE p = 1 AND c = 1 AND d = 1",
    "INSERT INTO {} (p, c, d, v) VALUES (2, 1, 1, 'gone')",
    "DELETE FROM {} WHERE p = 2",
    "INSERT INTO {} (p, c, d, v) VALUES (3, 1, 1, 'lives') USING TTL 3600",
    "INSERT INTO {} (p, c, d, v) VALUES (4, 1, 1, 'a')",
    "INSERT INTO {} (p, c, d, v) VALUES (4, 1, 2, 'b')",
    "INSERT INTO {} (p, c, d, v) VALUES (4, 1, 3, 'c')",
    "DELETE FROM {} WHERE p = 4 AND c = 1 AND d >= 2",
)
SECOND = (
    "UPDATE {} SET tags = {{'new'}}, s = 8 WHERE p = 1 AND c = 1 AND d = 1",
    "DELETE marks[1] FROM {} WHERE p = 1 AND c = 1 AND d = 1",
    "DELETE FROM {} WHERE p = 1 AND c = 1 AND d = 2",
    "DELETE n FROM {} WHERE p = 1 AND c = 1 AND d = 1",
    "INSERT INTO {} (p, c, d, v) VALUES (2, 1, 1, 'back')",
    "DELETE FROM {} WHERE p = 4 AND c = 1",
)


def test_another_table_becomes_as_the_one_that_is_followed(
    spark: SparkSession, cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    capture(connection, FOLLOWED)
    connection.query("DROP TABLE IF EXISTS shop.copied")
    connection.query(f"CREATE TABLE shop.{FOLLOWED.replace('followed', 'copied', 1)}")
    wanted = Cdc(TableName("shop", "followed"), "shop.copied", str(tmp_path / "at"), available_now=True)
    for text in FIRST:
        connection.query(text.format("shop.followed"))
    first = run(spark, cluster, wanted)
    assert content(connection, "copied") == content(connection, "followed")
    assert len(content(connection, "copied")) == 6
    assert not first.resumed and first.changes >= len(FIRST) and first.until_us
    for text in SECOND:
        connection.query(text.format("shop.followed"))
    second = run(spark, cluster, wanted)
    expected = content(connection, "followed")
    assert content(connection, "copied") == expected
    assert second.resumed and second.changes < first.changes and second.until_us > first.until_us
    (lives,) = connection.query("SELECT ttl(v) AS left_s FROM shop.copied WHERE p = 3")
    assert 3000 < int(lives["left_s"]) <= 3600
    repeated(tmp_path / "at")
    run(spark, cluster, wanted)
    assert content(connection, "copied") == expected


def test_17_files_have_each_change_once_where_a_batch_is_repeated(
    spark: SparkSession, cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    capture(connection, "filed (id int PRIMARY KEY, v int)")
    wanted = Cdc(TableName("shop", "filed"), f"parquet:{tmp_path / 'out'}", available_now=True, rows_max=150)
    insert(connection, "filed", PAIR, [(number, number) for number in range(400)])
    planned = cdc.plan(access(cluster), wanted)
    assert planned.from_us is None and planned.columns and planned.streams
    report = run(spark, cluster, wanted)
    assert (report.changes, report.batches) == (400, 3)
    repeated(tmp_path / "out" / "_checkpoint")
    insert(connection, "filed", PAIR, [(number, -number) for number in range(1, 11)])
    assert cdc.plan(access(cluster), wanted).from_us == report.until_us
    assert run(spark, cluster, wanted).resumed
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row["v"] for row in found.select("v").collect()) == [*range(-10, 0), *range(400)]


def test_one_job_at_a_time_follows_into_a_place(
    cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    """A batch was written by two jobs at once, each in place of what the other had written."""
    capture(connection, "once (id int PRIMARY KEY, v int)")
    wanted = Cdc(TableName("shop", "once"), f"parquet:{tmp_path / 'out'}", available_now=True)
    with places.claimed(tmp_path / "out"), pytest.raises(PreconditionError, match="another job is writing"):
        cdc.run(None, access(cluster), wanted, Silent())  # type: ignore[arg-type]
    connection.query("DROP TABLE IF EXISTS shop.once_copied")
    connection.query("CREATE TABLE shop.once_copied (id int PRIMARY KEY, v int)")
    copied = Cdc(TableName("shop", "once"), "shop.once_copied", str(tmp_path / "at"), available_now=True)
    with places.claimed(tmp_path / "at"), pytest.raises(PreconditionError, match="another job is writing"):
        cdc.run(None, access(cluster), copied, Silent())  # type: ignore[arg-type]


def test_what_cannot_be_followed_is_told_before_spark_starts(
    cluster: LocalCluster, connection: CqlConnection, tmp_path: Path
) -> None:
    capture(connection, "listed (id int PRIMARY KEY, v int, l list<int>)")
    capture(connection, "keyed (id int PRIMARY KEY, v int)", delta="'keys'")
    connection.query("DROP TABLE IF EXISTS shop.plain")
    connection.query("CREATE TABLE shop.plain (id int PRIMARY KEY, v int, l list<int>)")
    at = str(tmp_path / "at")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "other.csv").write_text("x")
    (tmp_path / "marked").mkdir()
    mark = {"schema": "changes-mark/1", "table": "shop.other", "checkpoint": "/nowhere"}
    (tmp_path / "marked" / "_changes.json").write_text(json.dumps(mark))
    for table, to, checkpoint, error, said in (
        ("listed", "csv:x", "", ConfigurationError, "neither parquet:DIR nor KEYSPACE.TABLE"),
        ("listed", "shop.plain", "", ConfigurationError, "need a place where the job keeps how far it is"),
        ("listed", "shop.plain", at, ConfigurationError, r"changes of column l \(list<int>\)"),
        ("keyed", "shop.plain", at, ConfigurationError, "only which rows changed"),
        ("keyed", "shop.keyed", at, ConfigurationError, "cannot go into itself"),
        ("listed", f"parquet:{tmp_path / 'taken'}", "", PreconditionError, "holds no changes"),
        ("listed", f"parquet:{tmp_path / 'marked'}", "", PreconditionError, "holds changes of shop.other"),
        ("plain", f"parquet:{tmp_path / 'new'}", "", ConfigurationError, "cdc|captured|log"),
    ):
        with pytest.raises(error, match=said):
            cdc.plan(access(cluster), Cdc(TableName("shop", table), to, checkpoint))
