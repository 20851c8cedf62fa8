"""Writes that leave their way open: which way they go, and that both keep what they promise."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from lockstep.local.clusters import LocalCluster
from lockstep.spark.loads import choosing
from lockstep.spark.loads.choosing import Carried, ChoosingWriter, batches_of, carried, first_rows_of
from lockstep.spark.loads.client import LoadClient
from lockstep.spark.loads.writer import BulkWriter, Staged
from lockstep.spark.source import LockstepSource
from lockstep.spark.writer import LockstepWriter
from lockstep.values.errors import ConfigurationError, InvalidRequest, PreconditionError, Unauthorized
from lockstep.values.node_limits import CARRIED_BYTES_MAX, CARRIED_ROWS_MAX, SMALL_WRITE_ROWS_MAX

from .support import connect, options
from .test_loads import gone, rows_of, stored

SCHEMA = StructType(
    [StructField("id", IntegerType()), StructField("n", LongType()), StructField("v", StringType())]
)


@pytest.fixture
def table(cluster: LocalCluster) -> Iterator[str]:
    name = f"w{uuid.uuid4().hex[:8]}"
    connection = connect(cluster)
    connection.query(f"CREATE TABLE shop.{name} (id int PRIMARY KEY, n bigint, v text)")
    yield name
    connection.query(f"DROP TABLE shop.{name}")
    connection.close()


def writer_of(cluster: LocalCluster, table: str, overwrite: bool = False, **more: str) -> object:
    return LockstepSource(options(cluster, table, **more)).writer(SCHEMA, overwrite)


def open_writer(cluster: LocalCluster, table: str, **more: str) -> ChoosingWriter:
    """As Spark has it in another process."""
    made = pickle.loads(pickle.dumps(writer_of(cluster, table, **more)))  # noqa: S301
    assert isinstance(made, ChoosingWriter)
    return made


def state_of(writer: ChoosingWriter) -> str:
    client = LoadClient(writer._plan.options, writer._plan.options.load_id)
    try:
        return client.look().state
    except InvalidRequest as error:
        assert "there is no load" in error.message
        return ""
    finally:
        client.close()


def expected(first: int, count: int) -> list[tuple[int, int, str]]:
    return [(one, 10 * one, f"v{one}") for one in range(first, first + count)]


def test_few_rows_are_statements_and_begin_no_load(
    cluster: LocalCluster, table: str, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = open_writer(cluster, table)
    told = [writer.write(iter(rows_of(first, 700).to_batches())) for first in (0, 700)]
    told.append(writer.write(iter([])))
    assert [one.rows for one in told] == [700, 700, 0] and all(isinstance(one, Carried) for one in told)
    assert stored(cluster, table) == []
    writer.commit(list(told))
    assert stored(cluster, table) == expected(0, 1400)
    assert state_of(writer) == ""
    assert f"lockstep: shop.{table}: 1400 rows written by statements: they are few" in capfd.readouterr().err
    # Nothing to write is nothing to do.
    open_writer(cluster, table).commit([Carried(0, b"")])


def test_few_rows_with_lists_are_a_load_and_the_same_again(cluster: LocalCluster) -> None:
    """A list is not longer for being in all rows of a partition, in two tasks, or in a second run."""
    name = f"w{uuid.uuid4().hex[:8]}"
    connection = connect(cluster)
    connection.query(
        f"CREATE TABLE shop.{name} (id int, n int, l list<text>, s list<int> static, PRIMARY KEY (id, n))"
    )
    texts, numbers = pa.list_(pa.string()), pa.list_(pa.int32())
    schema = StructType(
        [
            StructField("id", IntegerType()),
            StructField("n", IntegerType()),
            StructField("l", ArrayType(StringType())),
            StructField("s", ArrayType(IntegerType())),
        ]
    )

    def rows(first: int) -> pa.RecordBatch:
        arrays = [
            pa.array([1, 1], pa.int32()),
            pa.array([first, first + 1], pa.int32()),
            pa.array([["", "a"]] * 2, texts),
            pa.array([[4, 4]] * 2, numbers),
        ]
        return pa.record_batch(arrays, ["id", "n", "l", "s"])

    for _ in range(2):
        source = LockstepSource(options(cluster, name, writeTimeMicros="1700000000000000"))
        writer = source.writer(schema, False)
        assert isinstance(writer, ChoosingWriter)
        writer.commit([writer.write(iter([rows(first)])) for first in (0, 2)])
        assert state_of(writer) == "committed"
    found = connection.query(f"SELECT n, l, s FROM shop.{name}")
    assert [(row["n"], row["l"], row["s"]) for row in found] == [(n, ["", "a"], [4, 4]) for n in range(4)]
    connection.query(f"DROP TABLE shop.{name}")
    connection.close()


def test_one_task_with_many_rows_makes_all_of_them_one_load(
    cluster: LocalCluster, table: str, capfd: pytest.CaptureFixture[str]
) -> None:
    writer = open_writer(cluster, table)
    few = writer.write(iter(rows_of(0, 20).to_batches()))
    assert isinstance(few, Carried) and state_of(writer) == ""
    many = writer.write(iter(rows_of(20, 2 * CARRIED_ROWS_MAX).to_batches(max_chunksize=300)))
    assert isinstance(many, Staged) and state_of(writer) == "running"
    assert stored(cluster, table) == []
    connection = connect(cluster)
    # Newer than the plan of the job, and older than its commit.
    connection.query(f"INSERT INTO shop.{table} (id, n, v) VALUES (3, 1, 'live')")
    connection.query(f"INSERT INTO shop.{table} (id, n, v) VALUES (50, 1, 'live')")
    writer.commit([few, many])
    assert state_of(writer) == "committed"
    count = 20 + 2 * CARRIED_ROWS_MAX
    assert f"lockstep: shop.{table}: {count} rows written by load" in capfd.readouterr().err
    live = {3: (3, 1, "live"), 50: (50, 1, "live")}
    assert stored(cluster, table) == [live.get(row[0], row) for row in expected(0, count)]
    times = {
        row["w"]
        for row in connection.query(f"SELECT id, writetime(v) AS w FROM shop.{table}")
        if row["id"] not in live
    }
    assert times == {writer._plan.options.write_time_us}
    connection.close()
    # Spark asks for an end when it heard nothing of the commit.
    writer.abort([few, many])
    assert state_of(writer) == "committed" and gone(cluster)


def test_many_tasks_with_few_rows_are_a_load_too(cluster: LocalCluster, table: str) -> None:
    writer = open_writer(cluster, table, writeTimeMicros="7000")
    tasks = SMALL_WRITE_ROWS_MAX // 1000 + 1
    told = [writer.write(iter(rows_of(1000 * task, 1000).to_batches())) for task in range(tasks)]
    assert all(isinstance(one, Carried) for one in told)
    writer.commit(list(told))
    assert state_of(writer) == "committed"
    assert stored(cluster, table) == expected(0, 1000 * tasks)


def test_what_fails_leaves_nothing(cluster: LocalCluster, table: str) -> None:
    writer = open_writer(cluster, table)
    few = writer.write(iter(rows_of(0, 20).to_batches()))
    broken = pa.table({"id": pa.array([21, None], pa.int32()), "n": [1, 2], "v": ["x", "y"]})
    with pytest.raises(InvalidRequest, match="key column id is null"):
        writer.commit([few, writer.write(iter(broken.to_batches()))])
    writer.abort([few, None])
    with pytest.raises(PreconditionError, match="1 tasks told nothing"):
        writer.commit([few, None])
    assert stored(cluster, table) == [] and state_of(writer) == ""
    many = writer.write(iter(rows_of(20, 2 * CARRIED_ROWS_MAX).to_batches()))
    writer.abort([few, many, None])
    assert state_of(writer) == "aborted" and stored(cluster, table) == [] and gone(cluster)
    with pytest.raises(PreconditionError, match="was aborted"):
        writer.write(iter(rows_of(20, 2 * CARRIED_ROWS_MAX).to_batches()))


def test_tables_that_cannot_be_loaded_are_written_by_statements(
    cluster: LocalCluster, table: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect(cluster)
    assert isinstance(writer_of(cluster, table, consistencyLevel="ONE"), LockstepWriter)
    assert "statements: a load is not committed at ONE" in capfd.readouterr().err
    connection.query(f"CREATE INDEX i_{table} ON shop.{table} (n)")
    writer = writer_of(cluster, table)
    assert isinstance(writer, LockstepWriter)
    assert f"statements: after a load, entries of its indexes (i_{table})" in capfd.readouterr().err
    writer.write(iter(rows_of(0, 5).to_batches()))
    found = connection.query(f"SELECT id FROM shop.{table} WHERE n = 40")
    assert [row["id"] for row in found] == [4]
    connection.query(f"DROP INDEX shop.i_{table}")
    assert isinstance(writer_of(cluster, table), ChoosingWriter)
    connection.close()

    def refused(_client: LoadClient, _timestamp_us: int) -> None:
        raise Unauthorized("User bob is not a superuser: only those may load in bulk")

    monkeypatch.setattr(choosing.LoadClient, "would_begin", refused)
    assert isinstance(writer_of(cluster, table), LockstepWriter)
    assert "statements: User bob is not a superuser" in capfd.readouterr().err


def test_a_view_that_comes_after_the_plan_fails_the_load(cluster: LocalCluster, table: str) -> None:
    writer = open_writer(cluster, table)
    connection = connect(cluster)
    connection.query(
        f"CREATE MATERIALIZED VIEW shop.v_{table} AS SELECT id, n FROM shop.{table} "
        "WHERE id IS NOT NULL AND n IS NOT NULL PRIMARY KEY (n, id)"
    )
    with pytest.raises(InvalidRequest, match=r"has materialized views .*; write with writeMode=statements"):
        writer.write(iter(rows_of(0, 2 * CARRIED_ROWS_MAX).to_batches()))
    assert stored(cluster, table) == [] and state_of(writer) == ""
    connection.query(f"DROP MATERIALIZED VIEW shop.v_{table}")
    connection.close()


def test_what_only_a_load_can_do_is_one(cluster: LocalCluster, table: str) -> None:
    for writer in (
        writer_of(cluster, table, overwrite=True),
        writer_of(cluster, table, loadId=f"{table}-1"),
        writer_of(cluster, table, writeMode="bulk"),
    ):
        assert isinstance(writer, BulkWriter)
        writer.abort([])
    with pytest.raises(ConfigurationError, match="lacks key column id"):
        LockstepSource(options(cluster, table)).writer(StructType([SCHEMA["v"]]), False)


def test_what_a_task_hands_over_has_limits() -> None:
    batches = rows_of(0, 3 * CARRIED_ROWS_MAX).to_batches(max_chunksize=400)
    taken, is_all = first_rows_of(iter(batches))
    assert not is_all and sum(batch.num_rows for batch in taken) == 1200
    wide = pa.table({"v": ["x" * CARRIED_BYTES_MAX] * 2}).to_batches(max_chunksize=1)
    assert first_rows_of(iter(wide)) == (wide[:1], False)
    taken, is_all = first_rows_of(iter(batches[:2]))
    assert is_all and list(batches_of([carried(taken), carried([])])) == batches[:2]
