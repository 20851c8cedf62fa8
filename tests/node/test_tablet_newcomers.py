"""A node that joins gets its first tablets without a pause, and some of them before the others."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.node.work import tablet_balancer, worker
from lockstep.schema.changes import CreateKeyspace
from lockstep.streaming.stream_target import StreamClient, StreamReport
from lockstep.values.ids import Consistency, NodeId, mutation_id
from lockstep.values.rows import Cell, Liveness, Mutation, Row
from lockstep.values.tokens import token_of
from tests.node.support import Town, table

NEWCOMER, TABLETS = NodeId(4), 16


def with_tablets(town: Town) -> None:
    town.found()
    replication = (("class", "NetworkTopologyStrategy"), ("dc1", "3"))
    made = CreateKeyspace("k", replication, tablets=(("initial", str(TABLETS)),))
    for change in (ChangeSchema(made), table("k")):
        assert town.finish(town.submit(1, change)).error is None
    town.agreed(1, 2, 3)


def entries(town: Town) -> list[LogEntry]:
    longest = max(town.nodes.values(), key=lambda node: node.log.state.epoch)
    return list(longest.log.state.entries)


def reads(town: Town) -> int:
    (group,) = town.newest.tablets.groups
    return sum(NEWCOMER in one.group.reads for one in town.newest.placements.ring(group.id).ranges)


def test_moves_to_a_newcomer_begin_with_the_entry_behind_its_join() -> None:
    with Town() as town:
        with_tablets(town)
        # Whoever was asked when nodes came last is asked again much later than this takes.
        town.wait(2 * tablet_balancer.ASK_PAUSE_S)
        town.start(4)
        town.until(lambda: NEWCOMER in town.newest.directory.by_id)
        town.until(lambda: town.state_of(4) is NodeState.NORMAL)
        joined_s, epoch = town.world.now_s(), town.newest.epoch
        town.until(lambda: town.newest.transitions.lone_count > 0)
        assert entries(town)[-1].kind == EntryKind.BEGIN_MOVES and town.newest.epoch == epoch + 1
        assert town.newest.transitions.lone_count == TABLETS * 3 // 4
        # Neither a pause nor a question to nodes came between: only the commit itself.
        assert town.world.now_s() - joined_s < tablet_balancer.PLAN_PAUSE_S / 5
        town.until(lambda: reads(town) == TABLETS * 3 // 4)
        town.agreed(1, 2, 3, 4)


async def filled(node: Node) -> None:
    """A row in each of many partitions."""
    found = node.log.cluster.schema.table("k", "t")
    assert found is not None
    for number in range(64):
        key = number.to_bytes(4, "big")
        rows = (Row(b"", Liveness(1), None, (Cell(1, b"1", 1),)),)
        made = Mutation(found.id, token_of(key), key, mutation_id(1, 1, number), 1, rows=rows)
        await node.data.coordinator.write(made, Consistency.QUORUM, 5000)


def test_two_tablets_at_a_time_stream_from_each_source(monkeypatch: pytest.MonkeyPatch) -> None:
    streaming: Counter[Any] = Counter()
    most: Counter[Any] = Counter()
    stream_range = StreamClient.stream_range

    async def counted(self: StreamClient, **asked: Any) -> StreamReport:
        source = asked["source"]
        streaming[source] += 1
        most[source] = max(most[source], streaming[source])
        try:
            await asyncio.sleep(0.1)
            return await stream_range(self, **asked)
        finally:
            streaming[source] -= 1

    monkeypatch.setattr(StreamClient, "stream_range", counted)
    with Town() as town:
        with_tablets(town)
        town.finish(town.begin(1, filled))
        town.start(4)
        town.until(lambda: town.newest.transitions.lone_count > 0)
        given = Counter(one.lost[0] for _, one in town.newest.transitions.tree.items())
        assert given.most_common(1)[0][1] > worker.LONE_STREAMS_PER_SOURCE_MAX
        town.until(lambda: reads(town) > 0)
        assert reads(town) < TABLETS * 3 // 4, "some are there before others"
        town.until(lambda: reads(town) == TABLETS * 3 // 4)
    assert len(most) == len(given), "from all sources at the same time"
    assert max(most.values()) == worker.LONE_STREAMS_PER_SOURCE_MAX
