"""ALTER KEYSPACE that moves data, by the unmodified driver, with clients that go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.metadata import Murmur3Token
from cassandra.protocol import ConfigurationException

from lockstep.node.log_service import NodeLog
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import OperationRunning
from lockstep.values.ids import NodeId
from tests.server.parts import Nodes, nodes
from tests.server.test_drivers import SIMPLE, connect

ROWS = 60
FEW_TOKENS = {"placement_num_tokens": "4"}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    directory: Path = tmp_path_factory.mktemp("altering")
    # Fewer ranges than by default: work of all nodes is done in this process.
    with nodes(directory, 4, **FEW_TOKENS) as cluster:
        yield cluster
        assert not cluster.escaped


@pytest.fixture
def session(town: Nodes) -> Iterator[Session]:
    driver = connect(town)
    yield driver.connect()
    driver.shutdown()


class Load:
    """Writes and reads one key after the other at QUORUM until it is told to stop."""

    def __init__(self, session: Session, keyspace: str) -> None:
        self.written = 0
        self.failures: list[BaseException] = []
        self._write = session.prepare(f"INSERT INTO {keyspace}.t (k, v) VALUES (?, ?)")
        self._read = session.prepare(f"SELECT v FROM {keyspace}.t WHERE k = ?")
        for statement in (self._write, self._read):
            statement.consistency_level = ConsistencyLevel.QUORUM
        self._session = session
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        # All nodes are in this process: a client without any pause would take their time.
        while not self._over.wait(0.005):
            key = 1000 + self.written
            try:
                self._session.execute(self._write, (key, key))
                assert [tuple(row) for row in self._session.execute(self._read, (key,))] == [(key,)]
            except Exception as failure:
                self.failures.append(failure)
                return
            self.written += 1

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def made(session: Session, name: str, factor: int) -> None:
    session.execute(f"CREATE KEYSPACE {name} {SIMPLE % factor}")
    session.execute(f"CREATE TABLE {name}.t (k int PRIMARY KEY, v int)")
    for key in range(ROWS):
        session.execute(f"INSERT INTO {name}.t (k, v) VALUES ({key}, {key})")


def factor_of(session: Session, name: str) -> str:
    found = session.execute(
        f"SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{name}'"
    ).one()
    return str(dict(found[0])["replication_factor"])


def altered(town: Nodes, session: Session, statement: str) -> None:
    """Run it; on a machine so busy that the answer comes before the end, it says so and goes on."""
    warnings = session.execute(statement).response_future.warnings or []
    assert all("which goes on" in warning for warning in warnings)
    assert bool(warnings) or not town.members[0].node.log.cluster.requests.live
    nothing_goes_on(town)


def nothing_goes_on(town: Nodes) -> None:
    async def ended() -> None:
        state = town.members[0].node.log.state
        while state.current.requests.live:
            await state.wait_for(state.epoch + 1)

    town.call(ended(), 60)


def read_at(session: Session, name: str, level: int) -> list[tuple[int, int]]:
    statement = session.prepare(f"SELECT k, v FROM {name}.t WHERE k = ?")
    statement.consistency_level = level
    return [tuple(row) for key in range(ROWS) for row in session.execute(statement, (key,))]


def test_replicas_come_and_go_while_clients_write_and_read(town: Nodes, session: Session) -> None:
    made(session, "grown", 1)
    everything = [(key, key) for key in range(ROWS)]
    with Load(session, "grown") as load:
        for factor in (3, 2, 1, 2):
            altered(town, session, f"ALTER KEYSPACE grown {SIMPLE % factor}")
            assert factor_of(session, "grown") == str(factor)
            assert (
                session.cluster.metadata.keyspaces["grown"].replication_strategy.replication_factor == factor
            )
            assert read_at(session, "grown", ConsistencyLevel.QUORUM) == everything
            assert read_at(session, "grown", ConsistencyLevel.ALL) == everything
    assert not load.failures
    assert load.written > 20
    statement = session.prepare("SELECT v FROM grown.t WHERE k = ?")
    for key in range(1000, 1000 + load.written):
        assert [tuple(row) for row in session.execute(statement, (key,))] == [(key,)]
    owned = town.members[0].node.log.cluster
    ring = owned.placements.ring(owned.schema.by_name["grown"].group)
    for placed in ring.ranges:
        listed = session.cluster.metadata.token_map.get_replicas("grown", Murmur3Token(placed.range.right))
        by_address = {node.address: node.id for node in owned.directory.nodes}
        assert sorted(by_address[host.address] for host in listed) == sorted(placed.group.reads)


def test_keyspaces_come_and_go_while_an_operation_holds_ranges(
    town: Nodes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With replications that no other keyspace has, so that the ring gets one more group."""
    session.execute(f"CREATE KEYSPACE IF NOT EXISTS held {SIMPLE % 2}")
    session.execute("CREATE TABLE IF NOT EXISTS held.t (k int PRIMARY KEY, v int)")
    log, met = town.members[0].node.log, []
    submit = NodeLog.submit

    async def watched(service: NodeLog, wanted: Any, *rest: Any, **named: Any) -> Any:
        try:
            return await submit(service, wanted, *rest, **named)
        except OperationRunning as excluded:
            met.append(excluded)
            raise

    monkeypatch.setattr(NodeLog, "submit", watched)
    for round_number in range(3):
        town.call(log.submit(EnqueueRequest(Rebuild(NodeId(2)), actor="operator")), 20)
        name = f"beside{round_number}"
        replication = f"{{'class': 'NetworkTopologyStrategy', 'dc1': {1 + round_number}}}"
        session.execute(f"CREATE KEYSPACE {name} WITH replication = {replication}")
        session.execute(f"ALTER KEYSPACE {name} {SIMPLE % 1}")
        session.execute(f"DROP KEYSPACE {name}")

        async def ended() -> None:
            while log.cluster.requests.live:
                await log.state.wait_for(log.state.epoch + 1)

        town.call(ended(), 60)
    assert met, "no change met an operation"


