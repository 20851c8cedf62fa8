"""Work of stages: only under its session, once, and asked for again until it is done."""

from __future__ import annotations

from typing import Any

from lockstep.internode import verbs
from lockstep.metadata.operations import Operation, Stage
from lockstep.node.log.messages import RunWork, WorkStatus
from lockstep.node.node import Node
from lockstep.node.work.worker import _is_counted
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.world import WorldSettings
from lockstep.storage.reading import partitions_between
from lockstep.storage.rows import keys
from lockstep.topology.force_remove import ForceRemove
from lockstep.values.errors import (
    CorruptFile,
    DiskRefused,
    FrameCorrupt,
    HandshakeRefused,
    NodeExcluded,
    NotReplica,
    Overloaded,
    PeerUnreachable,
    SessionClosed,
)
from lockstep.values.ids import NodeId
from lockstep.values.rows import Cell, Liveness, Mutation, Row
from lockstep.values.tokens import Range, token_of
from tests.node.support import Outcome, Town, keyspace, table


def order(town: Town, number: int, work: RunWork) -> Outcome:
    """Ask n4 for work, from another node."""
    address = town.node(4).context.address
    return town.begin(
        number, lambda node: node.context.internode.request(address, verbs.RUN_WORK, work, 4000)
    )


def streaming(town: Town, drain_s: float) -> Operation:
    """n4 joins; its streams wait that long for their sources."""
    town.found()
    for change in (keyspace("k"), table("k")):
        assert town.finish(town.submit(1, change)).error is None
    town.world.probes.add(DelayRule(label="replica.drain", low_s=drain_s, high_s=drain_s))
    town.start(4)
    town.until(
        lambda: bool(town.newest.operations) and town.newest.operations[0].stage is Stage.WRITE_BOTH_READ_OLD
    )
    town.until(lambda: town.node(4).log.cluster.epoch >= town.newest.operations[0].stage_epoch)
    return town.newest.operations[0]


def test_an_order_of_a_stage_that_has_passed_has_no_effect() -> None:
    with Town() as town:
        operation = streaming(town, 0.2)
        stale = RunWork(operation.id, Stage.JOIN_GROUP0, f"operation-{operation.id}-join_group0", 1, 4)
        wiped: list[object] = []
        engine = town.node(4).data.engine

        async def wipe(*_: object) -> None:
            wiped.append(_)

        engine.wipe = wipe  # type: ignore[method-assign, assignment]
        outcome = town.finish(order(town, 2, stale))
        assert isinstance(outcome.error, SessionClosed) and not wiped
        town.until(lambda: town.ready(4))
        for passed in (Stage.JOIN_GROUP0, Stage.WRITE_BOTH_READ_OLD):
            stale = RunWork(operation.id, passed, operation.session_id, 1, 4)
            assert isinstance(town.finish(order(town, 2, stale)).error, SessionClosed)


def test_an_order_under_another_session_of_the_same_stage_is_not_done_twice() -> None:
    """As one of an earlier step is, when it comes late: two copies of one stream would spoil each other."""
    with Town() as town:
        operation = streaming(town, 0.2)
        earlier = f"operation-{operation.id}-step-1-{operation.stage}"
        late = RunWork(operation.id, operation.stage, earlier, operation.stage_epoch, 4)
        assert isinstance(town.finish(order(town, 2, late)).error, SessionClosed)
        town.until(lambda: town.ready(4))


def test_only_what_does_not_pass_by_itself_is_counted() -> None:
    passing = (PeerUnreachable, HandshakeRefused, NodeExcluded, NotReplica, SessionClosed, Overloaded)
    assert not any(_is_counted(kind("planted")) for kind in passing)
    assert all(_is_counted(error) for error in (FrameCorrupt("planted"), DiskRefused("planted")))
    assert _is_counted(CorruptFile("planted", 7, "planted"))


