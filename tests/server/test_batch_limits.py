"""How large batches may be, as clients and operators see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.cluster import Cluster, Session
from cassandra.query import BatchStatement, BatchType

from lockstep.node.configuration import parse
from lockstep.server.statements.batch_writes import data_bytes
from lockstep.values.rows import Cell, Liveness, Mutation, Row
from tests.server.parts import CQL_PORT, Nodes, nodes

KINDS = ["BEGIN BATCH", "BEGIN UNLOGGED BATCH"]


@pytest.fixture(scope="module")
def session(single: Nodes) -> Iterator[Session]:
    cluster = Cluster([single.members[0].address], port=CQL_PORT, protocol_version=5)
    session = cluster.connect()
    session.execute(
        "CREATE KEYSPACE sized WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute("CREATE TABLE sized.t (k int, c int, v text, PRIMARY KEY (k, c))")
    session.execute("CREATE TABLE sized.n (k int PRIMARY KEY, n counter)")
    yield session
    cluster.shutdown()


def text_batch(begin: str, keys: range, size: int, partitions: int = 1 << 20) -> str:
    value = "x" * size
    inserts = [f"INSERT INTO sized.t (k, c, v) VALUES ({k % partitions}, {k}, '{value}')" for k in keys]
    return f"{begin} {'; '.join(inserts)}; APPLY BATCH"


def warnings_of(session: Session, statement: Any) -> list[str]:
    future = session.execute_async(statement)
    future.result()
    return list(future.warnings or [])


@pytest.mark.parametrize("begin", KINDS)
def test_a_batch_written_as_one_text_is_judged_as_the_protocols_is(session: Session, begin: str) -> None:
    assert not warnings_of(session, text_batch(begin, range(2), 2000))
    (warning,) = warnings_of(session, text_batch(begin, range(3), 2000))
    assert warning.startswith("Batch for [sized.t] is of size 6")
    assert "exceeding specified threshold of 5120 by" in warning
    with pytest.raises(InvalidRequest, match="Batch too large"):
        session.execute(text_batch(begin, range(6), 9000))


@pytest.mark.parametrize("kind", [BatchType.LOGGED, BatchType.UNLOGGED])
def test_a_batch_of_prepared_statements_above_the_threshold_is_refused(
    session: Session, kind: BatchType
) -> None:
    insert = session.prepare("INSERT INTO sized.t (k, c, v) VALUES (?, ?, ?)")
    batch = BatchStatement(kind)
    for key in range(6):
        batch.add(insert, (100 + key, 1, "x" * 9000))
    with pytest.raises(InvalidRequest, match="Batch too large"):
        session.execute(batch)
    assert not list(session.execute("SELECT * FROM sized.t WHERE k = 100"))


@pytest.mark.parametrize("begin", KINDS)
def test_a_batch_of_one_partition_is_of_any_size(session: Session, begin: str) -> None:
    assert not warnings_of(session, text_batch(begin, range(8), 9000, partitions=1))


def test_a_counter_batch_is_judged_as_well(session: Session) -> None:
    updates = "; ".join(f"UPDATE sized.n SET n = n + 1 WHERE k = {key}" for key in range(250))
    (warning,) = warnings_of(session, f"BEGIN COUNTER BATCH {updates}; APPLY BATCH")
    assert "Batch for [sized.n] is of size" in warning


def test_the_log_tells_once_what_was_warned_of_and_refused(session: Session, single: Nodes) -> None:
    for _ in range(3):
        warnings_of(session, text_batch(KINDS[0], range(3), 2000))
    log = single.members[0].log
    (warned,) = [f for e, f in log if e == "cql.batch_warned" and f["tables"] == "sized.t"]
    assert warned["threshold_bytes"] == 5120 and warned["size_bytes"] > 6000 and warned["partitions"] == 3
    (refused,) = [facts for event, facts in log if event == "cql.batch_refused"]
    assert refused["tables"] == "sized.t" and refused["threshold_bytes"] == 51_200


def test_both_thresholds_are_settings(tmp_path: Any) -> None:
    settings = {
        "writes_batch_size_warn_threshold_bytes": "0",
        "writes_batch_size_fail_threshold_bytes": "1000",
    }
    with nodes(tmp_path, 1, **settings) as cluster:
        connected = Cluster([cluster.members[0].address], port=CQL_PORT, protocol_version=5)
        session = connected.connect()
        session.execute(
            "CREATE KEYSPACE sized WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        session.execute("CREATE TABLE sized.t (k int, c int, v text, PRIMARY KEY (k, c))")
        assert not warnings_of(session, text_batch(KINDS[0], range(2), 300))
        with pytest.raises(InvalidRequest, match="Batch too large"):
            session.execute(text_batch(KINDS[0], range(2), 600))
        connected.shutdown()
    writes = parse('[cluster]\nfounders=["127.0.0.1"]').writes
    assert (writes.batch_size_warn_threshold_bytes, writes.batch_size_fail_threshold_bytes) == (5120, 51_200)


def test_data_is_counted_without_partition_keys() -> None:
    row = Row(b"abcd", Liveness(1), None, (Cell(5, b"x" * 10, 1), Cell(6, None, 1, path=b"p" * 3)))
    mutation = Mutation(1, 1, b"key" * 100, b"m" * 16, 1, rows=(row,))
    assert data_bytes([mutation]) == 12 + 4 + 8 + 12 + 16 + 10 + 16 + 3
