"""A driver that pages, reads and writes while nodes are lost, frozen, added and removed.

The tests are the chapters of one story over one cluster and run in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel, ReadTimeout, Unavailable, WriteTimeout
from cassandra.cluster import Cluster, NoHostAvailable, Session
from cassandra.policies import FallthroughRetryPolicy, HostStateListener
from cassandra.query import BatchStatement, BatchType, SimpleStatement

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import (
    ADMIN_PORT,
    CQL_PORT,
    PORTS,
    connect,
    lockstep,
    settled_errors,
    until,
)

pytestmark = pytest.mark.slow

POINTS = [f"127.0.104.{number}" for number in (11, 12, 13)]
FIRST, FOURTH = POINTS[0], "127.0.104.14"
HOST = f"{FIRST}:{ADMIN_PORT}"
PARTITIONS, EACH = 100, 100
QUORUM, ALL = ConsistencyLevel.QUORUM, ConsistencyLevel.ALL


class Listener(HostStateListener):
    """What the driver makes of the events it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def on_up(self, host: Any) -> None:
        self.heard.append(("up", host.address))

    def on_down(self, host: Any) -> None:
        self.heard.append(("down", host.address))

    def on_add(self, host: Any) -> None:
        self.heard.append(("add", host.address))

    def on_remove(self, host: Any) -> None:
        self.heard.append(("remove", host.address))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home: Path = tmp_path_factory.mktemp("losses")
    made = LocalCluster.create("losses", 3, first_address=FIRST, ports=PORTS, home=home)
    with made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def driver(cluster: LocalCluster) -> Iterator[Cluster]:
    made = connect(POINTS, protocol_version=5)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def session(driver: Cluster) -> Session:
    made = driver.connect()
    setting = "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    made.execute(f"CREATE KEYSPACE losses WITH replication = {setting}")
    made.set_keyspace("losses")
    made.execute("CREATE TABLE t (a int, b int, s text static, v text, PRIMARY KEY (a, b))")
    insert = made.prepare("INSERT INTO t (a, b, s, v) VALUES (?, ?, ?, ?)")
    for a in range(PARTITIONS):
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=QUORUM)
        for b in range(EACH):
            batch.add(insert, (a, b, f"s{a}", f"v{b}"))
        made.execute(batch)
    return made


def name_of(cluster: LocalCluster, address: str) -> str:
    return next(node.name for node in cluster.file.nodes if node.address == address)


def pages(
    session: Session, text: str, size: int, hosts: list[str] | None = None, after_first: Any = None
) -> list[tuple[Any, ...]]:
    """All rows in pages of `size`, each asked of the next of the hosts; `after_first` is called once."""
    rows: list[tuple[Any, ...]] = []
    state, turn = None, 0
    while True:
        statement = SimpleStatement(text, fetch_size=size, consistency_level=QUORUM, is_idempotent=True)
        listed = hosts or POINTS
        host = session.cluster.metadata.get_host(listed[turn % len(listed)], CQL_PORT)
        result = session.execute(statement, paging_state=state, host=host)
        found = result.current_rows
        assert len(found) <= size
        rows += [tuple(row) for row in found]
        state, turn = result.paging_state, turn + 1
        if turn == 1 and after_first is not None:
            after_first()
        if state is None:
            return rows


def test_pages_of_every_size_from_any_node_are_the_whole_answer(session: Session) -> None:
    every = "SELECT a, b, s, v FROM t"
    whole = [tuple(row) for row in session.execute(SimpleStatement(every, fetch_size=None))]
    assert sorted(whole) == [(a, b, f"s{a}", f"v{b}") for a in range(PARTITIONS) for b in range(EACH)]
    assert pages(session, every, 5000) == whole
    for size in (1, 2, 7):
        assert pages(session, f"{every} LIMIT 150", size) == whole[:150]
    each = "SELECT a, b FROM t PER PARTITION LIMIT 3"
    assert pages(session, each, 7) == [row[:2] for row in whole if row[1] < 3]
    behind = "SELECT b FROM t WHERE a = 5 ORDER BY b DESC"
    assert pages(session, behind, 7) == [(b,) for b in reversed(range(EACH))]
    statics = sorted(pages(session, "SELECT DISTINCT a, s FROM t", 7))
    assert statics == [(a, f"s{a}") for a in range(PARTITIONS)]


