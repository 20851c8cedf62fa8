"""Clients that do not read: what a node owes them is bounded, and who never reads is closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import pytest

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import encode_request
from lockstep.cql.wire.messages import QueryParameters
from lockstep.server.cql.backpressure import NodeResponses, Responses
from lockstep.values.errors import Overloaded
from lockstep.values.ids import Consistency
from lockstep.values.node_limits import (
    CLIENT_SLOW_MS_MAX,
    CLIENT_STALLED_MS_MAX,
    PAGE_BYTES_MAX,
    RESPONSE_BYTES_OWED_MAX,
)
from tests.server.parts import CQL_PORT, Nodes
from tests.server.wire_client import WireClient

ROWS, ROW_BYTES = 40, 100_000


def eventually(holds: Callable[[], bool], timeout_s: float = 15) -> bool:
    end_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def connect(nodes: Nodes) -> WireClient:
    client = WireClient(nodes.members[0].address, CQL_PORT)
    client.startup()
    return client


@pytest.fixture(scope="module")
def wide(single: Nodes) -> Iterator[Nodes]:
    """Two partitions of 4 MB each."""
    with connect(single) as client:
        client.query(
            "CREATE KEYSPACE owed WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        client.query("CREATE TABLE owed.rows (k int, c int, v blob, PRIMARY KEY (k, c))")
        value = "0x" + "ab" * ROW_BYTES
        for key in range(2):
            for row in range(ROWS):
                client.query(f"INSERT INTO owed.rows (k, c, v) VALUES ({key}, {row}, {value})")
    yield single


def pages(client: WireClient, text: str, page_size: int) -> Iterator[wire.RowsResult]:
    state: bytes | None = None
    while True:
        parameters = QueryParameters(Consistency.ONE, (), page_size=page_size, paging_state=state)
        found = client.ask(Opcode.QUERY, wire.query(4, text, parameters))
        assert isinstance(found, wire.RowsResult), found
        yield found
        state = found.metadata.paging_state
        if state is None:
            return


@pytest.mark.parametrize(
    "text",
    [
        "SELECT v, k, c FROM owed.rows WHERE k = 0",
        "SELECT v, k, c FROM owed.rows",
        "SELECT v, k, c FROM owed.rows WHERE k IN (0, 1)",
        "SELECT v, k, c FROM owed.rows WHERE k = 0 ORDER BY c DESC",
        "SELECT v, k, c FROM owed.rows WHERE c >= 0 ALLOW FILTERING",
        "SELECT max(v), k, c FROM owed.rows GROUP BY k, c",
    ],
)
def test_a_page_ends_by_its_bytes_and_the_next_goes_on_behind_it(wide: Nodes, text: str) -> None:
    with connect(wide) as client:
        found = list(pages(client, text, 5000))
        sizes = [sum(len(row[0] or b"") for row in page.rows) for page in found]
        assert max(sizes) <= PAGE_BYTES_MAX + ROW_BYTES
        seen = [(row[1], row[2]) for page in found for row in page.rows]
        assert len(set(seen)) == len(seen) == ROWS * (1 if "k = 0" in text else 2)


@pytest.mark.parametrize("rest", ["", " WHERE k IN (0, 1, 2) ORDER BY c"])
def test_an_answer_that_cannot_be_cut_is_refused_when_it_is_too_large(wide: Nodes, rest: str) -> None:
    with connect(wide) as client:
        found = client.query(f"SELECT v, v, v FROM owed.rows{rest}")
        assert isinstance(found, wire.ErrorResponse)
        assert (found.code, "page size" in found.message) == (0x2200, True)


def test_a_client_that_does_not_read_makes_a_node_hold_no_more_than_its_bound(wide: Nodes) -> None:
    server, count, asked = wide.members[0].server, 4, 60
    clients = [connect(wide) for _ in range(count)]
    try:
        parameters = QueryParameters(Consistency.ONE, (), page_size=5000)
        body = wire.query(4, "SELECT v FROM owed.rows WHERE k = 0", parameters)
        burst = b"".join(encode_request(4, Opcode.QUERY, stream, body) for stream in range(asked))
        for client in clients:
            client.socket.sendall(burst)
        held = [0]

        def is_still() -> bool:
            owed = sum(one.responses.owed for one in list(server.clients.connections))
            held.append(max(held[-1], owed))
            return len(held) > 20 and held[-20] == held[-1] and owed > 0

        assert eventually(is_still)
        assert held[-1] <= count * (RESPONSE_BYTES_OWED_MAX + 2 * PAGE_BYTES_MAX)
        with connect(wide) as other:
            assert isinstance(other.query("SELECT c FROM owed.rows LIMIT 1"), wire.RowsResult)
        # Who reads at last gets an answer to everything, as large as a page. What waited too long for a turn
        # on a node that is this busy was refused instead.
        streams = [clients[0].envelope() for _ in range(asked)]
        assert sorted(one.stream for one in streams) == list(range(asked))
        refused = [one for one in streams if one.opcode != Opcode.RESULT]
        assert len(refused) < asked
        for one in refused:
            said = wire.decode_response(one.version, one.opcode, one.flags, one.body).body
            assert isinstance(said, wire.ErrorResponse) and said.code == Overloaded.cql_code, said
    finally:
        for client in clients:
            client.socket.close()
    assert eventually(lambda: server.clients.responses.owed == server.clients.responses.expected == 0)


def test_a_client_that_never_reads_loses_its_connection(wide: Nodes) -> None:
    member = wide.members[0]
    owed, closed = member.server.clients.responses, member.server.clients.responses.closed_stalled
    kept, owed.stalled_ms_max = owed.stalled_ms_max, 500
    try:
        with connect(wide) as client:
            parameters = QueryParameters(Consistency.ONE, (), page_size=5000)
            body = wire.query(4, "SELECT v FROM owed.rows WHERE k = 0", parameters)
            client.socket.sendall(
                b"".join(encode_request(4, Opcode.QUERY, stream, body) for stream in range(30))
            )
            assert eventually(lambda: owed.closed_stalled > closed)
    finally:
        owed.stalled_ms_max = kept
    assert [facts["why"] for event, facts in member.log if event == "cql.client_closed"] == ["stalled"]
    assert eventually(lambda: owed.owed == 0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return 0


class Sink:
    unsent = sent = 0


class Case:
    """A node with some connections whose clients are told by hand what to take."""

    def __init__(self, count: int) -> None:
        self.clock = Clock()
        self.node = NodeResponses(self.clock)
        self.closed: list[tuple[int, str]] = []
        self.sinks = [Sink() for _ in range(count)]
        self.all = [Responses(self.node, sink, self._closer(at)) for at, sink in enumerate(self.sinks)]

    def _closer(self, at: int) -> Callable[[str], None]:
        def close(why: str) -> None:
            self.closed.append((at, why))
            self.all[at].lost()

        return close

    def owe(self, at: int, size: int) -> None:
        self.sinks[at].unsent = self.sinks[at].sent = size
        self.all[at].pause()

    def later(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.node._sweep()


def test_slow_clients_are_closed_only_while_the_node_owes_too_much_the_largest_first() -> None:
    async def run() -> None:
        case = Case(4)
        case.node.owed_max = 100
        for at, size in enumerate((40, 70, 30, 20)):
            case.owe(at, size)
        case.later(CLIENT_SLOW_MS_MAX / 1000 / 2)
        assert case.closed == []
        case.later(CLIENT_SLOW_MS_MAX / 1000 / 2)
        assert case.closed == [(1, "slow")]
        assert case.node.owed == 90
        case.sinks[0].unsent -= 1
        case.later(CLIENT_STALLED_MS_MAX / 1000)
        assert sorted(case.closed[1:]) == [(2, "stalled"), (3, "stalled")]

    asyncio.run(run())


def test_responses_begin_while_there_is_room_and_wait_in_turn() -> None:
    async def run() -> None:
        case = Case(2)
        node, (first, second) = case.node, case.all
        node.owed_max = 100
        node.learn("small", 60)
        assert await first.begin("small") == 60
        waits = [asyncio.ensure_future(one.begin("small")) for one in (second, first, second)]
        await asyncio.sleep(0)
        assert not any(wait.done() for wait in waits)
        first.end(60)
        await asyncio.sleep(0)
        assert [wait.done() for wait in waits] == [True, False, False]
        second.end(60)
        await asyncio.sleep(0)
        assert [wait.done() for wait in waits] == [True, True, False]
        # A client that does not read holds up nobody but itself.
        case.owe(1, RESPONSE_BYTES_OWED_MAX)
        first.end(60)
        await asyncio.sleep(0)
        assert not waits[2].done()
        assert await first.begin("small") == 60
        first.end(60)
        case.sinks[1].unsent = 0
        second.resume()
        await asyncio.sleep(0)
        assert waits[2].done()
        second.end(60)
        assert node.expected == node.owed == 0

    asyncio.run(run())


def test_far_above_the_bound_a_response_becomes_an_error() -> None:
    async def run() -> None:
        case = Case(1)
        case.all[0].require_taken()
        case.owe(0, 2 * RESPONSE_BYTES_OWED_MAX + 1)
        with pytest.raises(Overloaded, match="unread"):
            case.all[0].require_taken()
        assert case.node.refused == 1
        case.all[0].resume()

    asyncio.run(run())


def test_what_is_known_of_sizes_grows_at_once_and_falls_slowly() -> None:
    node = NodeResponses(Clock())
    assert node.size_of("new") == PAGE_BYTES_MAX
    node.learn("new", 100)
    assert node.size_of("new") == 100
    node.learn("new", 1700)
    node.learn("new", 100)
    assert node.size_of("new") == 1600
