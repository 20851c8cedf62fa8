"""Work that cannot succeed ends its operation, and leaves the nodes as they were."""

from __future__ import annotations

import asyncio
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import RequestState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.schema.changes import DropTable
from lockstep.sim.runtime.probes import DelayRule
from lockstep.storage.reading import partitions_between
from lockstep.storage.rows import keys
from lockstep.topology.transformations import CancelOperation
from lockstep.values.errors import CorruptFile, PeerUnreachable
from lockstep.values.limits import WORK_ATTEMPTS_MAX
from lockstep.values.rows import Cell, Liveness, Mutation, Row
from lockstep.values.tokens import token_of
from tests.node.support import Town, keyspace, table
from tests.node.test_work import failing, holds, streaming


def filled(town: Town) -> None:
    """Three nodes with some data."""
    town.found()
    for change in (keyspace("k"), table("k")):
        assert town.finish(town.submit(1, change)).error is None
    town.agreed(1, 2, 3)
    for number in (1, 2, 3):
        fill(town.node(number))


def fill(node: Node) -> int:
    """Data in the node's own store, whoever owns it: the sequence of the last of it."""
    sequence, stored = 0, node.log.cluster.schema.by_name["k"].tables[0]
    for key in keys_of(200):
        row = Row(b"", Liveness(1), None, (Cell(2, b"x" * 100, 1),))
        named = (stored.id, token_of(key), key, node.data.new_mutation_id())
        sequence = node.data.engine.apply(Mutation(*named, 1, None, (), None, (row,)))
    return sequence


def keys_of(count: int) -> list[bytes]:
    return [str(number).encode() for number in range(count)]


def test_scenario_15_a_full_disk_of_the_newcomer_ends_its_join_as_failed() -> None:
    with Town() as town:
        filled(town)
        before = town.newest
        town.world.probes.add(DelayRule(label="replica.drain", low_s=1.0, high_s=1.0))
        town.start(4)
        town.until(lambda: bool(town.newest.operations))
        town.until(lambda: town.newest.operations[0].stage is Stage.WRITE_BOTH_READ_OLD)
        town.until(lambda: town.node(4).log.cluster.epoch == town.newest.epoch)
        fill_disk(town, 4)
        town.until(lambda: not town.newest.operations)
        (ended,) = town.newest.requests.ended
        assert ended.state is RequestState.FAILED and "stream failed on node 4" in ended.outcome
        assert town.state_of(4) is NodeState.NONE
        assert not town.newest.transitions.count and not town.newest.sessions
        assert owners(town.newest) == owners(before)
        assert "no space left" in ended.outcome and "no space left" in str(town.ended["n4"])


def owners(cluster: ClusterMetadata) -> list[object]:
    """Who is read and written where, whenever that began."""
    return [
        (ring.replication, placed.range, placed.group.reads, placed.group.writes)
        for ring in cluster.placements.rings
        for placed in ring.ranges
    ]


def fill_disk(town: Town, number: int) -> None:
    """From now on the disk takes nothing more."""
    disk = town.process(number).disk
    disk.settings.capacity_bytes = disk.used_bytes()


def test_what_fails_again_and_again_is_given_up_and_what_is_unreachable_is_not() -> None:
    def prepare(name: str, node: Node) -> None:
        if name == "n4":
            failing(node, 10**6, CorruptFile("planted", 7, "planted"))

    with Town() as town:
        town.loaded = prepare
        streaming(town, 0.01)
        asked = town.world.probes.process_counts
        town.until(lambda: not town.newest.operations)
        (ended,) = town.newest.requests.ended
        assert ended.state is RequestState.FAILED and "planted is corrupt" in ended.outcome
        assert asked.get(("n4", "work.done"), 0) == 2, "wiped before, and dropped after"


def test_unreachable_peers_are_asked_for_ever() -> None:
    to_fail: list[list[int]] = []

    def prepare(name: str, node: Node) -> None:
        if name == "n4":
            to_fail.append(failing(node, 5 * WORK_ATTEMPTS_MAX, PeerUnreachable("planted")))

    with Town() as town:
        town.loaded = prepare
        streaming(town, 0.01)
        town.until(lambda: town.ready(4))
        assert to_fail == [[0]], "it began once, and went on until the last failure was over"