def test_a_scan_goes_on_when_a_node_is_lost(cluster: LocalCluster, session: Session) -> None:
    every = "SELECT a, b, s, v FROM t"
    left = POINTS[:2]
    found = pages(session, every, 900, left, lambda: cluster.kill(name_of(cluster, POINTS[2])))
    assert sorted(found) == [(a, b, f"s{a}", f"v{b}") for a in range(PARTITIONS) for b in range(EACH)]


def test_a_quorum_goes_on_without_one_node_and_not_without_two(
    cluster: LocalCluster, session: Session
) -> None:
    write = SimpleStatement(
        "INSERT INTO t (a, b, v) VALUES (1000, 1, 'x')", consistency_level=QUORUM, is_idempotent=True
    )
    for _ in range(20):
        session.execute(write)
    cluster.kill(name_of(cluster, POINTS[1]))
    first = session.cluster.metadata.get_host(FIRST, CQL_PORT)
    told: list[tuple[int, int]] = []

    def unavailable() -> bool:
        try:
            session.execute(write, host=first)
        except Unavailable as error:
            told.append((error.required_replicas, error.alive_replicas))
        except (WriteTimeout, NoHostAvailable):
            return False  # it does not seem dead yet
        return bool(told)

    until(unavailable)
    assert told == [(2, 1)]
    cluster.start([name_of(cluster, address) for address in POINTS[1:]])
    until(lambda: _succeeds(session, write))


def _succeeds(session: Session, statement: SimpleStatement) -> bool:
    try:
        session.execute(statement)
    except (Unavailable, WriteTimeout, NoHostAvailable):
        return False
    return True


def test_a_frozen_node_is_a_timeout_that_counts_exactly(cluster: LocalCluster, session: Session) -> None:
    first = session.cluster.metadata.get_host(FIRST, CQL_PORT)
    everyone = SimpleStatement(
        "INSERT INTO t (a, b, v) VALUES (1000, 2, 'x')",
        consistency_level=ALL,
        retry_policy=FallthroughRetryPolicy(),
    )
    until(lambda: _succeeds(session, everyone))
    frozen = name_of(cluster, POINTS[1])
    read = SimpleStatement(
        "SELECT v FROM t WHERE a = 1000", consistency_level=ALL, retry_policy=FallthroughRetryPolicy()
    )
    cluster.pause(frozen)
    try:
        writing = session.execute_async(everyone, host=first)
        reading = session.execute_async(read, host=first)
        with pytest.raises(WriteTimeout) as write_caught:
            writing.result()
        with pytest.raises(ReadTimeout) as read_caught:
            reading.result()
    finally:
        cluster.resume(frozen)
    write = write_caught.value
    assert (write.required_responses, write.received_responses, write.write_type) == (3, 2, 0)
    seen = read_caught.value
    assert (seen.required_responses, seen.received_responses, seen.data_retrieved) == (3, 2, True)
    until(lambda: _succeeds(session, everyone))


def test_a_driver_follows_nodes_that_stop_start_come_and_go(
    cluster: LocalCluster, driver: Cluster, session: Session
) -> None:
    def up() -> list[str]:
        return sorted(host.address for host in driver.metadata.all_hosts() if host.is_up)

    def peers() -> list[str]:
        rows = session.execute(
            "SELECT native_address FROM system.peers_v2",
            host=driver.metadata.get_host(FIRST, CQL_PORT),
        )
        return sorted([FIRST, *(str(row[0]) for row in rows)])

    until(lambda: up() == POINTS, 30)
    listener = Listener()
    driver.register_listener(listener)
    last = name_of(cluster, POINTS[2])
    cluster.stop([last])
    until(lambda: ("down", POINTS[2]) in listener.heard)
    cluster.start([last])
    until(lambda: up() == POINTS, 30)
    assert ("up", POINTS[2]) in listener.heard
    cluster.add()
    until(lambda: up() == [*POINTS, FOURTH] == peers(), 30)
    assert ("add", FOURTH) in listener.heard
    done = lockstep("topology", "decommission", FOURTH, "--host", HOST)
    assert done.code == 0, done.err
    until(lambda: up() == POINTS == peers(), 60)
    assert ("remove", FOURTH) in listener.heard
    rows = session.execute(SimpleStatement("SELECT v FROM t WHERE a = 1000", consistency_level=QUORUM))
    assert len(list(rows)) == 2
    assert settled_errors(cluster) == ""
