"""Clients' requests through a whole join and a whole leave, while one replica learns of every change late."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lockstep.coordination.hinting import Left
from lockstep.handoff.hints import Hints
from lockstep.metadata.directory import NodeState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import CreateTable, NewColumn
from lockstep.schema.model import ColumnKind, Table
from lockstep.sim.checkers.registers import check_registers
from lockstep.sim.door import clustering_number, command_for, mutation_for
from lockstep.sim.load.history import Change, Event, History, Look, SeenRow
from lockstep.sim.load.history import Outcome as End
from lockstep.sim.mutants import REGISTRY
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.probes import DelayRule
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency
from lockstep.values.tokens import token_of
from tests.node.support import Outcome, Town, keyspace, leave

SEEDS = (1, 2, 3)
TIMEOUT_MS = 5_000
LATE = "n2"
JOINING, LEAVING = 4, 3


def founded(seed: int, factor: int = 3) -> Town:
    town = Town(seed)
    town.found()
    town.finish(town.submit(1, keyspace("ks", factor)))
    columns = (
        NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
        NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
        NewColumn("v", "text"),
    )
    made = ChangeSchema(CreateTable("ks", "t", "00000000-0000-4000-8000-000000000001", columns))
    assert town.finish(town.submit(1, made)).error is None
    town.agreed(1, 2, 3)
    town.world.probes.add(DelayRule(label="metadata.apply.before_sync", process=LATE, low_s=0.1, high_s=0.5))
    return town


def table_of(node: Node) -> Table:
    found = node.log.cluster.schema.table("ks", "t")
    assert found is not None
    return found


def cut(town: Town, one: int, other: int, *, heal: bool = False) -> None:
    """Nothing passes between two nodes, so that no quorum of either has a replica to spare."""
    change = town.world.network.unblock if heal else town.world.network.block
    change(f"127.0.0.{one}", f"127.0.0.{other}")
    change(f"127.0.0.{other}", f"127.0.0.{one}")


def join_and_leave(town: Town, check: Callable[[], None] = lambda: None) -> None:
    """Node 4 comes, and then node 3 goes; each to its end, while node 2 misses one of the others.

    `check` is called after each, before what node 2 missed can reach it.
    """
    cut(town, 2, 3)
    town.start(JOINING)
    town.until(lambda: town.ready(JOINING))
    assert town.state_of(JOINING) is NodeState.NORMAL
    town.agreed(1, 2, 3, JOINING)
    check()
    cut(town, 2, 3, heal=True)
    cut(town, 2, JOINING)
    # It votes, so another member takes its place first.
    wish = town.finish(town.submit(1, leave(LEAVING)))
    assert wish.error is None, wish.error
    town.until(lambda: town.state_of(LEAVING) is NodeState.LEFT)
    town.agreed(1, 2, JOINING)
    check()
    cut(town, 2, JOINING, heal=True)


async def rows_of(node: Node, look: Look) -> tuple[SeenRow, ...]:
    table = table_of(node)
    result = await node.data.coordinator.read(command_for(look, table, 1, None), look.consistency, TIMEOUT_MS)
    assert not result.more
    value = table.by_name["v"].id
    return tuple(
        (partition.key, clustering_number(row.clustering), cell.value or b"")
        for partition in result.partitions
        for row in partition.rows
        for cell in row.cells
        if cell.column == value
    )


class FixedClients:
    """Each asks the same in every run: a write to each key in turn, and after it reads of two keys."""

    KEYS = tuple(f"key{number}".encode() for number in range(6))

    def __init__(self, town: Town, numbers: tuple[int, ...]) -> None:
        self.town = town
        self.history = History()
        self.stopped = False
        self.timestamp = 0
        self.outcomes: list[Outcome] = [
            town.begin(number, lambda node, at=at: self._run(node, at))  # type: ignore[misc]
            for at, number in enumerate(numbers)
        ]

    async def _run(self, node: Node, at: int) -> None:
        turn = at
        while not self.stopped:
            turn += 1
            self.timestamp += 1
            value = f"{self.timestamp}/{at}".encode()
            key = self.KEYS[turn % len(self.KEYS)]
            change = Change("t", key, self.timestamp, Consistency.QUORUM, TIMEOUT_MS, ((0, value),))
            await self._write(node, at, change)
            for other in (key, self.KEYS[(turn * 5 + at) % len(self.KEYS)]):
                look = Look("t", other, None, Consistency.QUORUM, TIMEOUT_MS)
                await self._read(node, at, look)
            if turn % 5 == 0:
                await self._read(node, at, Look("t", None, None, Consistency.QUORUM, TIMEOUT_MS))
            await asyncio.sleep(0.01)

    async def _write(self, node: Node, at: int, change: Change) -> None:
        event = self._began(at, change)
        try:
            made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
            await node.data.coordinator.write(made, change.consistency, change.timeout_ms)
            self._ended(event, End.OK)
        except LockstepError as error:
            self._ended(event, End.UNKNOWN, error=str(error))

    async def _read(self, node: Node, at: int, look: Look) -> None:
        event = self._began(at, look)
        try:
            self._ended(event, End.OK, await rows_of(node, look))
        except LockstepError as error:
            self._ended(event, End.FAILED, error=str(error))

    def _began(self, at: int, request: Change | Look) -> Event:
        return self.history.began(f"c{at}", request, self.town.world.now_ns)

    def _ended(self, event: Event, end: End, rows: tuple[SeenRow, ...] = (), error: str = "") -> None:
        self.history.ended(event, self.town.world.now_ns, end, rows, error)

    def stop(self) -> None:
        self.stopped = True
        self.town.until(lambda: all(outcome.done for outcome in self.outcomes))
        assert [outcome.error for outcome in self.outcomes if outcome.error is not None] == []


@pytest.mark.parametrize("seed", SEEDS)
def test_every_key_stays_linearizable_through_a_join_and_a_leave_with_a_late_replica(seed: int) -> None:
    with founded(seed) as town:
        clients = FixedClients(town, (1, 2, 1, 2))
        join_and_leave(town)
        town.wait(0.2)
        clients.stop()
        events = clients.history.events
        assert [event.error for event in events if event.outcome is not End.OK] == []
        assert len(events) > 200
        assert check_registers(events, 1) > 200
        replicas = [town.node(number).data.replica.refusals for number in (1, 2, JOINING)]
        late = town.node(2)
        assert sum(found.counts["stale_placement"] for found in replicas) > 0, (
            "the late coordinator is refused"
        )
        assert late.data.replica.refusals.waits > 0, "the late replica catches up before it answers"
        assert sum(late.data.coordinator.catch_ups()) > 0


class Writers:
    """Many writes in flight at each node, each to a row of its own; who was acknowledged is kept."""

    def __init__(self, town: Town, numbers: tuple[int, ...], at_once: int = 6) -> None:
        self.town = town
        self.stopped = False
        self.acknowledged: list[Change] = []
        self.failed: list[LockstepError] = []
        self._number = 0
        self.outcomes = [town.begin(number, self._run) for number in numbers for _ in range(at_once)]

    async def _run(self, node: Node) -> None:
        while not self.stopped:
            self._number += 1
            number = self._number
            key = f"key{number % 24}".encode()
            change = Change(
                "t", key, number, Consistency.QUORUM, TIMEOUT_MS, ((number, f"{number}/w".encode()),)
            )
            try:
                made = mutation_for(change, table_of(node), node.data.new_mutation_id(), 1)
                await node.data.coordinator.write(made, Consistency.QUORUM, TIMEOUT_MS)
                self.acknowledged.append(change)
            except LockstepError as error:
                self.failed.append(error)
            await asyncio.sleep(0.02)

    def stop(self) -> None:
        self.stopped = True
        self.town.until(lambda: all(outcome.done for outcome in self.outcomes))


def held(town: Town, number: int, key: bytes) -> set[int]:
    """Clusterings of the key that this node's own store has."""
    look = Look("t", key, None, Consistency.ONE, TIMEOUT_MS, page_rows=100_000)

    async def work(node: Node) -> Any:
        return await node.data.engine.read(command_for(look, table_of(node), 1, None))

    found = town.finish(town.begin(number, work))
    assert found.error is None
    return {clustering_number(row.clustering) for part in found.value.partitions for row in part.rows}


