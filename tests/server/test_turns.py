"""Requests of clients begin in turns: what begins in one is bounded, nobody is passed over, and other nodes
are answered between, also of a node that a client floods."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import BATCH_UNLOGGED, Opcode
from lockstep.cql.wire.frames import Envelope
from lockstep.cql.wire.messages import BatchStatement, QueryParameters
from lockstep.runtime.ports import Runtime
from lockstep.server.cql.backpressure import Backpressure, NodeLoad
from lockstep.server.cql.buffers import ReadBuffer
from lockstep.server.cql.loop_budget import LoopBudget
from lockstep.sim.load.cql_client import CqlClient
from lockstep.testing import SimulatedCluster
from lockstep.values.ids import Consistency
from lockstep.values.limits import (
    CQL_BATCHED_IN_FLIGHT_MAX,
    CQL_REQUESTS_A_CONNECTION_TURN,
    CQL_STATEMENTS_A_TURN,
)
from lockstep.values.node_limits import ADMISSION_PATIENCE_MS, CQL_UNBEGUN_MAX
from tests.server.test_flow import Transport
from tests.server.test_responses_owed import Case, Clock

BATCHES, ROWS = 160, 20


def envelopes(count: int) -> list[Envelope]:
    return [Envelope(4, 0, stream, int(Opcode.QUERY), b"") for stream in range(count)]


class Door:
    """Connections of one node, of whose requests only the beginning is noted: (connection, stream)."""

    def __init__(self) -> None:
        self.load = NodeLoad()
        self.clock = Clock()
        self.turns = LoopBudget(self.load, self.clock)
        self.begun: list[tuple[str, int]] = []
        self.refused: list[int] = []
        self.shed: list[Envelope] = []
        self.emptied = 0

    def connect(self, name: str, statements: int = 1) -> tuple[ReadBuffer, Transport]:
        flow, transport = Backpressure(NodeLoad()), Transport()
        flow.transport = transport  # type: ignore[assignment]

        def begin(envelope: Envelope) -> None:
            self.turns.begun(statements)
            self.begun.append((name, envelope.stream))

        def emptied() -> None:
            self.emptied += 1

        intake = ReadBuffer(self.turns, flow, Case(1).all[0], begin, self.shed.append, emptied)
        self.flow = flow
        return intake, transport


def test_one_turn_begins_a_bounded_number_of_statements_in_order() -> None:
    async def run() -> None:
        door = Door()
        intake, transport = door.connect("a")
        intake.take(envelopes(3 * CQL_STATEMENTS_A_TURN - 1))
        counts = [len(door.begun)]
        while intake:
            await asyncio.sleep(0)
            counts.append(len(door.begun))
        assert counts == [CQL_STATEMENTS_A_TURN * n for n in (1, 2)] + [3 * CQL_STATEMENTS_A_TURN - 1]
        assert door.begun == [("a", stream) for stream in range(len(door.begun))]
        assert transport.reading and door.emptied == 1 and not door.turns.waiting

    asyncio.run(run())


def test_a_connection_is_read_until_enough_waits() -> None:
    async def run() -> None:
        door = Door()
        intake, transport = door.connect("a")
        intake.take(envelopes(CQL_STATEMENTS_A_TURN + CQL_UNBEGUN_MAX - 1))
        door.flow.regulate()
        assert transport.reading
        intake.take(envelopes(1))
        door.flow.regulate()
        assert not transport.reading
        await asyncio.sleep(0)
        assert transport.reading

    asyncio.run(run())


def test_what_is_admitted_is_bounded_and_what_waits_for_too_long_is_refused() -> None:
    async def run() -> None:
        door = Door()
        door.turns.admission.limit = 3
        intake, _ = door.connect("a")
        door.load.requests = 2
        intake.take(envelopes(1))
        door.load.requests = 3
        intake.take([*envelopes(2), Envelope(4, 0, 9, int(Opcode.OPTIONS), b"")])
        assert len(door.begun) == 1
        await asyncio.sleep(0)
        assert len(door.begun) == 1 and door.load.freed is not None
        door.load.requests = 2
        door.load.ended()
        await asyncio.sleep(0)
        assert len(door.begun) > 1, "there was room"
        door.load.requests = 3
        intake.take(envelopes(2))
        waited = len(door.begun)
        door.clock.now_s += ADMISSION_PATIENCE_MS / 1000
        intake.take(envelopes(1))
        door.turns._tick()
        assert len(door.shed) == 0 and len(door.begun) == waited
        door.clock.now_s += 0.001
        door.turns._tick()
        assert len(door.shed) == door.turns.shed == 2, "only what came before"
        assert len(intake) == 1

    asyncio.run(run())


def test_statements_of_a_batch_count() -> None:
    async def run() -> None:
        door = Door()
        intake, _ = door.connect("a", statements=CQL_STATEMENTS_A_TURN // 2)
        intake.take(envelopes(5))
        counts = [len(door.begun)]
        while intake:
            await asyncio.sleep(0)
            counts.append(len(door.begun))
        assert counts == [2, 4, 5]

    asyncio.run(run())


def test_connections_that_wait_are_served_in_turn() -> None:
    async def run() -> None:
        door = Door()
        flooding, _ = door.connect("flood")
        polite, _ = door.connect("polite")
        late, _ = door.connect("late")
        flooding.take(envelopes(10 * CQL_STATEMENTS_A_TURN))
        polite.take(envelopes(1))
        assert ("polite", 0) not in door.begun
        await asyncio.sleep(0)
        assert door.begun.index(("polite", 0)) == CQL_STATEMENTS_A_TURN + CQL_REQUESTS_A_CONNECTION_TURN
        late.take(envelopes(2))
        late.lost()
        await asyncio.sleep(0)
        assert "late" not in dict(door.begun) and door.turns.waiting == 1

    asyncio.run(run())


def test_what_waits_begins_and_what_comes_later_is_refused() -> None:
    async def run() -> None:
        door = Door()
        intake, transport = door.connect("a")
        intake.take(envelopes(CQL_STATEMENTS_A_TURN + 5))
        intake.refuse(lambda envelope: door.refused.append(envelope.stream))
        assert transport.reading, "refusals need no turn"
        intake.take(envelopes(3))
        await asyncio.sleep(0)
        assert len(door.begun) == CQL_STATEMENTS_A_TURN + 5 and door.refused == [0, 1, 2]

    asyncio.run(run())


def test_batches_wait_for_those_in_flight_and_nobody_else_does() -> None:
    async def run() -> None:
        door = Door()
        door.turns.batch_begun(CQL_BATCHED_IN_FLIGHT_MAX - 1)
        loader, _ = door.connect("loader")
        other, _ = door.connect("other")
        assert door.turns.batches_open
        door.turns.batch_begun(1)
        await asyncio.sleep(0)
        query, batch = envelopes(1)[0], Envelope(4, 0, 1, int(Opcode.BATCH), b"")
        loader.take([query, batch, query])
        other.take([query])
        for _ in range(3):
            await asyncio.sleep(0)
        assert door.begun == [("loader", 0), ("other", 0)] and door.turns.waiting == 1
        door.turns.batch_ended(1)
        await asyncio.sleep(0)
        assert door.begun[2:] == [("loader", 1), ("loader", 0)] and not door.turns.waiting

    asyncio.run(run())


def flooded() -> tuple[list[Any], list[Any], int]:
    """How batches ended that came to n1 at once, when each callback of n1 costs a millisecond; how writes of
    n2 that need n1 ended meanwhile; how many hints were left."""
    with SimulatedCluster() as cluster:
        cluster.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        cluster.execute("CREATE TABLE k.t (a int PRIMARY KEY, b int)")
        world = cluster.world

        async def connect(runtime: Runtime, node: str) -> tuple[CqlClient, bytes]:
            client = await CqlClient.connect(runtime, world.processes[node].host, 9042, 5000)
            return client, await client.prepare("INSERT INTO k.t (a, b) VALUES (?, ?)")

        async def work(runtime: Runtime) -> tuple[list[Any], list[Any]]:
            flooding, statement = await connect(runtime, "n1")
            other, same = await connect(runtime, "n2")
            parameters = QueryParameters(Consistency.QUORUM)
            bodies = [
                wire.batch(4, BATCH_UNLOGGED, [written(statement, at, n) for n in range(ROWS)], parameters)
                for at in range(BATCHES)
            ]
            world.processes["n1"].slow_down(1000)
            batches = [flooding.request(Opcode.BATCH, body) for body in bodies]
            flood = asyncio.gather(*batches, return_exceptions=True)
            others: list[Any] = []
            while not flood.done():
                values = written(same, BATCHES, len(others)).values
                asked = other.execute(same, values, Consistency.ALL)
                others += await asyncio.gather(asked, return_exceptions=True)
            return await flood, others

        task = world.processes["client"].submit(work)
        world.run_for(120.0, task.done)
        world.processes["n1"].slow_down(0)
        batches, others = task.result()
        hints = sum(
            node.data.hints.left for node in cluster._sim.nodes.values() if node.data.hints is not None
        )
        return batches, others, hints


def written(statement: bytes, batch: int, row: int) -> BatchStatement:
    number = (batch * ROWS + row).to_bytes(4, "big")
    return BatchStatement(statement, (number, number))


def failures(ended: list[Any]) -> list[BaseException]:
    return [one for one in ended if isinstance(one, BaseException)]


def test_a_node_that_a_client_floods_answers_other_nodes() -> None:
    batches, others, hints = flooded()
    assert len(batches) == BATCHES and not failures(batches)
    assert len(others) > 3 and not failures(others)
    assert not hints


def test_without_turns_the_flood_starves_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.server.cql.loop_budget.CQL_STATEMENTS_A_TURN", 1 << 30)
    monkeypatch.setattr("lockstep.server.cql.loop_budget.CQL_BATCHED_IN_FLIGHT_MAX", 1 << 30)
    batches, others, hints = flooded()
    assert failures(batches) or failures(others) or hints
