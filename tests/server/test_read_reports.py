"""What a driver sees of a request's replicas: warnings and failures of reads, and the plans it asks for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest, ReadFailure, Unavailable
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import WhiteListRoundRobinPolicy
from cassandra.query import BatchStatement, BatchType, SimpleStatement

from lockstep.server.statements.tracing import PLAN_KEY
from tests.server.parts import CQL_PORT, Nodes, nodes

WARNED, REFUSED, LARGE = 5, 40, 2000
ALL, QUORUM, ONE = ConsistencyLevel.ALL, ConsistencyLevel.QUORUM, ConsistencyLevel.ONE
ASKED = {PLAN_KEY: b""}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(
        tmp_path_factory.mktemp("reports"),
        3,
        reads_tombstone_warn_threshold=str(WARNED),
        reads_tombstone_failure_threshold=str(REFUSED),
        reads_coordinator_read_size_warn_bytes=str(LARGE),
        reads_coordinator_read_size_fail_bytes=str(10 * LARGE),
    ) as running:
        yield running
        assert not running.escaped


@pytest.fixture(scope="module", params=[5, 4], ids=["v5", "v4"])
def session(cluster: Nodes, request: pytest.FixtureRequest) -> Iterator[Session]:
    address = cluster.members[0].address
    profile = ExecutionProfile(
        request_timeout=10,
        consistency_level=QUORUM,
        load_balancing_policy=WhiteListRoundRobinPolicy([address]),
    )
    driver = Cluster(
        [address],
        port=CQL_PORT,
        protocol_version=request.param,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    made = driver.connect()
    keyspace = f"reports_{request.param}"
    setting = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    made.execute(f"CREATE KEYSPACE {keyspace} {setting}")
    made.set_keyspace(keyspace)
    made.execute("CREATE TABLE t (a int, b int, c text, PRIMARY KEY (a, b))")
    yield made
    driver.shutdown()


def delete_rows(session: Session, a: int, count: int) -> None:
    for b in range(count):
        session.execute(f"DELETE FROM t WHERE a = {a} AND b = {b}")


def read(session: Session, where: str, level: int = ALL) -> list[str]:
    statement = SimpleStatement(f"SELECT b FROM t WHERE {where}", consistency_level=level)
    return list(session.execute(statement).response_future.warnings or ())


def test_a_page_over_many_tombstones_warns_once_for_all_its_replicas(session: Session) -> None:
    delete_rows(session, 1, WARNED)
    assert read(session, "a = 1") == []
    delete_rows(session, 1, WARNED + 2)
    delete_rows(session, 2, WARNED + 1)
    (said,) = read(session, "a = 1")
    wording = "3 nodes scanned up to 7 tombstones and issued tombstone warnings for query"
    assert said == f"{wording} SELECT b FROM t WHERE a = 1  (see tombstone_warn_threshold)"
    (said,) = read(session, "a IN (1, 2)")
    assert said.startswith("3 nodes scanned up to 7 tombstones"), "one of several partitions"
    (said,) = read(session, "a = 1", ONE)
    assert said.startswith("1 nodes scanned up to 7 tombstones")


def test_a_page_over_too_many_tombstones_fails_with_the_reason_of_each_replica(
    cluster: Nodes, session: Session
) -> None:
    delete_rows(session, 3, REFUSED + 1)
    with pytest.raises(ReadFailure) as caught:
        read(session, "a = 3")
    error = caught.value
    assert (error.required_responses, error.failures, error.consistency) == (3, 3, ALL)
    if session.cluster.protocol_version == 5:
        assert error.error_code_map == {member.address: 1 for member in cluster.members}
    assert "nodes scanned over 41 tombstones and aborted the query SELECT b FROM t" in str(error)


def test_a_large_page_warns_and_a_larger_one_fails(session: Session) -> None:
    session.execute("INSERT INTO t (a, b, c) VALUES (4, 1, %s)", ("x" * (LARGE + 1),))
    result = session.execute("SELECT c FROM t WHERE a = 4")
    (said,) = result.response_future.warnings
    assert (
        said == f"Read on table {session.keyspace}.t has exceeded the size warning threshold of 2,000 bytes"
    )
    session.execute("INSERT INTO t (a, b, c) VALUES (4, 2, %s)", ("x" * (10 * LARGE),))
    with pytest.raises(ReadFailure) as caught:
        session.execute("SELECT c FROM t WHERE a = 4")
    if session.cluster.protocol_version == 5:
        assert set(caught.value.error_code_map.values()) == {4}
    session.execute("DELETE FROM t WHERE a = 4")


@pytest.mark.parametrize("text", ["SELECT a FROM t", "SELECT a FROM t WHERE a = 1"])
def test_any_is_a_level_of_writes_only(session: Session, text: str) -> None:
    with pytest.raises(InvalidRequest, match="ANY ConsistencyLevel is only supported for writes"):
        session.execute(SimpleStatement(text, consistency_level=ConsistencyLevel.ANY))
    insert = "INSERT INTO t (a, b) VALUES (9, 9)"
    session.execute(SimpleStatement(insert, consistency_level=ConsistencyLevel.ANY))


# -- plans ----------------------------------------------------------------------------------------


def plans(future: Any) -> list[dict[str, Any]]:
    """What the answer of a request says of its plans; each has met what it needs."""
    told = json.loads(future.custom_payload[PLAN_KEY])
    assert told["left_out"] == 0
    for plan in told["plans"]:
        epochs = [one["epoch"] for one in plan["responders"]]
        assert all(epoch >= plan["needs_epoch"] for epoch in epochs)
        assert {one["node"] for one in plan["responders"]} <= set(plan["asked"])
        assert plan["required"] == sum(need["count"] for need in plan["needs"])
        if plan["outcome"] == "ok":
            assert len(plan["responders"]) >= plan["required"]
    found: list[dict[str, Any]] = told["plans"]
    return found


def test_who_asks_is_told_the_plans_of_a_request(cluster: Nodes, session: Session) -> None:
    insert = session.prepare("INSERT INTO t (a, b, c) VALUES (?, ?, ?)")
    insert.consistency_level = QUORUM
    future = session.execute_async(insert, (20, 1, "x"), custom_payload=ASKED)
    future.result()
    (write,) = plans(future)
    assert (write["kind"], write["level"], write["required"]) == ("write", "QUORUM", 2)
    assert write["reads"] == write["writes"] == write["asked"] and len(write["reads"]) == 3
    assert write["epoch"] == cluster.members[0].node.log.cluster.epoch
    left, right = write["range"]
    assert left < write["tokens"][1] <= right

    select = session.prepare("SELECT c FROM t WHERE a = ?")
    future = session.execute_async(select, (20,), custom_payload=ASKED)
    assert future.result().one()[0] == "x"
    (read_,) = plans(future)
    assert (read_["kind"], read_["tokens"], read_["repaired"]) == ("read", write["tokens"], False)

    session.execute("CREATE TABLE scanned (a int PRIMARY KEY)")
    scan = SimpleStatement("SELECT a FROM scanned", consistency_level=ALL, fetch_size=5000)
    future = session.execute_async(scan, custom_payload=ASKED)
    future.result()
    pieces = plans(future)
    assert [piece["kind"] for piece in pieces] == ["read"] * len(pieces)
    assert all(one["tokens"][1] <= two["tokens"][0] for one, two in itertools.pairwise(pieces))

    batch = BatchStatement(BatchType.UNLOGGED)
    for a in range(3):
        batch.add(insert, (a, 100, "y"))
    future = session.execute_async(batch, custom_payload=ASKED)
    future.result()
    assert [plan["kind"] for plan in plans(future)].count("write") == 3


def test_who_does_not_ask_is_told_nothing(session: Session) -> None:
    for payload in (None, {"other": b"1"}):
        future = session.execute_async("SELECT a FROM t WHERE a = 20", custom_payload=payload)
        future.result()
        assert future.custom_payload is None
    insert = session.prepare("INSERT INTO t (a, b, c) VALUES (?, ?, ?)")
    future = session.execute_async(insert, (20, 1, "x"), custom_payload={"other": b"1"})
    future.result()
    assert future.custom_payload is None


def test_an_error_comes_with_the_plans_too(session: Session) -> None:
    delete_rows(session, 5, REFUSED + 1)
    select = SimpleStatement("SELECT b FROM t WHERE a = 5", consistency_level=ALL)
    future = session.execute_async(select, custom_payload=ASKED)
    with pytest.raises(ReadFailure):
        future.result()
    assert json.loads(future.custom_payload[PLAN_KEY]) == {"plans": [], "left_out": 0}


def test_more_replicas_than_there_are_is_unavailable_in_the_levels_name(session: Session) -> None:
    keyspace = f"alone_{session.cluster.protocol_version}"
    setting = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    session.execute(f"CREATE KEYSPACE {keyspace} {setting}")
    session.execute(f"CREATE TABLE {keyspace}.t (a int PRIMARY KEY)")
    three = SimpleStatement(f"SELECT a FROM {keyspace}.t", consistency_level=ConsistencyLevel.THREE)
    with pytest.raises((Unavailable, NoHostAvailable), match="Cannot achieve consistency level THREE"):
        session.execute(three)


def test_custom_payloads_come_back_where_that_is_set(
    cluster: Nodes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for member in cluster.members:
        monkeypatch.setattr(member.server.clients, "mirrors_payloads", True)
    payload = {"a": b"1", "empty": b"", "null": None}
    insert = session.prepare("INSERT INTO t (a, b, c) VALUES (?, ?, ?)")
    batch = BatchStatement()
    batch.add(insert, (30, 1, "x"))
    for statement in ("SELECT * FROM system.local", insert.bind((30, 1, "x")), batch):
        future = session.execute_async(statement, custom_payload=payload)
        future.result()
        assert future.custom_payload == payload
    asked = session.execute_async("SELECT c FROM t WHERE a = 30", custom_payload={**payload, **ASKED})
    asked.result()
    assert asked.custom_payload.keys() == {*payload, PLAN_KEY} and plans(asked)
    traced = session.execute_async("SELECT c FROM t WHERE a = 30", trace=True, custom_payload=payload)
    traced.result()
    assert traced.custom_payload == payload