def test_a_cancelled_newcomer_that_lives_drops_what_it_had_received() -> None:
    with Town() as town:
        filled(town)
        before = town.newest
        # Long enough between chunks and tables that some has arrived when it is cancelled.
        town.world.probes.add(DelayRule(label="replica.drain", low_s=0.3, high_s=0.3))
        town.start(4)
        node4_holds = lambda: [key for key in keys_of(200) if holds(town.node(4), key)]  # noqa: E731
        town.until(
            lambda: (
                bool(town.newest.operations)
                and "n4" in town.nodes
                and town.node(4).log.state.epoch >= town.newest.operations[0].stage_epoch
                and town.newest.operations[0].stage is Stage.WRITE_BOTH_READ_OLD
                and bool(node4_holds())
            )
        )
        operation = town.newest.operations[0]
        assert town.finish(town.submit(1, CancelOperation(operation.id, "no need"))).error is None
        town.until(lambda: not town.newest.operations)
        assert owners(town.newest) == owners(before)
        assert not node4_holds()


def test_what_still_arrives_of_a_table_that_was_dropped_meanwhile_is_not_kept() -> None:
    """Nobody would ever delete it: when the table was dropped, there was nothing of it on the newcomer."""
    arrived: list[int] = []

    def prepare(name: str, node: Node) -> None:
        if name == "n4":
            before = node.data.engine.before_ingest

            async def late(*arguments: Any) -> None:
                arrived.append(1)
                while node.log.cluster.schema.by_name["k"].tables:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                # What the drop itself deletes is gone by now.
                await asyncio.sleep(1.0)
                await before(*arguments)

            node.data.engine.before_ingest = late  # type: ignore[method-assign]

    with Town() as town:
        town.loaded = prepare
        filled(town)
        table_id = town.newest.schema.by_name["k"].tables[0].id
        town.start(4)
        town.until(lambda: bool(arrived))
        assert town.finish(town.submit(1, ChangeSchema(DropTable("k", "t")))).error is None
        town.until(lambda: town.ready(4))
        lower, upper = keys.table_bounds(table_id)
        snapshot = town.node(4).data.engine._store.snapshot()
        try:
            assert not list(partitions_between(snapshot, lower, upper))
        finally:
            snapshot.close()


def test_an_effect_that_is_slow_holds_the_barrier_behind_its_session_and_is_named() -> None:
    """The store of the newcomer takes long over a file; the operation is cancelled meanwhile."""
    gate: list[bool] = []
    waits: list[int] = []

    def prepare(name: str, node: Node) -> None:
        if name == "n4":
            synced, held = node.data.engine.synced, node.data.guards

            async def slow(sequence: int) -> None:
                # The test stands outside this loop, so it sets no event.
                while not gate and any("read_old" in name for name in held._held):
                    waits.append(sequence)
                    await asyncio.sleep(0.05)
                await synced(sequence)

            node.data.engine.synced = slow  # type: ignore[method-assign]

    with Town() as town:
        town.loaded = prepare
        filled(town)
        before = town.newest
        town.start(4)
        # A source that refuses one more file would end the others, too.
        town.until(lambda: bool(waits))
        town.wait(1.0)
        (operation,) = town.newest.operations
        assert town.finish(town.submit(1, CancelOperation(operation.id, "no need"))).error is None
        town.wait(3.0)
        (running,) = town.newest.operations
        assert running.stage is Stage.ROLLBACK_TO_NORMAL
        blocking = town.node(town.leader()).work.topology.blocking
        (reason,) = [one.reason for one in blocking if one.node == 4]
        assert f"of session operation-{running.id}-write_both_read_old" in reason and "still holds" in reason
        (since_us,) = {one.since_us for one in blocking}
        town.wait(1.0)
        assert [b.since_us for b in town.node(town.leader()).work.topology.blocking] == [since_us]
        gate.append(True)
        town.until(lambda: not town.newest.operations)
        assert owners(town.newest) == owners(before)
        assert not [key for key in keys_of(200) if holds(town.node(4), key)]
