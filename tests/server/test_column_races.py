"""Requests through a node that does not know yet that a column was dropped, or what its name means now."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest, WriteTimeout
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import FallthroughRetryPolicy, WhiteListRoundRobinPolicy
from cassandra.query import BatchStatement, tuple_factory

from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.changes import AddColumns, DropColumns, NewColumn, SchemaChange
from tests.server.parts import CQL_PORT, Nodes

KEYSPACE = "columns_that_go"
_REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 3}"
BEHIND = 2


@pytest.fixture
def session(three: Nodes) -> Iterator[Session]:
    """Connected with the node that will be behind, and only with it."""
    address = three.members[BEHIND].address
    profile = ExecutionProfile(
        load_balancing_policy=WhiteListRoundRobinPolicy([address]),
        retry_policy=FallthroughRetryPolicy(),
        row_factory=tuple_factory,
        request_timeout=15,
        consistency_level=ConsistencyLevel.QUORUM,
    )
    cluster = Cluster([address], port=CQL_PORT, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
    made = cluster.connect()
    made.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
    made.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {_REPLICATION}")
    made.set_keyspace(KEYSPACE)
    made.execute("CREATE TABLE t (k int PRIMARY KEY, v int, w int)")
    made.execute("INSERT INTO t (k, v, w) VALUES (1, 1, 1)")
    yield made
    cluster.shutdown()


@contextmanager
def behind(cluster: Nodes, *changes: SchemaChange) -> Iterator[Callable[[], None]]:
    """Changes that one node has not seen when the block begins. What is given waits until that node was
    refused as stale, and lets it catch up."""
    late = cluster.members[BEHIND].node
    held_at = late.log.state.epoch
    cluster.loop.call_soon_threadsafe(late.log.state.hold_at, held_at)
    refused = sum(late.data.coordinator.catch_ups())

    def released() -> None:
        deadline_s = time.monotonic() + 10
        while sum(late.data.coordinator.catch_ups()) == refused and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert sum(late.data.coordinator.catch_ups()) > refused
        assert late.log.state.epoch == held_at
        cluster.loop.call_soon_threadsafe(late.log.state.hold_at, None)

    try:
        for change in changes:
            epoch = cluster.call(cluster.members[0].node.log.submit(ChangeSchema(change)))
            for member in cluster.members[:BEHIND]:
                cluster.call(member.node.log.state.wait_for(epoch))
        yield released
    finally:
        cluster.loop.call_soon_threadsafe(late.log.state.hold_at, None)


def drop() -> DropColumns:
    return DropColumns(KEYSPACE, "t", ("v",), time.time_ns() // 1000)


def add(kind: str) -> AddColumns:
    return AddColumns(KEYSPACE, "t", (NewColumn("v", kind),))


def test_a_read_does_not_show_a_dropped_column_under_the_name_of_its_successor(
    three: Nodes, session: Session
) -> None:
    prepared = session.prepare("SELECT v, w FROM t WHERE k = 1")
    for statement in ("SELECT v, w FROM t WHERE k = 1", prepared, "SELECT v, w FROM t"):
        session.execute("INSERT INTO t (k, v, w) VALUES (1, 1, 1)")
        with behind(three, drop(), add("int")) as released:
            future = session.execute_async(statement)
            released()
            assert list(future.result()) == [(None, 1)]


def test_a_write_reaches_the_column_that_has_the_name_now(three: Nodes, session: Session) -> None:
    prepared = session.prepare("INSERT INTO t (k, v) VALUES (?, ?)")
    for key, kind in ((1, "simple"), (2, "text"), (3, "batch")):
        statement: Any = prepared.bind((key, 7))
        if kind == "text":
            statement = f"INSERT INTO t (k, v) VALUES ({key}, 7)"
        if kind == "batch":
            statement = BatchStatement()
            statement.add(prepared, (key, 7))
            statement.add("INSERT INTO t (k, v) VALUES (4, 7)")
        with behind(three, drop(), add("int")) as released:
            future = session.execute_async(statement)
            released()
            future.result()
        assert list(session.execute(f"SELECT v FROM t WHERE k = {key}")) == [(7,)]
    assert list(session.execute("SELECT v FROM t WHERE k = 4")) == [(7,)]


def test_a_write_of_a_column_that_is_gone_is_no_success(three: Nodes, session: Session) -> None:
    prepared = session.prepare("INSERT INTO t (k, v) VALUES (?, ?)")
    statements = ("INSERT INTO t (k, v) VALUES (5, 5)", prepared.bind((5, 5)))
    for statement in statements:
        with behind(three, drop()) as released:
            future = session.execute_async(statement)
            released()
            # This node had taken the write before it was refused elsewhere, so its row may be seen; and its
            # value too, which is newer than the drop, when the column is there again.
            with pytest.raises((InvalidRequest, WriteTimeout)) as caught:
                future.result()
        session.execute("ALTER TABLE t ADD v int")
        seen = list(session.execute("SELECT v FROM t WHERE k = 5"))
        assert seen in ([], [(None,)]) or (caught.type is WriteTimeout and seen == [(5,)])


def test_a_write_that_does_not_use_what_was_dropped_goes_on(three: Nodes, session: Session) -> None:
    with behind(three, drop(), add("int")) as released:
        future = session.execute_async("INSERT INTO t (k, w) VALUES (6, 6)")
        released()
        future.result()
    assert list(session.execute("SELECT v, w FROM t WHERE k = 6")) == [(None, 6)]


def test_rows_that_had_nothing_but_a_dropped_column_are_gone_with_it(three: Nodes, session: Session) -> None:
    session.execute("CREATE TABLE r (k int, c int, s int STATIC, o int STATIC, v int, PRIMARY KEY (k, c))")
    for key in range(6):
        session.execute(f"UPDATE r SET v = 1 WHERE k = {key} AND c = 1")
        session.execute(f"UPDATE r SET s = 1 WHERE k = {key + 10}")
    for key in range(4, 8):
        session.execute(f"INSERT INTO r (k, c) VALUES ({key}, 2)")
    session.execute("UPDATE r SET o = 3 WHERE k = 10")
    session.execute("ALTER TABLE r DROP (v, s)")
    session.execute("ALTER TABLE r ADD v int")
    assert sorted(session.execute("SELECT k, c, v, o FROM r")) == [
        (4, 2, None, None), (5, 2, None, None), (6, 2, None, None), (7, 2, None, None), (10, None, None, 3)
    ]  # fmt: skip
    assert sorted(session.execute("SELECT DISTINCT k FROM r")) == [(4,), (5,), (6,), (7,), (10,)]
    # A partition without rows is there by its static content, asked for or not.
    assert set(session.execute("SELECT k, c FROM r PER PARTITION LIMIT 1")) == {
        (4, 2), (5, 2), (6, 2), (7, 2), (10, None)
    }  # fmt: skip
    assert list(session.execute("SELECT c FROM r WHERE k = 4 LIMIT 1")) == [(2,)]
    paged = session.prepare("SELECT k, c FROM r")
    paged.fetch_size = 2
    assert len(list(session.execute(paged))) == 5
    session.execute("UPDATE r SET v = 9 WHERE k = 0 AND c = 1")
    assert list(session.execute("SELECT c, v FROM r WHERE k = 0")) == [(1, 9)]
