"""Events for drivers, and versions of the schema, while nodes come and go."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import EVENT_TYPES, Opcode
from lockstep.cql.wire.messages import QueryParameters
from lockstep.values.ids import Consistency
from tests.server.parts import CQL_PORT, Nodes, nodes
from tests.server.wire_client import WireClient

KEYSPACE = "CREATE KEYSPACE {} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"


def registered(address: str) -> WireClient:
    client = WireClient(address, CQL_PORT, 5)
    client.startup()
    assert isinstance(client.ask(Opcode.REGISTER, wire.register(EVENT_TYPES)), wire.Ready)
    return client


def event(client: WireClient) -> wire.Body:
    found = client.envelope()
    assert (found.opcode, found.stream) == (Opcode.EVENT, -1)
    return wire.decode_response(found.version, found.opcode, found.flags, found.body).body


def event_of(client: WireClient, address: str) -> wire.Body:
    """The next event about this node; another may be found alive for the first time just now."""
    while True:
        found = event(client)
        if isinstance(found, wire.NodeEvent) and found.address == address:
            return found


def until(condition: Callable[[], bool], timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.01)


def peers(client: WireClient) -> list[tuple[bytes | None, ...]]:
    answer = client.query("SELECT native_address, native_port, schema_version FROM system.peers_v2")
    assert isinstance(answer, wire.RowsResult)
    return list(answer.rows)


def test_each_schema_change_is_told_once_to_each_registered_connection_on_every_node(three: Nodes) -> None:
    clients = [registered(member.address) for member in three.members]
    with WireClient(three.members[1].address, CQL_PORT, 5) as maker:
        maker.startup()
        for text in (
            KEYSPACE.format("told"),
            "CREATE TABLE told.t (a int PRIMARY KEY)",
            "CREATE TABLE IF NOT EXISTS told.t (a int PRIMARY KEY)",
            "ALTER TABLE told.t ADD b int",
            "DROP TABLE told.t",
            "DROP KEYSPACE told",
        ):
            assert not isinstance(maker.query(text), wire.ErrorResponse)
    expected = [
        wire.SchemaChange("CREATED", "KEYSPACE", "told"),
        wire.SchemaChange("CREATED", "TABLE", "told", "t"),
        wire.SchemaChange("UPDATED", "TABLE", "told", "t"),
        wire.SchemaChange("DROPPED", "TABLE", "told", "t"),
        wire.SchemaChange("DROPPED", "KEYSPACE", "told"),
    ]
    for client in clients:
        with client:
            assert [event(client) for _ in expected] == expected


def test_all_nodes_show_one_schema_version_as_soon_as_a_change_is_answered(three: Nodes) -> None:
    with WireClient(three.members[0].address, CQL_PORT, 5) as client:
        client.startup()
        for at in range(10):
            assert isinstance(client.query(KEYSPACE.format(f"agreed{at}")), wire.SchemaChange)
            local = client.query("SELECT schema_version FROM system.local")
            assert isinstance(local, wire.RowsResult)
            assert {row[2] for row in peers(client)} == {local.rows[0][0]}


def test_concurrent_changes_through_all_nodes_all_arrive(three: Nodes) -> None:
    clients = [WireClient(member.address, CQL_PORT, 5) for member in three.members]
    for client in clients:
        client.startup()
    for at in range(5):
        for number, client in enumerate(clients):
            text = KEYSPACE.format(f"many{number}_{at}")
            client.send(Opcode.QUERY, wire.query(5, text, QueryParameters(Consistency.ONE)))
        for client in clients:
            assert isinstance(client.response().body, wire.SchemaChange)
    for client in clients:
        with client:
            answer = client.query("SELECT keyspace_name FROM system_schema.keyspaces")
            assert isinstance(answer, wire.RowsResult)
            assert sum(1 for row in answer.rows if (row[0] or b"").startswith(b"many")) == 15


def test_a_node_that_takes_leave_is_told_down_at_once_by_itself_and_others(tmp_path: Path) -> None:
    with nodes(tmp_path, 2) as cluster:
        stays, leaves = cluster.members
        until(lambda: leaves.node.context.own_id() in stays.server.events.told_up)
        with (
            registered(stays.address) as client,
            registered(leaves.address) as own,
            WireClient(leaves.address, CQL_PORT) as asker,
        ):
            asker.startup()
            drain = leaves.server.draining.drain(5000)
            drained = asyncio.run_coroutine_threadsafe(drain, cluster.loop)
            assert asker.is_closed()
            # A driver does not heed this while it holds a connection for requests, and hears it once.
            own.socket.settimeout(0.2)
            with pytest.raises(TimeoutError):
                event_of(own, leaves.address)
            own.socket.settimeout(5)
            began = time.monotonic()
            asker.socket.close()
            down = wire.NodeEvent("STATUS_CHANGE", "DOWN", leaves.address, CQL_PORT)
            assert event_of(own, leaves.address) == down
            assert own.is_closed()
            own.socket.close()
            drained.result(5)
            assert event_of(client, leaves.address) == down
            assert time.monotonic() - began < 1, "silence alone would tell later"
            with pytest.raises(OSError):
                WireClient(leaves.address, CQL_PORT)
            assert leaves.server.draining.state == "drained" and leaves.server.draining.cut == 0
            # It is a replica still.
            assert stays.node.membership.liveness.alive(leaves.node.context.own_id())
            assert isinstance(client.query("SELECT * FROM system.peers_v2"), wire.RowsResult)
        cluster.stop(leaves)
        with registered(stays.address) as client:
            cluster.restart(leaves)
            up = wire.NodeEvent("STATUS_CHANGE", "UP", leaves.address, CQL_PORT)
            assert event_of(client, leaves.address) == up


def test_nodes_that_come_fall_rise_and_go_are_told_with_the_addresses_of_peers(tmp_path: Path) -> None:
    with nodes(tmp_path, 3) as cluster:
        first = cluster.members[0]
        with registered(first.address) as client, WireClient(first.address, CQL_PORT, 5) as asker:
            asker.startup()
            newcomer = cluster.add()
            address, port = newcomer.address, CQL_PORT
            assert event_of(client, address) == wire.NodeEvent("TOPOLOGY_CHANGE", "NEW_NODE", address, port)
            assert event_of(client, address) == wire.NodeEvent("STATUS_CHANGE", "UP", address, port)
            packed = bytes(int(part) for part in address.split("."))
            assert packed in [row[0] for row in peers(asker)]
            cluster.stop(newcomer)
            assert event_of(client, address) == wire.NodeEvent("STATUS_CHANGE", "DOWN", address, port)
            assert packed in [row[0] for row in peers(asker)]
            # No driver waits for the agreement of a node that is down.
            assert isinstance(asker.query(KEYSPACE.format("meanwhile")), wire.SchemaChange)
            assert len({row[2] for row in peers(asker)}) == 1
            cluster.restart(newcomer)
            assert event_of(client, address) == wire.NodeEvent("STATUS_CHANGE", "UP", address, port)
            cluster.decommission(newcomer)
            assert event_of(client, address) == wire.NodeEvent(
                "TOPOLOGY_CHANGE", "REMOVED_NODE", address, port
            )
            until(lambda: packed not in [row[0] for row in peers(asker)])
