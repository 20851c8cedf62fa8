"""Statements of every kind on tracked tables: what they write comes to all replicas by its ids, and whole."""

from __future__ import annotations

import pytest

from lockstep.coordination.conditional import Decision
from lockstep.cql.wire.client import RowsResult
from lockstep.node.node import Node
from lockstep.replica.messages import Place
from lockstep.server.cql.cql_server import serve
from lockstep.sim.door import mutation_for
from lockstep.sim.load.cql_client import CQL_PORT, CqlClient
from lockstep.sim.load.history import Change
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.ids import Consistency
from lockstep.values.rows import ReadResult
from tests.node.support import Town
from tests.node.test_batches import begin_batch, kept, seen
from tests.node.test_hints import away, back, pending
from tests.node.test_old_decisions import PATIENCE
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import (
    KEY,
    TIMEOUT_MS,
    held,
    isolated,
    lone_write,
    looked_for,
    paused,
    rows_of,
    rows_read,
    settled,
    tracked,
    unreconciled,
    write,
)

SERIAL, QUORUM = Consistency.SERIAL, Consistency.QUORUM
Rows = list[tuple[bytes | None, ...]]


def doors(town: Town, *numbers: int) -> None:
    """Have these nodes serve clients."""
    for number in numbers:
        assert town.finish(town.begin(number, lambda node: serve(node.services, node.runtime))).error is None


def told(town: Town, number: int, *texts: str, level: Consistency = QUORUM) -> Rows:
    """What the last of these statements answers."""

    async def work(node: Node) -> Rows:
        host = node.context.configuration.network.address
        client = await CqlClient.connect(node.runtime, host, CQL_PORT, TIMEOUT_MS)
        for text in texts:
            answer = await client.query(text, (), level)
        client.close()
        return [tuple(row) for row in answer.rows] if isinstance(answer, RowsResult) else []

    outcome = town.finish(town.begin(number, work))
    assert outcome.error is None, outcome.error
    found: Rows = outcome.value
    return found


def number(value: int, size: int = 4) -> bytes:
    return value.to_bytes(size, "big", signed=True)


WRITTEN = (
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x01, 1, 'short') USING TTL 5",
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x01, 2, 'two')",
    "BEGIN UNLOGGED BATCH INSERT INTO ks.t (pk, ck, v) VALUES (0x01, 3, 'b'); "
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x02, 3, 'b'); APPLY BATCH",
    "BEGIN BATCH INSERT INTO ks.t (pk, ck, v) VALUES (0x03, 1, 'l'); "
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x04, 1, 'l'); APPLY BATCH",
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x05, 1, 'if') IF NOT EXISTS",
    "UPDATE ks.t SET v = 'then' WHERE pk = 0x05 AND ck = 1 IF v = 'if'",
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x06, 1, 'gone')",
    "INSERT INTO ks.t (pk, ck, v) VALUES (0x06, 9, 'stays')",
    "DELETE FROM ks.t WHERE pk = 0x06 AND ck > 0 AND ck < 5",
    "UPDATE ks.c SET n = n + 5 WHERE pk = 1",
    "UPDATE ks.c SET n = n - 2 WHERE pk = 1",
)
PLACES = (b"\x01", b"\x02", b"\x03", b"\x04", b"\x05", b"\x06")
TEXTS = (b"b", b"two"), (b"b",), (b"l",), (b"l",), (b"then",), (b"stays",)


def values(town: Town, asked: int, level: Consistency) -> list[tuple[bytes, ...]]:
    found = []
    for place in PLACES:
        rows = told(town, asked, f"SELECT v FROM ks.t WHERE pk = 0x{place.hex()}", level=level)
        found.append(tuple(sorted(value for (value,) in rows if value is not None)))
    return found


def test_every_kind_of_write_comes_to_a_replica_that_was_away() -> None:
    with tracked(31) as town:
        doors(town, 1, 2)
        told(
            town,
            1,
            "CREATE INDEX by_v ON ks.t (v)",
            "CREATE TABLE ks.c (pk int PRIMARY KEY, n counter)",
        )
        town.agreed(1, 2, 3)
        away(town, 3)
        for at, text in enumerate(WRITTEN):
            told(town, 1 + at % 2, text)
        assert pending(town, 1, 2) == 0
        town.wait(6)
        assert values(town, 2, QUORUM) == list(TEXTS)
        back(town, 3)
        settled(town)
        doors(town, 3)
        isolated(town, 3, (1, 2))
        assert values(town, 3, Consistency.ONE) == list(TEXTS)
        assert told(town, 3, "SELECT n FROM ks.c WHERE pk = 1", level=Consistency.ONE) == [(number(3, 8),)]
        found = told(town, 3, "SELECT pk FROM ks.t WHERE v = 'l'", level=Consistency.ONE)
        assert sorted(found) == [(b"\x03",), (b"\x04",)]


