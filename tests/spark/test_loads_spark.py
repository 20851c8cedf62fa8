"""Bulk loads through a real session: tasks, retries and modes are Spark's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from lockstep.local.clusters import LocalCluster

from .support import connect, options
from .test_columns import SAMPLES
from .test_loads import gone, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


#: With these a row has collections as single values, and is encoded by whole columns.
_FROZEN = [text for text in SAMPLES if text.startswith(("list<", "set<", "map<"))]


def write(frame: DataFrame, cluster: LocalCluster, table: str, mode: str = "append", **more: str) -> None:
    given = options(cluster, table, writeMode="bulk", **more)
    frame.write.format("lockstep").mode(mode).options(**given).save()


def numbers(spark: SparkSession, first: int, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(first, first + count, 1, partitions).select(
        F.col("id").cast("int").alias("id"), (F.col("id") * 10).alias("n")
    )


def test_10_a_frame_is_loaded_replaced_and_given_up_whole(spark: SparkSession, cluster: LocalCluster) -> None:
    connection = connect(cluster)
    connection.query("CREATE TABLE shop.bulk (id int PRIMARY KEY, n bigint)")
    connection.close()
    write(numbers(spark, 0, 2000), cluster, "bulk")
    assert stored(cluster, "bulk", "id, n") == [(one, 10 * one) for one in range(2000)]
    write(numbers(spark, 5, 10, 2), cluster, "bulk", "overwrite")
    assert stored(cluster, "bulk", "id, n") == [(one, 10 * one) for one in range(5, 15)]
    # One task of four fails: a key is null there.
    broken = numbers(spark, 100, 2000).withColumn("id", F.when(F.col("id") != 1900, F.col("id")))
    with pytest.raises(Exception, match="key column id is null"):
        write(broken, cluster, "bulk")
    assert len(stored(cluster, "bulk", "id, n")) == 10
    assert gone(cluster)


def test_every_type_is_loaded_as_it_is_read(spark: SparkSession, cluster: LocalCluster) -> None:
    columns = {f"c{number}": text for number, text in enumerate(SAMPLES)}
    connection = connect(cluster)
    frozen = {name: f"frozen<{text}>" if text in _FROZEN else text for name, text in columns.items()}
    for table, kinds in (("loaded_all", columns), ("loaded_frozen", frozen)):
        listed = ", ".join(f"{name} {text}" for name, text in kinds.items())
        connection.query(f"CREATE TABLE shop.{table} (id int PRIMARY KEY, {listed})")
    connection.close()
    values: list[Any] = []
    for text in columns.values():
        value = SAMPLES[text][1][0]
        values.append(dict(value) if "map<" in text else value)
    row = dict(zip(columns, values, strict=True))
    rows = [{"id": 1, **row}, {"id": 2, **dict.fromkeys(columns)}]
    for table in ("loaded_all", "loaded_frozen"):
        read = spark.read.format("lockstep").options(**options(cluster, table))
        schema = read.load().schema
        frame = spark.createDataFrame([tuple(one[name] for name in schema.names) for one in rows], schema)
        write(frame, cluster, table)
        back = [one.asDict(recursive=True) for one in read.load().orderBy("id").collect()]
        assert back == [one.asDict(recursive=True) for one in frame.orderBy("id").collect()], table
