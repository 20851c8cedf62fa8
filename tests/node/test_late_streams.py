"""New streams of the ring while a node stands still: nothing is acknowledged in a stream that is closed, and
writes go on."""

from __future__ import annotations

from math import inf

import pytest

from lockstep.coordination.capturing import Capturing
from lockstep.metadata.cdc import current
from lockstep.metadata.directory import NodeState
from lockstep.node.node import Node
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.topology.generations import AHEAD_MS, RepairStreams
from lockstep.values.errors import ColumnsGone
from lockstep.values.tokens import token_of
from tests.node.support import Town, leave
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import QUORUM, ROWS, tracked
from tests.node.test_tracked_changes import CAPTURE, LOG
from tests.node.test_tracked_statements import doors, told

#: A replica, and a node that has no data and serves clients.
REPLICA, DOOR, TIMEOUT_MS = 4, 6, 5000.0


def standing(seed: int, late: int, *statements: str) -> Town:
    """Nodes of which one left, and one stands still from before streams are made that fit the ring again,
    until after the time from which on they are to count."""
    town = tracked(seed, 5)
    town.placement[f"n{DOOR}"] = "num_tokens=0"
    town.start(DOOR)
    town.until(lambda: town.ready(DOOR))
    doors(town, 1, late)
    told(town, 1, *statements, CAPTURE)
    assert town.finish(town.submit(1, leave(5))).error is None
    town.until(lambda: town.state_of(5) is NodeState.LEFT, 120)
    town.agreed(1, 2, 3, 4, DOOR)
    town.process(late).pause()
    assert town.finish(town.submit(1, RepairStreams(now_ms(town)))).error is None
    town.wait(AHEAD_MS / 1000 + 1)
    return town


def now_ms(town: Town) -> int:
    return town.node(1).runtime.clock.wall_us() // 1000


def key_of(town: Town) -> bytes:
    """A partition of which the late replica has a copy; each generation has streams of its own."""
    cluster = town.newest
    ring = cluster.placements.ring(cluster.schema.by_name["ks"].group_of(table_of(town.node(1))))
    own = int(town.node(REPLICA).context.own_id())
    keys = (b"k%d" % number for number in range(200))
    return next(key for key in keys if own in ring.group_for(token_of(key)).writes)


def change_of(node: Node, key: bytes) -> Change:
    return Change("t", key, node.runtime.clock.wall_us(), QUORUM, 1, tuple((row, b"v") for row in ROWS))


@pytest.mark.parametrize("word", ["tracked", "untracked"])
def test_streams_count_later_while_a_replica_stands_still_and_writes_go_on(word: str) -> None:
    with standing(72, REPLICA, f"ALTER KEYSPACE ks WITH replication_type = '{word}'") as town:
        before, made = town.newest.generations[-2:]
        key = key_of(town)
        assert not made.is_published and made.timestamp_ms > now_ms(town) > before.timestamp_ms
        assert "to publish streams" in town.node(town.leader()).work.topology.blocking[0].reason
        told(town, 1, f"INSERT INTO ks.t (pk, ck, v) VALUES (0x{key.hex()}, 1, 'between')")

        async def work(node: Node) -> bytes:
            """Of a replica that knows nothing of them, and is as late as can be."""
            assert node.log.cluster.generations[-1].id == before.id
            made = mutation_for(change_of(node, key), table_of(node), node.data.new_mutation_id(), 1)
            capturing = Capturing(lambda: node.log.cluster, None, node.runtime.clock.wall_us, 1.0)  # type: ignore[arg-type]
            (added,) = await capturing.attached((made,))
            assert added.captured is not None
            return added.captured.key

        outcome = town.begin(REPLICA, work)
        town.process(REPLICA).resume()
        assert town.finish(outcome).error is None
        assert outcome.value == before.stream_for(token_of(key)), "which is open still"
        town.until(lambda: town.newest.generations[-1].is_published)
        counts_ms = town.newest.generations[-1].timestamp_ms
        assert counts_ms == made.timestamp_ms
        told(town, REPLICA, f"INSERT INTO ks.t (pk, ck, v) VALUES (0x{key.hex()}, 1, 'back')")
        town.wait((counts_ms - now_ms(town)) / 1000 + 1)
        told(town, REPLICA, f"INSERT INTO ks.t (pk, ck, v) VALUES (0x{key.hex()}, 1, 'counted')")
        rows = told(town, 1, f'SELECT v, "cdc$stream_id" FROM {LOG}')
        streams = {v: stream for v, stream in rows if v in (b"between", b"back", b"counted")}
        old, new = (one.stream_for(token_of(key)) for one in (before, made))
        assert streams == {b"between": old, b"back": old, b"counted": new}


@pytest.mark.parametrize("word", ["tracked", "untracked"])
def test_a_change_captured_by_streams_that_are_closed_is_planned_anew(word: str) -> None:
    with standing(71, DOOR, f"ALTER KEYSPACE ks WITH replication_type = '{word}'") as town:
        key, newest = key_of(town), town.newest.generations[-1]
        assert newest.is_published and current(town.newest.generations, now_ms(town) * 1000) is newest

        async def work(node: Node) -> bool:
            data, clock = node.data, node.runtime.clock
            assert node.log.cluster.generations[-1] != newest, "the node has not heard of them"
            made = mutation_for(change_of(node, key), table_of(node), data.new_mutation_id(), 1)
            capturing = Capturing(lambda: node.log.cluster, None, clock.wall_us, 1.0)  # type: ignore[arg-type]
            (added,) = await capturing.attached((made,))
            # It takes the others for dead for a moment, and would not ask them.
            data.coordinator.plans.plan_of(added, QUORUM).alive_until_s = inf
            with pytest.raises(ColumnsGone):
                await data.coordinator.begin_write(added, QUORUM, TIMEOUT_MS)
            return node.log.cluster.generations[-1] == newest

        outcome = town.begin(DOOR, work)
        town.process(DOOR).resume()
        assert town.finish(outcome).error is None
        assert outcome.value, "it knows them before it plans again"
        told(town, DOOR, f"INSERT INTO ks.t (pk, ck, v) VALUES (0x{key.hex()}, 1, 'anew')")
        rows = told(town, 1, f'SELECT "cdc$stream_id", v FROM {LOG}')
        assert [row[0] for row in rows if row[1] == b"anew"] == [newest.stream_for(token_of(key))]
