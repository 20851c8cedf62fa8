"""Traces as clients read them, and warnings of large batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import Cluster, Session
from cassandra.query import BatchStatement, QueryTrace, SimpleStatement

from tests.server.parts import CQL_PORT, Nodes


@pytest.fixture(scope="module")
def session(three: Nodes) -> Iterator[Session]:
    addresses = [member.address for member in three.members]
    cluster = Cluster(addresses, port=CQL_PORT, protocol_version=5)
    session = cluster.connect()
    session.execute(
        "CREATE KEYSPACE traced WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    session.execute("CREATE TABLE traced.t (k int PRIMARY KEY, v int)")
    yield session
    cluster.shutdown()


def trace_of(session: Session, statement: object, *values: object) -> QueryTrace:
    future = session.execute_async(statement, tuple(values) or None, trace=True)
    future.result()
    trace: QueryTrace = future.get_query_trace(max_wait=10, query_cl=ConsistencyLevel.ONE)
    return trace


def test_a_trace_tells_statement_level_coordinator_client_and_steps(session: Session) -> None:
    text = "SELECT v FROM traced.t WHERE k = 1"
    trace = trace_of(session, text)
    assert trace.parameters["query"] == text
    assert trace.parameters["consistency_level"] == "LOCAL_ONE"
    assert trace.coordinator in [str(host.address) for host in session.cluster.metadata.all_hosts()]
    assert trace.client.startswith("127.")
    assert trace.duration is not None and trace.duration.total_seconds() < 5
    assert trace.events[0].description.endswith(text)
    assert trace.events[-1].description.startswith("Answered with")


def test_replicas_have_steps_of_their_own(session: Session) -> None:
    hosts = {str(host.address) for host in session.cluster.metadata.all_hosts()}

    def replicas(text: str, level: int) -> set[str]:
        trace = trace_of(session, SimpleStatement(text, consistency_level=level))
        return {event.source for event in trace.events if event.thread_name == "replica"}

    assert replicas("INSERT INTO traced.t (k, v) VALUES (7, 7)", ConsistencyLevel.ALL) == hosts
    assert replicas("SELECT v FROM traced.t WHERE k = 7", ConsistencyLevel.ALL) == hosts
    assert len(replicas("SELECT v FROM traced.t WHERE k = 7", ConsistencyLevel.ONE)) == 1
    assert not replicas("SELECT * FROM system.local", ConsistencyLevel.ONE)


def test_a_conditional_write_tells_its_rounds(session: Session) -> None:
    def steps(text: str) -> list[str]:
        return [event.description for event in trace_of(session, text).events]

    written = steps("INSERT INTO traced.t (k, v) VALUES (70, 7) IF NOT EXISTS")
    wanted = ["Promised a ballot", "The condition is met", "Accepted a proposal", "Applied what was decided"]
    found = [next(at for at, step in enumerate(written) if step.startswith(start)) for start in wanted]
    assert found == sorted(found)
    refused = steps("INSERT INTO traced.t (k, v) VALUES (70, 7) IF NOT EXISTS")
    assert "The condition does not match existing values" in refused
    assert "Accepted a proposal" not in refused


def test_prepared_statements_and_batches_have_traces(session: Session) -> None:
    insert = session.prepare("INSERT INTO traced.t (k, v) VALUES (?, ?)")
    assert trace_of(session, insert, 1, 1).request_type == "Execute CQL3 prepared query"
    batch = BatchStatement()
    batch.add(insert, (2, 2))
    trace = trace_of(session, batch)
    assert trace.request_type == "Execute batch of CQL3 queries"
    assert insert.query_string in trace.events[0].description


def test_a_trace_is_kept_where_a_replica_is_missing(single: Nodes) -> None:
    cluster = Cluster([single.members[0].address], port=CQL_PORT, protocol_version=5)
    try:
        assert "system_traces" in cluster.connect().cluster.metadata.keyspaces
        trace = trace_of(cluster.connect(), "SELECT key FROM system.local")
        assert trace.events and trace.duration is not None
    finally:
        cluster.shutdown()


def test_clients_cannot_change_the_shape_of_the_trace_tables(session: Session) -> None:
    trace_of(session, "SELECT v FROM traced.t")
    with pytest.raises(InvalidRequest):
        session.execute("DROP KEYSPACE system_traces")
    with pytest.raises(InvalidRequest):
        session.execute("CREATE TABLE system_traces.other (k int PRIMARY KEY)")


def test_a_description_of_the_schema_leaves_the_trace_tables_out(session: Session) -> None:
    trace_of(session, "SELECT v FROM traced.t")
    described = {row.keyspace_name for row in session.execute("DESCRIBE SCHEMA")}
    assert "traced" in described and "system_traces" not in described
    assert "system_traces" in {row.keyspace_name for row in session.execute("DESCRIBE FULL SCHEMA")}


def test_a_large_batch_is_warned_of_once(session: Session) -> None:
    insert = session.prepare("INSERT INTO traced.t (k, v) VALUES (?, ?)")
    batch = BatchStatement()
    for key in range(400):
        batch.add(insert, (key, key))
    future = session.execute_async(batch)
    future.result()
    (warning,) = future.warnings
    assert "Batch for [traced.t] is of size 20800, exceeding specified threshold of 5120" in warning
