"""What the Python driver makes of the protocol: versions, large messages, prepared statements that travel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import SimpleStatement, tuple_factory

from tests.server.parts import CQL_PORT, Nodes

_names = itertools.count(1)
#: 300 KB: several segments.
LARGE = bytes(range(256)) * 1200


def connect(cluster: Nodes, **settings: Any) -> Cluster:
    profile = ExecutionProfile(request_timeout=20, row_factory=tuple_factory)
    return Cluster(
        [cluster.members[0].address],
        port=CQL_PORT,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        **settings,
    )


@pytest.fixture(params=[(5, "lz4"), (5, False), (4, "lz4")], ids=["v5-lz4", "v5", "v4-lz4"])
def session(three: Nodes, request: pytest.FixtureRequest) -> Iterator[Session]:
    version, compression = request.param
    driver = connect(three, protocol_version=version, compression=compression)
    made = driver.connect()
    name = f"protocol_{next(_names)}"
    made.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    made.set_keyspace(name)
    yield made
    driver.shutdown()


def test_a_driver_that_begins_with_the_highest_version_it_knows_finds_the_one_in_common(
    three: Nodes,
) -> None:
    driver = connect(three)
    try:
        assert driver.protocol_version > 5
        assert driver.connect().execute("SELECT key FROM system.local").one() == ("local",)
        assert driver.protocol_version == 5
    finally:
        driver.shutdown()


def test_the_beta_version_is_spoken_by_a_driver_that_asks_for_it(three: Nodes) -> None:
    driver = connect(three, protocol_version=6, allow_beta_protocol_version=True)
    try:
        found = driver.connect().execute("SELECT key FROM system.local WHERE key = 'local'")
        assert found.one() == ("local",)
    finally:
        driver.shutdown()


def test_large_values_and_results_arrive_whole(session: Session) -> None:
    session.execute("CREATE TABLE large (k int, c int, v blob, PRIMARY KEY (k, c))")
    insert = session.prepare("INSERT INTO large (k, c, v) VALUES (1, ?, ?)")
    for c in range(17):
        session.execute(insert, (c, LARGE))
    text = f"INSERT INTO large (k, c, v) VALUES (2, 0, 0x{LARGE.hex()})"
    session.execute(text)
    assert session.execute("SELECT v FROM large WHERE k = 2").one() == (LARGE,)
    whole = SimpleStatement("SELECT c, v FROM large WHERE k = 1", fetch_size=None)
    rows = session.execute(whole).current_rows
    assert sum(len(value) for _, value in rows) > 5_000_000
    assert list(rows) == [(c, LARGE) for c in range(17)]


def test_a_statement_prepared_at_one_node_is_executed_at_others_and_after_another_column(
    three: Nodes, session: Session
) -> None:
    session.cluster.prepare_on_all_hosts = False
    session.execute("CREATE TABLE travels (k int PRIMARY KEY, v int)")
    session.execute("INSERT INTO travels (k, v) VALUES (1, 2)")
    statement = session.prepare("SELECT * FROM travels WHERE k = 1")
    hosts = [session.cluster.metadata.get_host(member.address, CQL_PORT) for member in three.members]
    for host in hosts:
        assert session.execute(statement, host=host).one() == (1, 2)
    session.execute("ALTER TABLE travels ADD w int")
    session.execute("INSERT INTO travels (k, w) VALUES (1, 3)")
    for host in hosts:
        assert session.execute(statement, host=host).one() == (1, 2, 3)
