"""Changes of a node that stood still as new streams of the ring began to count: none of them is acknowledged
in a stream that is closed."""

from __future__ import annotations

from math import inf

import pytest

from lockstep.coordination.capturing import Capturing
from lockstep.metadata.directory import NodeState
from lockstep.node.node import Node
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change
from lockstep.topology.stream_repair import RepairStreams
from lockstep.topology.transformations import AHEAD_MS
from lockstep.values.errors import ColumnsGone
from lockstep.values.tokens import token_of
from tests.node.support import Town, leave
from tests.node.test_requests_while_moving import table_of
from tests.node.test_tracked import QUORUM, ROWS, tracked
from tests.node.test_tracked_changes import CAPTURE, LOG
from tests.node.test_tracked_statements import doors, told

LATE, TIMEOUT_MS = 4, 5000.0


def standing(seed: int, *statements: str) -> Town:
    """Nodes of which one left, and one stands still over the beginning of streams that fit the ring again."""
    town = tracked(seed, 5)
    doors(town, 1, LATE)
    told(town, 1, *statements, CAPTURE)
    assert town.finish(town.submit(1, leave(5))).error is None
    town.until(lambda: town.state_of(5) is NodeState.LEFT, 120)
    town.agreed(1, 2, 3, 4)
    town.process(LATE).pause()
    now_ms = town.node(1).runtime.clock.wall_us() // 1000
    assert town.finish(town.submit(1, RepairStreams(now_ms))).error is None
    town.wait(AHEAD_MS / 1000 + 1)
    return town


def key_of(town: Town, *, is_replica: bool) -> bytes:
    """A partition of which the late node is a replica, or none; its stream is another one by now."""
    cluster = town.newest
    ring = cluster.placements.ring(cluster.schema.by_name["ks"].group_of(table_of(town.node(1))))
    own = int(town.node(LATE).context.own_id())
    before, now = cluster.generations[-2:]
    for key in (b"k%d" % number for number in range(200)):
        token = token_of(key)
        if (own in ring.group_for(token).writes) is is_replica:
            assert before.stream_for(token) != now.stream_for(token), "each generation has streams of its own"
            return key
    raise AssertionError("no such partition")


@pytest.mark.parametrize("is_replica", [True, False])
@pytest.mark.parametrize("word", ["tracked", "untracked"])
def test_a_change_captured_by_streams_that_are_closed_is_planned_anew(word: str, is_replica: bool) -> None:
    with standing(71, f"ALTER KEYSPACE ks WITH replication_type = '{word}'") as town:
        key, newest = key_of(town, is_replica=is_replica), town.newest.generations[-1]

        async def work(node: Node) -> bool:
            data, clock = node.data, node.runtime.clock
            assert node.log.cluster.generations[-1] != newest, "the node has not heard of them"
            change = Change("t", key, clock.wall_us(), QUORUM, 1, tuple((row, b"v") for row in ROWS))
            made = mutation_for(change, table_of(node), data.new_mutation_id(), 1)
            capturing = Capturing(lambda: node.log.cluster, None, clock.wall_us, 1.0)  # type: ignore[arg-type]
            (added,) = await capturing.attached((made,))
            # It takes the others for dead for a moment, and would not ask them.
            data.coordinator.plans.plan_of(added, QUORUM).alive_until_s = inf
            with pytest.raises(ColumnsGone):
                await data.coordinator.begin_write(added, QUORUM, TIMEOUT_MS)
            return node.log.cluster.generations[-1] == newest

        outcome = town.begin(LATE, work)
        town.process(LATE).resume()
        assert town.finish(outcome).error is None
        assert outcome.value, "it knows them before it plans again"
        told(town, LATE, f"INSERT INTO ks.t (pk, ck, v) VALUES (0x{key.hex()}, 1, 'anew')")
        rows = told(town, 1, f'SELECT "cdc$stream_id", v FROM {LOG}')
        assert [row[0] for row in rows if row[1] == b"anew"] == [newest.stream_for(token_of(key))]
