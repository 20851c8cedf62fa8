"""Bulk loads into a real cluster: scenarios 8 to 14 of the data pipeline, as far as no JVM is needed."""

from __future__ import annotations

import json
import pickle
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from lockstep.cli.shared.client import ClusterClient
from lockstep.local.admin_client import AdminClient, of_token_file
from lockstep.local.clusters import LocalCluster
from lockstep.spark.loads import writer
from lockstep.spark.loads.client import LoadClient
from lockstep.spark.loads.writer import BulkWriter, Staged, bulk_load, commit, planned, stage
from lockstep.spark.options import parse_options
from lockstep.spark.source import LockstepSource
from lockstep.streaming.load_files import key_of
from lockstep.values.errors import ConfigurationError, InvalidRequest, LockstepError, PreconditionError
from lockstep.values.ids import Consistency

from .support import PORTS, connect, options

SCHEMA = StructType(
    [StructField("id", IntegerType()), StructField("n", LongType()), StructField("v", StringType())]
)


GONE_WITHIN_S = 20.0


@pytest.fixture
def table(cluster: LocalCluster) -> Iterator[str]:
    name = f"t{uuid.uuid4().hex[:8]}"
    connection = connect(cluster)
    connection.query(f"CREATE TABLE shop.{name} (id int PRIMARY KEY, n bigint, v text)")
    yield name
    connection.query(f"DROP TABLE shop.{name}")
    connection.close()


def rows_of(first: int, count: int, text: str = "v") -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int32()),
            "n": pa.array([10 * one for one in ids], pa.int64()),
            "v": pa.array([f"{text}{one}" for one in ids]),
        }
    )


def loaded(cluster: LocalCluster, table: str, data: pa.Table, **more: Any) -> Any:
    return bulk_load(data, **{**options(cluster, table), **more})


def stored(
    cluster: LocalCluster, table: str, columns: str = "id, n, v", level: Consistency = Consistency.ALL
) -> list[tuple[Any, ...]]:
    connection = connect(cluster)
    found = connection.query(f"SELECT {columns} FROM shop.{table}", consistency=level)
    connection.close()
    return sorted(tuple(row.values()) for row in found)


def staged_names(cluster: LocalCluster) -> list[str]:
    return sorted(str(path) for path in cluster.paths.root.rglob("loads/*"))


def gone(cluster: LocalCluster) -> bool:
    """Whether nothing is staged any more, once all nodes have heard of the end."""
    until_s = time.monotonic() + GONE_WITHIN_S
    while staged_names(cluster) and time.monotonic() < until_s:
        time.sleep(0.1)
    return not staged_names(cluster)


def test_rows_are_there_on_all_replicas_and_nothing_is_left(cluster: LocalCluster, table: str) -> None:
    result = loaded(cluster, table, rows_of(0, 3000))
    assert (result.rows, result.lacking) == (3000, ())
    assert stored(cluster, table) == [(one, 10 * one, f"v{one}") for one in range(3000)]
    # Each replica by itself.
    for node in range(3):
        connection = connect(cluster, node)
        counted = connection.query(f"SELECT count(*) FROM shop.{table}", consistency=Consistency.ONE)
        assert list(counted[0].values()) == [3000]
        connection.close()
    assert gone(cluster)


