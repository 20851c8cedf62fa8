"""Counters as the unmodified Python driver sees them, on three nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cassandra import ConsistencyLevel, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.protocol import ConfigurationException
from cassandra.query import BatchStatement, BatchType, tuple_factory

from tests.server.parts import CQL_PORT, Nodes

_REPLICATION = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"


@pytest.fixture(scope="module")
def session(three: Nodes) -> Iterator[Session]:
    profile = ExecutionProfile(
        request_timeout=10, row_factory=tuple_factory, consistency_level=ConsistencyLevel.QUORUM
    )
    driver = Cluster(
        [member.address for member in three.members],
        port=CQL_PORT,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    made = driver.connect()
    made.execute(f"CREATE KEYSPACE counting {_REPLICATION}")
    made.set_keyspace("counting")
    made.execute("CREATE TABLE c (k int, r int, n counter, m counter, s counter static, PRIMARY KEY (k, r))")
    made.execute("CREATE TABLE plain (k int PRIMARY KEY, v int)")
    yield made
    driver.shutdown()


def value(session: Session, what: str, key: int) -> list[tuple]:
    return list(session.execute(f"SELECT {what} FROM c WHERE k = {key}"))


def test_changes_add_up_whoever_counts(session: Session) -> None:
    add = session.prepare("UPDATE c SET n = n + ?, m = m - ? WHERE k = 1 AND r = ?")
    futures = [session.execute_async(add, (2, 1, at % 2)) for at in range(60)]
    for future in futures:
        future.result()
    assert value(session, "r, n, m", 1) == [(0, 60, -30), (1, 60, -30)]
    session.execute("UPDATE c SET n += 5, s = s + 7 WHERE k = 1 AND r = 1")
    session.execute("UPDATE c SET n -= 1 WHERE k = 1 AND r = 1")
    session.execute("UPDATE c SET s = s + 1 WHERE k = 1")
    assert value(session, "r, n, s", 1) == [(0, 60, 8), (1, 64, 8)]
    assert value(session, "sum(n), cast(max(n) AS text), toJson(n)", 1) == [(124, "64", "60")]
    assert list(session.execute("SELECT r FROM c WHERE k = 1 AND n > 60 ALLOW FILTERING")) == [(1,)]


def test_counters_wrap_as_64_bits_do(session: Session) -> None:
    session.execute(f"UPDATE c SET n = n + {2**63 - 1} WHERE k = 2 AND r = 0")
    session.execute("UPDATE c SET n = n + 1 WHERE k = 2 AND r = 0")
    assert value(session, "n", 2) == [(-(2**63),)]


def test_what_was_deleted_is_counted_anew(session: Session) -> None:
    for k in (3, 4):
        session.execute(f"UPDATE c SET n = n + 5, m = m + 5 WHERE k = {k} AND r = 0")
    session.execute("DELETE n FROM c WHERE k = 3 AND r = 0")
    assert value(session, "n, m", 3) == [(None, 5)]
    session.execute("UPDATE c SET n = n + 1 WHERE k = 3 AND r = 0")
    assert value(session, "n, m", 3) == [(1, 5)]
    session.execute("DELETE FROM c WHERE k = 4")
    assert value(session, "n", 4) == []


def test_batches_count_every_statement(session: Session) -> None:
    add = session.prepare("UPDATE c SET n = n + ? WHERE k = ? AND r = 0")
    batch = BatchStatement(BatchType.COUNTER)
    for key in (5, 5, 6):
        batch.add(add, (3, key))
    session.execute(batch)
    session.execute("BEGIN COUNTER BATCH UPDATE c SET n = n + 1 WHERE k = 5 AND r = 0; APPLY BATCH")
    assert (value(session, "n", 5), value(session, "n", 6)) == ([(7,)], [(3,)])
    mixed = BatchStatement(BatchType.UNLOGGED)
    mixed.add(add, (1, 5))
    mixed.add("INSERT INTO plain (k, v) VALUES (1, 1)")
    with pytest.raises(InvalidRequest, match="Counter and non-counter mutations cannot exist"):
        session.execute(mixed)
    logged = BatchStatement(BatchType.LOGGED)
    logged.add(add, (1, 5))
    with pytest.raises(InvalidRequest, match="Cannot include a counter statement in a logged batch"):
        session.execute(logged)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO c (k, r, n) VALUES (1, 1, 1)", "INSERT statements are not allowed on counter tables"),
        ("UPDATE c SET n = 1 WHERE k = 1 AND r = 1", "Cannot set the value of counter column n"),
        ("UPDATE c USING TTL 5 SET n = n + 1 WHERE k = 1 AND r = 1", "Cannot provide custom TTL"),
        ("UPDATE c USING TIMESTAMP 5 SET n = n + 1 WHERE k = 1 AND r = 1", "Cannot provide custom timestamp"),
        ("UPDATE c SET n = n + null WHERE k = 1 AND r = 1", "Invalid null value for counter increment"),
        ("UPDATE plain SET v = v + 1 WHERE k = 1", "for non counter column v"),
        ("CREATE TABLE x (k int PRIMARY KEY, n counter, v int)", "Cannot mix counter and non counter"),
        (
            "CREATE TABLE x (k counter PRIMARY KEY)",
            "counter type is not supported for PRIMARY KEY column 'k'",
        ),
        ("ALTER TABLE c ADD v int", "in a counter table"),
        ("ALTER TABLE plain ADD n counter", "in a non counter table"),
        ("SELECT writetime(n) FROM c", "Cannot use selection function writetime on counters"),
    ],
)
def test_refusals(session: Session, text: str, message: str) -> None:
    refused = ConfigurationException if text.startswith("ALTER") else InvalidRequest
    with pytest.raises(refused, match=message):
        session.execute(text)


def test_drivers_know_a_table_that_counts(session: Session) -> None:
    session.cluster.refresh_table_metadata("counting", "c")
    table = session.cluster.metadata.keyspaces["counting"].tables["c"]
    assert "n counter" in table.export_as_string() and not table.is_compact_storage
    assert session.execute(
        "SELECT flags FROM system_schema.tables WHERE keyspace_name = 'counting' AND table_name = 'c'"
    ).one()[0] == {"compound", "counter"}