def test_a_statement_that_finds_the_same_change_under_way_joins_it(town: Nodes, session: Session) -> None:
    made(session, "joined", 1)
    asked = [session.execute_async(f"ALTER KEYSPACE joined {SIMPLE % 3}") for _ in range(3)]
    for future in asked:
        future.result()
    nothing_goes_on(town)
    assert factor_of(session, "joined") == "3"
    rows = list(session.execute("SELECT kind, state FROM system_views.topology_requests"))
    assert ("replication_change", "done") in [tuple(row) for row in rows]


def test_what_cannot_be_is_refused_as_an_error(session: Session) -> None:
    made(session, "kept", 1)
    for options, message in (
        ("{'class': 'NetworkTopologyStrategy', 'nowhere': 1}", "nowhere"),
        ("{'class': 'SimpleStrategy', 'replication_factor': -1}", "non-negative"),
        ("{'class': 'SimpleStrategy', 'replication_factor': 0}", "no replicas"),
    ):
        with pytest.raises(ConfigurationException, match=message):
            session.execute(f"ALTER KEYSPACE kept WITH replication = {options}")
    assert factor_of(session, "kept") == "1"


def test_a_second_data_centre_gets_its_replicas_and_gives_them_up_again(
    town: Nodes, session: Session
) -> None:
    for _ in range(2):
        town.add(placement_dc="dc2", **FEW_TOKENS)
    session.execute("CREATE KEYSPACE wide WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 2}")
    session.execute("CREATE TABLE wide.t (k int PRIMARY KEY, v int)")
    for key in range(ROWS):
        session.execute(f"INSERT INTO wide.t (k, v) VALUES ({key}, {key})")
    everything = [(key, key) for key in range(ROWS)]
    with Load(session, "wide") as load:
        for factors in ("'dc1': 2, 'dc2': 2", "'dc2': 2", "'dc1': 1, 'dc2': 1"):
            replication = f"{{'class': 'NetworkTopologyStrategy', {factors}}}"
            altered(town, session, f"ALTER KEYSPACE wide WITH replication = {replication}")
            for level in (ConsistencyLevel.QUORUM, ConsistencyLevel.ALL):
                assert read_at(session, "wide", level) == everything
    assert not load.failures and load.written