def test_the_same_order_again_joins_the_running_work() -> None:
    with Town() as town:
        operation = streaming(town, 1.5)
        done = town.world.probes.process_counts.get(("n4", "work.done"), 0)
        work = RunWork(operation.id, operation.stage, operation.session_id, operation.stage_epoch, 4)
        begun = [order(town, number, work) for number in (1, 2, 3, 1, 2, 3)]
        for outcome in begun:
            town.finish(outcome)
        # A request is held for a bounded time only.
        assert {outcome.value.state for outcome in begun} == {"running"}
        assert all(outcome.done_s - outcome.begun_s < 1.2 for outcome in begun)
        town.until(lambda: town.ready(4))
        assert town.world.probes.process_counts[("n4", "work.done")] == done + 1


def failing(node: Node, times: int, error: Exception) -> list[int]:
    """The first streams of a node fail; how many of them are still to fail."""
    stream, left = node.work.stages._stream, [times]

    async def work(*arguments: Any) -> None:
        if left[0]:
            left[0] -= 1
            raise error
        await stream(*arguments)

    node.work.stages._stream = work  # type: ignore[method-assign]
    return left


def test_work_that_failed_is_asked_for_again_and_the_reason_is_visible() -> None:
    def prepare(name: str, node: Node) -> None:
        if name == "n4":
            failing(node, 40, PeerUnreachable("planted: no source"))

    with Town() as town:
        town.loaded = prepare
        operation = streaming(town, 0.01)
        town.until(lambda: bool(town.logged("topology.work_failed")))
        town.wait(0.5)
        (blocking,) = town.node(town.leader()).work.topology.blocking
        assert blocking.operation_id == operation.id and "planted" in blocking.reason
        # Said once, not with each of the attempts.
        assert len(town.logged("topology.work_failed")) == 1
        town.until(lambda: town.ready(4))


def test_a_defect_in_work_is_told_and_not_waited_for() -> None:
    with Town() as town:
        operation = streaming(town, 3.0)
        # The coordinator's own order runs by now, so that it is not the one that fails.
        town.until(lambda: any(key[1] is operation.stage for key in town.node(4).work.stages._running))
        town.world.settings = WorldSettings(stop_on_error=False)
        failing(town.node(4), 1, KeyError("planted"))
        # Forgotten, so that it is no join of the running work.
        town.node(4).work.stages._running.clear()
        work = RunWork(operation.id, operation.stage, operation.session_id, operation.stage_epoch, 4)
        outcome = order(town, 2, work)
        town.world.run_for(1.0)
        status: WorkStatus = outcome.value
        assert status.state == "failed" and "planted" in status.text
        assert [error.kind for error in town.world.errors] == ["task"]


def test_a_node_that_gave_a_range_away_wipes_it_once_nobody_asks_it_any_more() -> None:
    with Town() as town:
        streaming(town, 0.01)
        wiped: list[tuple[int, int, int]] = []
        for number in (1, 2, 3):
            node = town.node(number)
            watch_wipes(node, wiped)
        town.until(lambda: town.ready(4))
        town.until(lambda: not town.newest.operations)
        assert wiped
        ring = town.newest.placements.rings[-1]
        for number, left, right in wiped:
            for placed in ring.ranges:
                if left < placed.range.right <= right:
                    assert number not in placed.group.writes


def watch_wipes(node: Node, wiped: list[tuple[int, int, int]]) -> None:
    """Each wiped range, with the node's id, as it is asked of the engine."""
    wipe = node.data.engine.wipe

    async def seen(tables: Any, range_: Any, **terms: bool) -> None:
        wiped.append((node.context.own_id(), range_.left, range_.right))
        await wipe(tables, range_, **terms)

    node.data.engine.wipe = seen  # type: ignore[method-assign, assignment]


def test_a_node_does_no_work_of_another_one_that_stood_at_its_address() -> None:
    with Town() as town:
        operation = streaming(town, 0.2)
        work = RunWork(operation.id, operation.stage, operation.session_id, operation.stage_epoch, 3)
        outcome = town.finish(order(town, 2, work))
        assert isinstance(outcome.error, NotReplica) and "work of node 3" in outcome.error.message