def test_an_index_finds_at_a_quorum_what_one_replica_alone_holds() -> None:
    with tracked(32) as town:
        doors(town, 2)
        told(town, 2, "CREATE INDEX by_v ON ks.t (v)")
        town.agreed(1, 2, 3)
        town.wait(2)
        lone_write(town)
        isolated(town, 3, (1, 2))
        assert len(told(town, 2, "SELECT ck FROM ks.t WHERE v = 'v'")) == 10
        isolated(town, 3, (1, 2), heal=True)
        isolated(town, 1, (2, 3))
        assert len(told(town, 2, "SELECT ck FROM ks.t WHERE v = 'v'")) == 10


def decided(town: Town, asked: int, value: bytes) -> bool:
    """Put a value into the first row where there is no row at all."""

    async def work(node: Node) -> bool:
        command = looked_for(node, None)

        def decide(found: ReadResult, at_us: int) -> Decision:
            if found.partitions:
                return Decision(None, False)
            change = Change("t", KEY, at_us, QUORUM, TIMEOUT_MS, ((0, value),))
            return Decision(mutation_for(change, table_of(node), node.data.new_mutation_id(), 1), True)

        place = Place(command.table_id, command.right, KEY)
        return bool(await node.data.conditionals.write(place, command, decide, SERIAL, QUORUM, PATIENCE))

    outcome = town.finish(town.begin(asked, work))
    assert outcome.error is None, outcome.error
    return bool(outcome.value)


@pytest.mark.parametrize("nodes", [3, 4])
def test_scenario_28_what_is_decided_has_one_id(nodes: int) -> None:
    with tracked(33, nodes) as town:
        asked = next(n for n in range(1, nodes + 1) if nodes == 3 or not _is_replica(town, n))
        assert decided(town, asked, b"first")
        assert not decided(town, asked, b"second")
        town.until(lambda: not any(unreconciled(town, n) for n in range(1, nodes + 1)))
        ids = {
            (shard, log)
            for n in range(1, nodes + 1)
            for shard, logs in held(town, n).items()
            for log in logs.items()
        }
        assert sum(runs.count for _, (_, runs) in ids) == 1
        assert rows_read(town, asked) == [b"first"]


def _is_replica(town: Town, asked: int) -> bool:
    node = town.node(asked)
    plans = node.data.coordinator.plans
    return plans.read_plan(table_of(node).id, looked_for(node, None).right, QUORUM).local is not None


def test_scenario_28_a_serial_read_brings_what_it_shows_whole() -> None:
    with tracked(34) as town:
        lone_write(town)
        isolated(town, 3, (1, 2))
        assert _serial_rows(town, 2, 3) == 1
        assert rows_of(town, 2) == 10
        isolated(town, 3, (1, 2), heal=True)
        isolated(town, 1, (2, 3))
        assert rows_read(town, 3) == [b"v"] * 10


def _serial_rows(town: Town, asked: int, row: int) -> int:
    async def work(node: Node) -> int:
        found = await node.data.conditionals.read(looked_for(node, row), SERIAL, PATIENCE)
        return sum(len(part.rows) for part in found.partitions)

    outcome = town.finish(town.begin(asked, work))
    assert outcome.error is None, outcome.error
    return int(outcome.value)


def test_scenario_28_what_a_dead_coordinator_left_is_finished_under_an_id() -> None:
    with tracked(35) as town:
        town.world.probes.add(CrashRule(label="ballots.committed", process="n1", hit=1, kind="power"))
        town.begin(1, lambda node: _begun(town, node))
        town.until(lambda: not town.process(1).alive)
        assert not decided(town, 2, b"other")
        assert rows_read(town, 2) == [b"first"]
        back(town, 1)
        settled(town)
        assert rows_of(town, 1) == 1


async def _begun(_town: Town, node: Node) -> None:
    command = looked_for(node, None)

    def decide(_found: ReadResult, at_us: int) -> Decision:
        change = Change("t", KEY, at_us, QUORUM, TIMEOUT_MS, ((0, b"first"),))
        return Decision(mutation_for(change, table_of(node), node.data.new_mutation_id(), 1), True)

    place = Place(command.table_id, command.right, KEY)
    await node.data.conditionals.write(place, command, decide, SERIAL, QUORUM, PATIENCE)


@pytest.mark.parametrize("label", ["batches.logged", "replica.write.accepted"])
def test_a_logged_batch_outlives_its_coordinator(label: str) -> None:
    with tracked(36) as town:
        town.world.probes.add(CrashRule(label=label, process="n1", hit=1, kind="power"))
        begin_batch(town, 1)
        town.until(lambda: not town.process(1).alive)
        town.until(lambda: kept(town, 2, 3) == 0)
        assert seen(town, 2) == 6
        assert pending(town, 2, 3) == 0
        back(town, 1)
        settled(town)


def test_a_deletion_that_one_replica_missed_is_not_undone_by_it() -> None:
    with tracked(37) as town:
        doors(town, 1)
        assert write(town, 1).error is None
        settled(town)
        away(town, 3)
        told(town, 1, f"DELETE FROM ks.t WHERE pk = 0x{KEY.hex()} AND ck >= 2")
        back(town, 3)
        paused(town, 1, 2, 3)
        isolated(town, 1, (2, 3))
        assert len(rows_read(town, 3)) == 2
