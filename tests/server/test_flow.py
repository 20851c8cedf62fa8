"""Back-pressure of the CQL door: bounds of a connection and of the node, waiting or refusing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import encode_request
from lockstep.cql.wire.messages import QueryParameters
from lockstep.server.cql.backpressure import Backpressure, NodeLoad
from lockstep.values.errors import Overloaded
from lockstep.values.ids import Consistency
from lockstep.values.limits import CQL_BYTES_IN_FLIGHT_MAX, CQL_CONNECTIONS_WOKEN_AT_ONCE
from tests.server.parts import CQL_PORT, Nodes
from tests.server.wire_client import WireClient


class Transport:
    """Notes whether it is read."""

    def __init__(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True


def flow_of(node: NodeLoad) -> tuple[Backpressure, Transport]:
    made, transport = Backpressure(node), Transport()
    made.transport = transport  # type: ignore[assignment]
    return made, transport


def test_a_connection_at_its_limit_is_read_again_once_answers_went_out() -> None:
    flow, transport = flow_of(NodeLoad())
    flow.begin(CQL_BYTES_IN_FLIGHT_MAX)
    flow.regulate()
    assert not transport.reading
    flow.end(CQL_BYTES_IN_FLIGHT_MAX)
    assert transport.reading
    flow.client_reads(False)
    assert not transport.reading
    flow.begin(1)
    flow.end(1)
    assert not transport.reading, "the client must read first"
    flow.client_reads(True)
    assert transport.reading


def test_connections_of_a_full_node_wait_and_are_woken_a_few_at_a_time() -> None:
    async def run() -> None:
        node = NodeLoad()
        node.bytes_max = 10
        busy, _ = flow_of(node)
        busy.begin(10)
        others = [flow_of(node) for _ in range(CQL_CONNECTIONS_WOKEN_AT_ONCE + 3)]
        for other, _ in others:
            other.regulate()
        assert not any(transport.reading for _, transport in others)
        assert node.waiting == len(others)
        gone, _ = others[0]
        gone.lost()
        busy.end(10)
        await asyncio.sleep(0)
        woken = [transport.reading for _, transport in others]
        assert woken == [False] + [True] * CQL_CONNECTIONS_WOKEN_AT_ONCE + [False] * 2
        # Nothing is in flight that could end, and yet the rest is woken.
        await asyncio.sleep(0)
        assert all(transport.reading for _, transport in others[1:])
        assert node.waiting == node.requests == node.bytes == 0

    asyncio.run(run())


def test_waking_stops_while_the_node_is_full_again() -> None:
    async def run() -> None:
        node = NodeLoad()
        node.requests_max = 1
        busy, _ = flow_of(node)
        waiting, transport = flow_of(node)
        busy.begin(5)
        waiting.regulate()
        busy.end(5)
        busy.begin(5)
        await asyncio.sleep(0)
        assert not transport.reading
        busy.end(5)
        await asyncio.sleep(0)
        assert transport.reading

    asyncio.run(run())


def test_a_client_that_wants_errors_is_read_on_and_refused() -> None:
    node = NodeLoad()
    node.bytes_max = 10
    flow, transport = flow_of(node)
    flow.throws = True
    flow.begin(10)
    flow.regulate()
    assert transport.reading
    with pytest.raises(Overloaded, match="node: 10/10 bytes"):
        flow.begin(1)
    assert (flow.requests, node.requests, node.refused) == (1, 1, 1)
    flow.end(10)
    flow.begin(1)


@pytest.fixture
def full(single: Nodes) -> Iterator[Nodes]:
    """A node that counts as full with its first request."""
    load = single.members[0].server.clients.load
    kept = load.bytes_max
    load.bytes_max = 1
    yield single
    load.bytes_max = kept


def test_a_full_node_answers_everything_to_a_client_that_waits(full: Nodes) -> None:
    with WireClient(full.members[0].address, CQL_PORT, 4) as client:
        client.startup()
        body = wire.query(4, "SELECT key FROM system.local", QueryParameters(Consistency.ONE))
        sent = [encode_request(4, Opcode.QUERY, stream, body) for stream in range(2000)]
        client.socket.sendall(b"".join(sent))
        found = [client.envelope() for _ in sent]
        assert sorted(one.stream for one in found) == list(range(2000))
        assert {one.opcode for one in found} == {Opcode.RESULT}


def test_a_full_node_refuses_what_a_client_would_rather_be_told(full: Nodes) -> None:
    with WireClient(full.members[0].address, CQL_PORT, 4) as client:
        client.startup(THROW_ON_OVERLOAD="1")
        body = wire.query(4, "SELECT key FROM system.local", QueryParameters(Consistency.ONE))
        client.socket.sendall(b"".join(encode_request(4, Opcode.QUERY, at, body) for at in range(50)))
        answers = [client.response().body for _ in range(50)]
        refused = [one for one in answers if isinstance(one, wire.ErrorResponse)]
        assert refused and {one.code for one in refused} == {0x1001}
        assert isinstance(client.query("SELECT key FROM system.local"), wire.RowsResult)
