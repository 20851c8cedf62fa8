"""Writers against a real cluster, without a JVM: checks on the driver, retries, what a failure leaves."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from lockstep.local.clusters import LocalCluster
from lockstep.spark.source import LockstepSource
from lockstep.spark.writer import LockstepWriter
from lockstep.values.errors import ConfigurationError, InvalidRequest, PreconditionError
from lockstep.values.ids import Consistency

from .support import connect, options

SCHEMA = StructType(
    [StructField("v", StringType()), StructField("id", IntegerType()), StructField("n", LongType())]
)


@pytest.fixture(scope="module")
def table(cluster: LocalCluster) -> str:
    connection = connect(cluster)
    connection.query("CREATE TABLE shop.written (id int PRIMARY KEY, v text, n bigint)")
    connection.close()
    return "written"


@pytest.fixture(autouse=True)
def empty(cluster: LocalCluster, table: str) -> None:
    connection = connect(cluster)
    for row in connection.query("SELECT id FROM shop.written"):
        connection.query(f"DELETE FROM shop.written WHERE id = {row['id']}")
    connection.close()


def writer_of(
    cluster: LocalCluster, table: str, schema: StructType = SCHEMA, **others: str
) -> LockstepWriter:
    writer = LockstepSource(options(cluster, table, writeMode="statements", **others)).writer(schema, False)
    return pickle.loads(pickle.dumps(writer))  # noqa: S301


def batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    types = (pa.string(), pa.int32(), pa.int64())
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["v", "id", "n"])


def stored(cluster: LocalCluster) -> list[tuple[Any, ...]]:
    connection = connect(cluster)
    rows = connection.query("SELECT id, v, n FROM shop.written", consistency=Consistency.QUORUM)
    connection.close()
    return sorted((row["id"], row["v"], row["n"]) for row in rows)


def test_rows_are_written_by_name(cluster: LocalCluster, table: str) -> None:
    rows = [(f"v{number}", number, number * 10) for number in range(300)]
    written = writer_of(cluster, table).write(iter([batch(rows[:100]), batch(rows[100:])]))
    assert written.rows == 300
    assert stored(cluster) == [(number, text, n) for text, number, n in rows]


def test_a_repeated_task_changes_nothing_written_later(cluster: LocalCluster, table: str) -> None:
    writer = writer_of(cluster, table)
    writer.write(iter([batch([("old", 1, 1), ("old", 2, 2)])]))
    connection = connect(cluster)
    connection.query("UPDATE shop.written SET v = 'newer' WHERE id = 1")
    connection.close()
    writer.write(iter([batch([("old", 1, 1), ("old", 2, 2)])]))
    assert stored(cluster) == [(1, "newer", 1), (2, "old", 2)]


@pytest.mark.parametrize(("ignore", "left"), [("false", None), ("true", "kept")])
def test_nulls_delete_or_are_ignored(
    cluster: LocalCluster, table: str, ignore: str, left: str | None
) -> None:
    writer_of(cluster, table).write(iter([batch([("kept", 1, 5)])]))
    writer_of(cluster, table, ignoreNulls=ignore).write(iter([batch([(None, 1, 6)])]))
    assert stored(cluster) == [(1, left, 6)]


def test_a_null_key_is_refused(cluster: LocalCluster, table: str) -> None:
    with pytest.raises(InvalidRequest, match="key column id is null"):
        writer_of(cluster, table).write(iter([batch([("x", None, 1)])]))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([StructField("v", StringType())], "lacks key column id"),
        ([StructField("id", LongType())], "id is bigint in the DataFrame, but int in the table takes int"),
        ([StructField("id", IntegerType()), StructField("w", StringType())], "no column w"),
    ],
)
def test_a_schema_that_differs_fails_on_the_driver(
    cluster: LocalCluster, table: str, fields: list[StructField], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        writer_of(cluster, table, StructType(fields))


def test_overwrite_is_refused(cluster: LocalCluster, table: str) -> None:
    with pytest.raises(PreconditionError, match="overwrite"):
        LockstepSource(options(cluster, table, writeMode="statements")).writer(SCHEMA, True)


def test_a_write_outlives_the_death_of_a_host(cluster: LocalCluster, table: str) -> None:
    rows = [(f"v{number}", number, number) for number in range(1200)]
    addresses = {node.address: node.name for node in cluster.file.nodes}
    killed = []

    def batches() -> Iterator[pa.RecordBatch]:
        for number, begin in enumerate(range(0, 1200, 100)):
            if number == 4:
                killed.append(addresses[cluster.contact_points[0]])
                cluster.kill(killed[0])
            if number == 8:
                cluster.start(killed)
                killed.append(addresses[cluster.contact_points[1]])
                cluster.kill(killed[1])
            yield batch(rows[begin : begin + 100])

    writer_of(cluster, table).write(batches())
    cluster.start(killed[1:])
    assert stored(cluster) == [(number, text, n) for text, number, n in rows]


def test_ttl_and_write_times_come_with_the_rows(cluster: LocalCluster, table: str) -> None:
    schema = StructType([*SCHEMA.fields, StructField("life", LongType()), StructField("at", LongType())])
    writer = writer_of(cluster, table, schema, ttlColumn="life", writeTimeColumn="at")
    data = pa.table(
        {
            "v": ["a", "b"],
            "id": pa.array([9001, 9002], pa.int32()),
            "n": pa.array([1, 2]),
            "life": pa.array([0, 5000]),
            "at": pa.array([3000, 4000]),
        }
    )
    writer.write(iter(data.to_batches()))
    writer_of(cluster, table, writeTimeMicros="2000", ttlSeconds="900").write(
        iter([batch([("older", 9001, 9), ("c", 9003, 3)])])
    )
    connection = connect(cluster)
    rows = connection.query("SELECT id, v, writetime(v) AS w, ttl(v) AS t FROM shop.written")
    connection.close()
    found = {row["id"]: (row["v"], row["w"], row["t"]) for row in rows}
    assert found[9001] == ("a", 3000, None)
    assert found[9002][:2] == ("b", 4000) and 4900 < int(str(found[9002][2])) <= 5000
    assert found[9003][:2] == ("c", 2000) and 800 < int(str(found[9003][2])) <= 900
    with pytest.raises(ConfigurationError, match="the data has no column life"):
        writer_of(cluster, table, ttlColumn="life")
    with pytest.raises(ConfigurationError, match="loadId is the name of a bulk load"):
        writer_of(cluster, table, loadId="x")
