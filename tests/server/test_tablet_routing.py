"""What clients that ask for it are told of tablets: which of their requests, what, and how often."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest
from cassandra.cluster import Cluster

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import QueryParameters
from lockstep.server.statements.tablet_routing import PAYLOAD_KEY, TABLETS_ROUTING
from lockstep.topology.tablets.balancing import SetBalancing
from lockstep.values.ids import Consistency
from lockstep.values.tokens import token_of
from tests.server.parts import CQL_PORT, Member, Nodes
from tests.server.wire_client import WireClient

Told = tuple[int, int, list[tuple[str, int]]]


def decoded(value: bytes) -> Told:
    """Read as drivers do: every part of a tuple or list has its length before it."""

    def parts(data: bytes) -> list[bytes]:
        found = []
        while data:
            end = 4 + int.from_bytes(data[:4], "big")
            found.append(data[4:end])
            data = data[end:]
        return found

    left, right, replicas = parts(value)
    count, listed = int.from_bytes(replicas[:4], "big"), [parts(one) for one in parts(replicas[4:])]
    assert count == len(listed)
    places = [(str(uuid.UUID(bytes=host)), int.from_bytes(shard, "big")) for host, shard in listed]
    return int.from_bytes(left, "big", signed=True), int.from_bytes(right, "big", signed=True), places


class Asking:
    """A client of one node that prepares statements; it asks to be told unless `options` are empty."""

    def __init__(self, address: str, version: int, **options: str) -> None:
        self.client = WireClient(address, CQL_PORT, version)
        assert isinstance(self.client.startup(**options), wire.Ready)

    def prepared(self, text: str) -> wire.PreparedResult:
        found = self.client.ask(Opcode.PREPARE, wire.prepare(self.client.version, text))
        assert isinstance(found, wire.PreparedResult)
        return found

    def told(self, statement: wire.PreparedResult, *values: bytes) -> Told | None:
        parameters = QueryParameters(Consistency.ONE, values)
        body = wire.execute(
            self.client.version, statement.statement_id, statement.result_metadata_id, parameters
        )
        self.client.send(Opcode.EXECUTE, body)
        answer = self.client.response()
        assert not isinstance(answer.body, wire.ErrorResponse), answer.body
        payload = (answer.payload or {}).get(PAYLOAD_KEY)
        return decoded(payload) if payload is not None else None


def balance(three: Nodes, *, is_on: bool) -> int:
    """Switch the balancer; the epoch of that."""
    return three.call(three.members[0].node.log.submit(SetBalancing(is_on)))


@pytest.fixture(scope="module")
def table(three: Nodes) -> Iterator[str]:
    """Of eight tablets that stay where they are."""
    epoch, deadline_s = balance(three, is_on=False), time.monotonic() + 30
    while any(
        member.node.log.cluster.epoch < epoch or member.node.log.cluster.transitions.lone_count
        for member in three.members
    ):
        assert time.monotonic() < deadline_s, "tablets go on moving"
        time.sleep(0.02)
    cluster = Cluster([three.members[0].address], port=CQL_PORT)
    session = cluster.connect()
    session.execute(
        "CREATE KEYSPACE routed "
        "WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1} "
        "AND tablets = {'enabled': true, 'initial': 8}"
    )
    session.execute("CREATE TABLE routed.t (a int PRIMARY KEY, v int)")
    session.execute(
        "CREATE KEYSPACE on_ring WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
    )
    session.execute("CREATE TABLE on_ring.t (a int PRIMARY KEY, v int)")
    cluster.shutdown()
    yield "routed.t"
    balance(three, is_on=True)


def host_of(member: Member) -> str:
    return member.node.log.cluster.directory.by_id[member.node.context.own_id()].host_id


def four_bytes(number: int) -> bytes:
    return number.to_bytes(4, "big")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_write", [True, False])
def test_nodes_without_a_replica_tell_where_the_tablet_lies(
    three: Nodes, table: str, version: int, is_write: bool
) -> None:
    text = f"INSERT INTO {table} (a, v) VALUES (?, 1)" if is_write else f"SELECT v FROM {table} WHERE a = ?"
    told: dict[int, dict[str, Told | None]] = {}
    for member in three.members:
        asking = Asking(member.address, version, **{TABLETS_ROUTING: ""})
        statement = asking.prepared(text)
        for key in range(20):
            found = asking.told(statement, four_bytes(key))
            told.setdefault(key, {})[host_of(member)] = found
        asking.client.socket.close()
    for key, answers in told.items():
        silent = [host for host, found in answers.items() if found is None]
        assert len(silent) == 1, "the one replica says nothing"
        for found in answers.values():
            if found is not None:
                left, right, replicas = found
                assert left < token_of(four_bytes(key)) <= right
                assert replicas == [(silent[0], 0)]


def test_who_does_not_ask_and_tables_without_tablets_get_nothing(three: Nodes, table: str) -> None:
    write = "INSERT INTO {} (a, v) VALUES (?, 1)"
    for member in three.members:
        silent, asking = Asking(member.address, 5), Asking(member.address, 5, **{TABLETS_ROUTING: ""})
        unasked, ring = silent.prepared(write.format(table)), asking.prepared(write.format("on_ring.t"))
        part = asking.prepared(f"SELECT v FROM {table} WHERE a IN (?, ?)")
        for key in range(20):
            assert silent.told(unasked, four_bytes(key)) is None
            assert asking.told(ring, four_bytes(key)) is None
            assert asking.told(part, four_bytes(key), four_bytes(key + 1)) is None
        silent.client.socket.close()
        asking.client.socket.close()


def test_a_tablet_that_changed_since_the_connection_began_is_told_once(three: Nodes, table: str) -> None:
    member = three.members[0]
    older = Asking(member.address, 5, **{TABLETS_ROUTING: ""})
    made = older.client.query("CREATE TABLE routed.later (a int PRIMARY KEY, v int)")
    assert not isinstance(made, wire.ErrorResponse)
    statement = older.prepared("SELECT v FROM routed.later WHERE a = ?")
    rounds = [[older.told(statement, four_bytes(key)) for key in range(40)] for _ in range(2)]
    own = [(host_of(member), 0)]
    first, second = ([found for found in told if found and found[2] == own] for told in rounds)
    assert first and len(first) == len({right for _, right, _ in first}), "once for each of its tablets"
    assert not second
    older.client.socket.close()


def test_supported_names_the_extension(three: Nodes) -> None:
    with WireClient(three.members[0].address, CQL_PORT) as client:
        answer = client.ask(Opcode.OPTIONS, b"")
        assert isinstance(answer, wire.Supported) and answer.options[TABLETS_ROUTING] == [""]