def on_quorums(town: Town, changes: Sequence[Change]) -> None:
    """Each of these is in the stores of a quorum of the replicas that are read now."""
    cluster = town.newest
    placed = cluster.schema.by_name["ks"].group
    for key in sorted({change.key for change in changes}):
        group = cluster.group_for(placed, token_of(key))
        stores = [held(town, int(node), key) for node in group.reads]
        for change in (one for one in changes if one.key == key):
            holders = sum(change.puts[0][0] in store for store in stores)
            assert holders >= 2, f"{change.text()} is on {holders} of {group.reads}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_write_acknowledged_while_the_ring_changed_is_missing_on_a_quorum(seed: int) -> None:
    with founded(seed) as town:
        writers = Writers(town, (1, 2))
        join_and_leave(town, lambda: on_quorums(town, tuple(writers.acknowledged)))
        writers.stop()
        assert writers.failed == []
        assert len(writers.acknowledged) > 500
        assert sum(town.node(number).data.coordinator.replans()[0] for number in (1, 2)) > 0, (
            "some were in flight"
        )


def test_a_source_that_gives_its_data_too_early_is_found() -> None:
    """What the test above says of a product that is wrong, and leaves no hints that mend it, on one seed of
    some: whether a write is on its way at the moment is chance."""

    def said(seed: int) -> str:
        with founded(seed) as town:
            writers = Writers(town, (1, 2))
            try:
                join_and_leave(town, lambda: on_quorums(town, tuple(writers.acknowledged)))
            except AssertionError as error:
                return str(error)
        return ""

    with REGISTRY["stream_early"].plant(), replaced((Hints, "leave", lambda *_, **__: Left(0, 0, False))):
        assert any("is on 1 of" in said(seed) for seed in range(1, 9))