def grown(town: Town) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
    """Four nodes; three store 60 partitions each. (node, key) of those that they own, and of the others."""
    town.found()
    for change in (keyspace("k"), table("k")):
        assert town.finish(town.submit(1, change)).error is None
    town.start(4)
    town.until(lambda: town.ready(4))
    town.until(lambda: not town.newest.operations and 4 not in town.newest.service.members)
    kept, left, last = [], [], dict[int, int]()
    for number in range(60):
        key = str(number).encode()
        for n in (1, 2, 3):
            node = town.node(n)
            stored = node.log.cluster.schema.by_name["k"].tables[0]
            row = Row(b"", Liveness(1), None, (Cell(2, b"old", 1),))
            named = (stored.id, token_of(key), key, node.data.new_mutation_id())
            last[n] = node.data.engine.apply(Mutation(*named, 1, None, (), None, (row,)))
            owned = n in node.log.cluster.group_for(stored_group(node), token_of(key)).writes
            (kept if owned else left).append((n, key))
    assert kept and left
    for n, sequence in last.items():
        town.finish(town.begin(n, lambda node, upto=sequence: node.data.engine.synced(upto)))  # type: ignore[misc]
    return kept, left


def test_what_is_owned_at_once_when_a_node_is_given_up_is_wiped_of_what_was_left_there() -> None:
    with Town() as town:
        kept, left = grown(town)
        town.process(4).crash()
        town.until(lambda: not town.node(1).membership.liveness.alive(4))
        assert town.finish(town.submit(1, ForceRemove(NodeId(4)))).error is None
        town.agreed(1, 2, 3)
        assert not [where for where in left if holds(town.node(where[0]), where[1])]
        assert all(holds(town.node(n), key) for n, key in kept)


def test_a_crash_between_the_entry_and_its_wipe_leaves_nothing_behind() -> None:
    """The entry is durable and nothing of it has been shown: the next start does what it asks for."""
    with Town() as town:
        kept, left = grown(town)
        town.wait(1.0)
        town.process(4).crash()
        town.until(lambda: not town.node(1).membership.liveness.alive(4))
        victim = left[0][0]
        synced = "metadata.apply.after_sync"
        times = town.world.probes.process_counts[f"n{victim}", synced]
        town.world.probes.add(CrashRule(label=synced, process=f"n{victim}", hit=times + 1))
        submitter = next(n for n in (1, 2, 3) if n != victim)
        town.submit(submitter, ForceRemove(NodeId(4)))
        town.until(lambda: not town.process(victim).alive)
        town.start(victim)
        town.until(lambda: town.ready(1, 2, 3) and bool(town.newest.degraded))
        town.agreed(1, 2, 3)
        assert not [where for where in left if holds(town.node(where[0]), where[1])]
        assert all(holds(town.node(n), key) for n, key in kept)


def test_what_came_after_the_wipe_survives_every_later_start() -> None:
    with Town() as town:
        _kept, left = grown(town)
        town.process(4).crash()
        town.until(lambda: not town.node(1).membership.liveness.alive(4))
        assert town.finish(town.submit(1, ForceRemove(NodeId(4)))).error is None
        town.agreed(1, 2, 3)
        number, key = left[0]
        node = town.node(number)
        stored = node.log.cluster.schema.by_name["k"].tables[0]
        row = Row(b"", Liveness(5), None, (Cell(2, b"new", 5),))
        named = (stored.id, token_of(key), key, node.data.new_mutation_id())
        sequence = node.data.engine.apply(Mutation(*named, 5, None, (), None, (row,)))
        town.finish(town.begin(number, lambda node: node.data.engine.synced(sequence)))
        town.process(number).crash()
        town.start(number)
        town.until(lambda: town.ready(number))
        assert holds(town.node(number), key)


def stored_group(node: Node) -> int:
    return node.log.cluster.schema.by_name["k"].group


def holds(node: Node, key: bytes) -> bool:
    """Whether anything of the partition is stored here."""
    stored = node.log.cluster.schema.by_name["k"].tables[0]
    lower, upper = keys.token_bounds(stored.id, Range(token_of(key) - 1, token_of(key)))
    snapshot = node.data.engine._store.snapshot()
    try:
        return any(partition is not None for partition in partitions_between(snapshot, lower, upper))
    finally:
        snapshot.close()