def test_a_partition_that_a_task_has_no_room_for_has_one_file_a_range(
    cluster: LocalCluster, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that overlap nothing are taken in as they are; others each replica would write once more."""
    monkeypatch.setattr(writer, "_ENCODED_ROWS", 200)
    at_once = loaded(cluster, table, rows_of(0, 3000))
    monkeypatch.setattr(writer, "GATHERED_BYTES_MAX", 100_000)
    result = loaded(cluster, table, rows_of(0, 3000, "w"))
    assert (result.rows, result.files, result.lacking) == (3000, at_once.files, ())
    assert stored(cluster, table) == [(one, 10 * one, f"w{one}") for one in range(3000)]
    assert gone(cluster)


def test_11_the_same_name_again_does_nothing(cluster: LocalCluster, table: str) -> None:
    first = loaded(cluster, table, rows_of(0, 10), loadId=f"{table}-a")
    connection = connect(cluster)
    connection.query(f"DELETE FROM shop.{table} WHERE id = 3")
    connection.close()
    again = loaded(cluster, table, rows_of(0, 10, "other"), loadId=f"{table}-a")
    assert again.epoch == first.epoch
    assert [row[0] for row in stored(cluster, table)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_11_an_abort_after_the_commit_changes_nothing_and_one_before_it_leaves_nothing(
    cluster: LocalCluster, table: str
) -> None:
    plan, staged = began(cluster, table, rows_of(0, 100))
    commit(plan, [staged])
    BulkWriter(plan).abort([staged])
    commit(plan, [staged])
    assert len(stored(cluster, table)) == 100
    other, files = began(cluster, table, rows_of(100, 100))
    assert staged_names(cluster)
    BulkWriter(other).abort([None, files])
    with pytest.raises(LockstepError, match="aborted"):
        commit(other, [files])
    assert len(stored(cluster, table)) == 100
    assert gone(cluster)


def began(cluster: LocalCluster, table: str, data: pa.Table, attempt: int = 0, **more: Any) -> Any:
    parsed = parse_options({**options(cluster, table), **more})
    plan = pickle.loads(pickle.dumps(planned(parsed, data.schema.names, False)))  # noqa: S301
    return plan, stage(plan, data.to_batches(), 0, attempt)


def test_9_two_attempts_at_one_partition_count_once(cluster: LocalCluster, table: str) -> None:
    plan, first = began(cluster, table, rows_of(0, 50))
    second = stage(plan, rows_of(0, 50).to_batches(), 0, 1)
    other = stage(plan, rows_of(50, 50).to_batches(), 1, 2)
    assert {file.name for file in first.files}.isdisjoint(file.name for file in second.files)
    assert commit(plan, [second, other]).rows == 100
    assert stored(cluster, table) == [(one, 10 * one, f"v{one}") for one in range(100)]
    assert gone(cluster)


def test_10_files_of_a_dead_driver_go_with_the_lease(cluster: LocalCluster, table: str) -> None:
    plan, _ = began(cluster, table, rows_of(0, 50), leaseMs="1000")
    client = LoadClient(plan.options, plan.job)
    until_s = time.monotonic() + 60
    while client.look().state == "running" and time.monotonic() < until_s:
        time.sleep(0.5)
    assert client.look().state == "expired"
    client.close()
    assert stored(cluster, table) == []
    assert gone(cluster)


@pytest.mark.parametrize(
    "change",
    ["TRUNCATE shop.{}", "ALTER TABLE shop.{} ADD more int", "CREATE INDEX ON shop.{} (n)"],
)
def test_12_a_table_that_changed_refuses_the_load(cluster: LocalCluster, table: str, change: str) -> None:
    plan, staged = began(cluster, table, rows_of(0, 50))
    connection = connect(cluster)
    connection.query(change.format(table))
    connection.close()
    with pytest.raises(LockstepError, match="since load"):
        commit(plan, [staged])
    assert stored(cluster, table, "id") == []
    BulkWriter(plan).abort([staged])
    assert gone(cluster)


def test_13_newer_writes_win_and_times_are_kept(cluster: LocalCluster, table: str) -> None:
    connection = connect(cluster)
    connection.query(f"INSERT INTO shop.{table} (id, n, v) VALUES (1, 1, 'live') USING TIMESTAMP 3000")
    connection.query(f"INSERT INTO shop.{table} (id, n, v) VALUES (2, 1, 'old') USING TIMESTAMP 1000")
    data = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int32()),
            "v": ["load"] * 3,
            "life": [0, 0, 5000],
            "at": [2000, 2000, 2500],
        }
    )
    loaded(cluster, table, data, ttlColumn="life", writeTimeColumn="at")
    found = connection.query(f"SELECT id, v, writetime(v) AS w, ttl(v) AS t FROM shop.{table}")
    connection.close()
    by_id = {row["id"]: (row["v"], row["w"], row["t"]) for row in found}
    assert by_id[1] == ("live", 3000, None)
    assert by_id[2] == ("load", 2000, None)
    assert by_id[3][:2] == ("load", 2500)
    assert 4900 < int(str(by_id[3][2])) <= 5000


def _named(job: str, staged: Staged) -> str:
    return f"{key_of(job)}-{staged.files[0].name}.sorted"


def test_14_a_damaged_file_is_fetched_again(cluster: LocalCluster, table: str) -> None:
    plan, staged = began(cluster, table, rows_of(0, 500))
    held = [Path(name) for name in staged_names(cluster) if _named(plan.job, staged) in name]
    assert len(held) == 3
    content = bytearray(held[1].read_bytes())
    content[len(content) // 3] ^= 0x10
    held[1].write_bytes(content)
    held[2].unlink()
    assert commit(plan, [staged]).lacking == ()
    for node in range(3):
        connection = connect(cluster, node)
        counted = connection.query(f"SELECT count(*) FROM shop.{table}", consistency=Consistency.ONE)
        assert list(counted[0].values()) == [500]
        connection.close()


def test_overwrite_replaces_the_table_at_once(cluster: LocalCluster, table: str) -> None:
    loaded(cluster, table, rows_of(0, 100))
    loaded(cluster, table, rows_of(90, 20, "new"), mode="overwrite")
    assert stored(cluster, table) == [(one, 10 * one, f"new{one}") for one in range(90, 110)]


def test_8_what_does_not_fit_is_told_before_a_task_runs(cluster: LocalCluster, table: str) -> None:
    def refused(*fields: StructField) -> str:
        source = LockstepSource(options(cluster, table, writeMode="bulk"))
        with pytest.raises(LockstepError) as caught:
            source.writer(StructType(list(fields)), False)
        return caught.value.message

    assert "lacks key column id" in refused(StructField("v", StringType()))
    assert "column n is string in the DataFrame" in refused(SCHEMA["id"], StructField("n", StringType()))
    assert "has no column more" in refused(*SCHEMA.fields, StructField("more", StringType()))
    writer = LockstepSource(options(cluster, table, writeMode="bulk")).writer(SCHEMA, False)
    assert isinstance(writer, BulkWriter)
    with pytest.raises(InvalidRequest, match="key column id is null"):
        writer.write(iter(pa.table({"id": pa.array([None], pa.int32()), "n": [1], "v": ["x"]}).to_batches()))
    writer.abort([])
    with pytest.raises(ConfigurationError, match="no column more"):
        loaded(cluster, table, rows_of(0, 1).append_column("more", pa.array([1])))
    with pytest.raises(ConfigurationError, match="not ONE"):
        loaded(cluster, table, rows_of(0, 1), consistencyLevel="ONE")
    with pytest.raises(PreconditionError, match="cannot do at once"):
        LockstepSource(options(cluster, table, writeMode="statements")).writer(SCHEMA, True)


def test_tables_whose_rows_have_consequences_are_refused(cluster: LocalCluster, table: str) -> None:
    connection = connect(cluster)
    connection.query(f"CREATE TABLE shop.c_{table} (id int PRIMARY KEY, n counter)")
    with pytest.raises(LockstepError, match="counters have no values"):
        loaded(cluster, f"c_{table}", rows_of(0, 1))
    connection.close()


def test_an_index_answers_of_a_load_from_its_end_on(cluster: LocalCluster, table: str) -> None:
    connection = connect(cluster)
    connection.query(f"CREATE INDEX i_{table} ON shop.{table} (v)")
    connection.query(f"INSERT INTO shop.{table} (id, n, v) VALUES (5, 1, 'live')")

    def by_value(value: str, node: int = 0, level: Consistency = Consistency.ONE) -> list[int]:
        door = connect(cluster, node)
        until_s = time.monotonic() + GONE_WITHIN_S
        while True:
            try:
                found = door.query(f"SELECT id FROM shop.{table} WHERE v = '{value}'", consistency=level)
                door.close()
                return sorted(int(str(row["id"])) for row in found)
            except LockstepError as error:
                # Entries are being made.
                assert time.monotonic() < until_s and "ndex" in error.message, error.message
                time.sleep(0.2)

    assert by_value("live") == [5]
    data = pa.table({"id": pa.array(range(2000), pa.int32()), "v": [f"v{one % 20}" for one in range(2000)]})
    loaded(cluster, table, data, writeTimeMicros="1000")
    for node in range(3):
        assert by_value("v7", node) == list(range(7, 2000, 20)), node
        assert (by_value("live", node), by_value("v5", node)) == ([5], list(range(25, 2000, 20)))
    loaded(cluster, table, data.slice(0, 100), mode="overwrite")
    for node in range(3):
        assert by_value("v7", node) == list(range(7, 100, 20)), node
    assert by_value("live", level=Consistency.ALL) == []
    connection.close()


def test_collections_and_nulls(cluster: LocalCluster, table: str) -> None:
    connection = connect(cluster)
    connection.query(
        f"CREATE TABLE shop.m_{table} (k int, c text, s int static, l list<int>, v int, PRIMARY KEY (k, c))"
    )
    connection.query(f"INSERT INTO shop.m_{table} (k, c, v) VALUES (1, 'b', 5) USING TIMESTAMP 10")
    data = pa.table(
        {
            "k": pa.array([1, 1], pa.int32()),
            "c": ["a", "b"],
            "s": pa.array([7, 7], pa.int32()),
            "l": pa.array([[1, 2], None], pa.list_(pa.int32())),
            "v": pa.array([None, None], pa.int32()),
        }
    )
    loaded(cluster, f"m_{table}", data, ignoreNulls="true")
    assert stored(cluster, f"m_{table}", "c, s, l, v") == [("a", 7, [1, 2], None), ("b", 7, None, 5)]
    connection.close()


def test_an_operator_sees_a_load_and_ends_it(cluster: LocalCluster, table: str) -> None:
    node = cluster.file.nodes[0]
    data = cluster.paths.data(node.name)
    shown = of_token_file(data / "admin.token", "")
    door = ClusterClient(AdminClient(node.address, PORTS[2], 30.0, shown))
    plan, staged = began(cluster, table, rows_of(0, 100))
    (seen,) = [one for one in door.status()["loads"] if one["job"] == plan.job]
    assert (seen["table"], seen["phase"], seen["staged_files"]) == (table, "staging", len(staged.files))
    asked = {"job": plan.job, "reason": "wrong files"}
    assert door.cancel_load({**asked, "dry_run": True})["load"]["state"] == "running"
    for _ in range(2):
        assert door.cancel_load(asked)["load"]["state"] == "aborted"
    with pytest.raises(LockstepError, match="wrong files"):
        stage(plan, rows_of(100, 100).to_batches(), 1, 0)
    with pytest.raises(LockstepError, match="wrong files"):
        commit(plan, [staged])
    assert not [one for one in door.status()["loads"] if one["job"] == plan.job]
    done = loaded(cluster, table, rows_of(0, 10))
    with pytest.raises(PreconditionError, match=f"was committed at epoch {done.epoch}: its 10 rows are part"):
        door.cancel_load({"job": done.load_id})
    known = {one["job"]: one for one in door.loads()["loads"]}
    assert (known[done.load_id]["state"], known[done.load_id]["rows"]) == ("committed", 10)
    lines = (data / "audit.log").read_text().splitlines()
    assert [one for one in lines if "/v1/loads/cancel" in one and "wrong files" in one]
    told = [json.loads(one) for one in lines if done.load_id in one and '"event": "load"' in one]
    assert [(one["request"], one["outcome"]) for one in told] == [("begin", "done"), ("commit", "done")]
    assert (told[0]["table"], told[1]["rows"]) == (f"shop.{table}", 10)
    assert gone(cluster)


def test_a_load_lives_on_while_rows_come_slowly(
    cluster: LocalCluster, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = began(cluster, table, rows_of(0, 1), leaseMs="60000")
    now_s, renewed = 0.0, []
    begin = LoadClient.begin

    def counted(client: LoadClient, *given: Any, **named: Any) -> Any:
        renewed.append(now_s)
        return begin(client, *given, **named)

    def slowly() -> Iterator[pa.RecordBatch]:
        nonlocal now_s
        for batch in rows_of(1, 50).to_batches(max_chunksize=10):
            now_s += 10.0
            yield batch

    monkeypatch.setattr(LoadClient, "begin", counted)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: now_s))
    assert stage(plan, slowly(), 1, 0).rows == 50
    assert renewed == [20.0, 40.0]
    BulkWriter(plan).abort([])


def test_a_message_is_small(cluster: LocalCluster, table: str) -> None:
    plan, staged = began(cluster, table, rows_of(0, 100))
    assert isinstance(staged, Staged)
    assert len(pickle.dumps(staged)) < 1000 * len(staged.files)
    BulkWriter(plan).abort([staged])
