"""A change of a keyspace's replication: its steps, its rings, its way back, and what it excludes."""

from __future__ import annotations

import itertools
import random

import pytest
from msgspec import structs

from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.operations import Stage
from lockstep.metadata.requests import Policy, RequestState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import Initialize
from lockstep.metadata.transitions import TRANSITIONS, transitions_of
from lockstep.placement.deltas import same_placement
from lockstep.quorum.plans import PlanBook
from lockstep.schema.changes import AlterKeyspace, CreateKeyspace, CreateTable, DropKeyspace, NewColumn
from lockstep.schema.model import ColumnKind, Replication
from lockstep.topology.barriers import barrier_need, evaluate
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.invariants import check_restored, check_stale_coordinators, violations
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.preview import preview
from lockstep.topology.replication_change import replication_steps
from lockstep.topology.requests import CancelRequest, EnqueueRequest, Rule, Waiting, why
from lockstep.topology.stages import RANGE_MOVEMENT
from lockstep.topology.step import Idle, Propose, Reports, Wait, step, work_orders
from lockstep.topology.streams import filled_nodes, refills, stream_plan
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.ids import Consistency, NodeId
from tests.metadata.histories import History, founder, network, registry, ring_with, simple
from tests.topology.drills import Coordinator, advance, finish, options, refused, run_out

NONE = Waiting(0, Rule.TURN, "")
STAGES = [row.stage for row in RANGE_MOVEMENT if row.stage is not Stage.ROLLBACK_TO_NORMAL]


def with_table(
    nodes: int,
    replication: Replication,
    *,
    dcs: int = 1,
    racks: int = 1,
    others: tuple[Replication, ...] = (),
) -> History:
    """Nodes with two tokens each, and keyspace `ks` with a table; `others` are k0, k1 and so on."""
    history = History(registry())
    founders = tuple(
        founder(
            number,
            tuple(sorted((number * 37 % 401 - 200, number * 91 % 397 + 300))),
            f"dc{(number - 1) % dcs + 1}",
            f"r{(number - 1) // dcs % racks + 1}",
        )
        for number in range(1, nodes + 1)
    )
    history.submit(Initialize("c", "n", founders, voters=(NodeId(1),)))
    for name, setting in (("ks", replication), *((f"k{at}", one) for at, one in enumerate(others))):
        history.submit(ChangeSchema(CreateKeyspace(name, options(setting))))
    add_table(history, "t")
    return history


def add_table(history: History, name: str) -> None:
    columns = (NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),)
    history.submit(ChangeSchema(CreateTable("ks", name, f"uuid-{name}", columns)))


def change(history: History, target: Replication, policy: Policy = Policy.REFUSE) -> None:
    history.submit(EnqueueRequest(ReplicationChange("ks", target), policy=policy, actor="a"))


def replication_of(history: History) -> Replication:
    return history.now.schema.by_name["ks"].replication


def all_sound(history: History) -> None:
    for before, after in itertools.pairwise(history.values):
        assert violations(before, after) == ()
        after.validate()


def test_one_more_replica_goes_through_the_stages_and_the_keyspace_has_its_own_ring_meanwhile() -> None:
    history = with_table(4, simple(1), others=(simple(1),))
    shared = ring_with(history.now, simple(1))
    change(history, simple(2))
    operation = history.now.operations[0]
    assert operation.title() == "operation 1 (replication_change of keyspace ks)"
    assert history.now.requests.live[0].title() == "request 1 (replication_change of keyspace ks)"
    own = history.now.schema.by_name["ks"].group
    assert own == shared.id + 1 and list(history.now.recounting) == [own]
    assert replication_of(history) == simple(1)
    assert same_placement(history.now.placements.ring(own), shared)
    seen = []
    while history.now.operations:
        seen.append((history.now.operations[0].stage, replication_of(history).total))
        advance(history)
        assert history.now.placements.ring(shared.id) is shared
        assert history.now.schema.by_name["ks"].group == own
    assert seen == list(zip(STAGES, [1, 1, 2, 2, 2], strict=True))
    assert replication_of(history) == simple(2)
    assert history.now.requests.ended[-1].state is RequestState.DONE
    assert [ring.replication for ring in history.now.placements.rings] == [simple(1), simple(2)]
    all_sound(history)


@pytest.mark.parametrize(
    ("before", "after", "dcs"),
    [
        (simple(1), simple(3), 1),
        (simple(3), simple(1), 1),
        (simple(3), simple(9), 1),
        (simple(9), simple(2), 1),
        (network(dc1=3), network(dc1=3, dc2=3), 2),
        (network(dc1=2, dc2=2), network(dc2=3), 2),
        (network(dc1=1), network(dc2=1), 2),
        (simple(3), network(dc1=3), 1),
        (network(dc1=3), simple(2), 1),
        (simple(2), network(dc1=2, dc2=2), 2),
        (network(dc1=2, dc2=1), simple(3), 2),
    ],
)
@pytest.mark.parametrize("racks", [1, 2])
def test_any_replication_becomes_any_other_in_sound_steps(
    before: Replication, after: Replication, dcs: int, racks: int
) -> None:
    history = with_table(6, before, dcs=dcs, racks=racks)
    change(history, after)
    finish(history)
    assert replication_of(history) == after
    all_sound(history)


@pytest.mark.parametrize("advances", range(16))
def test_a_cancel_at_any_point_leads_back_to_the_original(advances: int) -> None:
    history = with_table(5, simple(1), others=(simple(3),))
    before = history.now
    change(history, simple(3))
    for _ in range(advances):
        if not history.now.operations:
            return
        advance(history)
    if not history.now.operations:
        assert advances > 9
        return
    history.submit(CancelRequest(1, "no"))
    assert "is already rolling back" in refused(history, CancelOperation(1, "no"))
    finish(history)
    assert replication_of(history) == simple(1)
    assert check_restored(before, history.now) == ()
    assert history.now.requests.ended[-1].state is RequestState.CANCELLED
    all_sound(history)


@pytest.mark.parametrize("reads_moved", [False, True])
def test_a_way_back_that_is_cancelled_too_ends_at_rest_where_it_is(reads_moved: bool) -> None:
    history = with_table(5, simple(1))
    change(history, simple(3))
    while history.now.operations[0].step < 2 or history.now.operations[0].stage is not Stage.CLEANUP:
        advance(history)
    history.submit(CancelRequest(1, "no"))
    while not history.now.operations[0].body.is_returning:
        advance(history)
    while reads_moved and history.now.operations[0].stage is not Stage.WRITE_BOTH_READ_NEW:
        advance(history)
    history.submit(CancelRequest(1, "node 4 is gone"))
    finish(history)
    assert replication_of(history) == simple(2 if reads_moved else 3)
    ended = history.now.requests.ended[-1]
    assert ended.state is RequestState.CANCELLED and "it stopped at SimpleStrategy" in ended.outcome
    all_sound(history)


def test_two_keyspaces_change_at_once_and_ring_operations_wait() -> None:
    history = with_table(5, simple(2), others=(simple(2),))
    change(history, simple(3))
    history.submit(PrepareOperation(ReplicationChange("k0", simple(1))))
    leave = EnqueueRequest(Decommission(NodeId(4)), policy=Policy.REFUSE)
    assert "operation 1 (replication_change of keyspace ks)" in refused(history, leave)
    history.submit(structs.replace(leave, policy=Policy.WAIT))
    decision = step(history.now, Reports())
    assert not isinstance(decision, Propose) or decision.operation_id
    finish(history)
    assert replication_of(history) == simple(3)
    assert history.now.schema.by_name["k0"].replication == simple(1)
    all_sound(history)


def test_a_movement_is_named_to_a_change_that_will_not_wait_and_tables_can_still_be_altered() -> None:
    history = with_table(5, simple(2))
    history.submit(PrepareOperation(Decommission(NodeId(4))))
    enqueue = EnqueueRequest(ReplicationChange("ks", simple(3)), policy=Policy.REFUSE)
    message = refused(history, enqueue)
    assert "keyspace ks" in message and "operation 1 (decommission of node 4)" in message
    change(history, simple(3), Policy.WAIT)
    add_table(history, "u")
    assert history.now.requests.by_keyspace["ks"].state is RequestState.QUEUED
    world = Coordinator(history, random.Random(1))
    world.finish()
    assert replication_of(history) == simple(3)
    all_sound(history)


def test_the_keyspace_is_not_dropped_or_altered_again_meanwhile_and_its_tables_are() -> None:
    history = with_table(4, simple(1))
    change(history, simple(2))
    for body in (DropKeyspace("ks"), AlterKeyspace("ks", options(simple(3)))):
        assert "request 1 (replication_change of keyspace ks)" in refused(history, ChangeSchema(body))
    again = EnqueueRequest(ReplicationChange("ks", simple(3)))
    assert "request 1" in refused(history, again)
    add_table(history, "u")
    history.submit(ChangeSchema(AlterKeyspace("ks", durable_writes=False)))
    history.submit(ChangeSchema(CreateKeyspace("new", options(simple(3)))))
    finish(history)
    assert replication_of(history) == simple(2)
    assert not history.now.schema.by_name["ks"].durable_writes
    all_sound(history)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (network(dc9=1), "there is no data centre 'dc9'"),
        (Replication("Strategy", (("dc1", 1),)), "there is no replication strategy 'Strategy'"),
        (simple(-1), "must be non-negative"),
        (simple(0), "would have no replicas"),
        (simple(2), "is replicated this way already"),
    ],
)
def test_what_cannot_be_is_refused(target: Replication, message: str) -> None:
    history = with_table(3, simple(2))
    wanted = EnqueueRequest(ReplicationChange("ks", target))
    assert message in refused(history, wanted)
    assert "doesn't exist" in refused(history, EnqueueRequest(ReplicationChange("nobody", target)))


def test_a_change_that_moves_nothing_is_immediate_and_keeps_degraded_ranges() -> None:
    history = with_table(3, simple(3))
    line = Degraded(1, history.now.placements.rings[0].ranges[0].range, 2, (NodeId(1),))
    history.values[-1] = history.now.changed(DEGRADED.set((line,)))
    entry = ChangeSchema(AlterKeyspace("ks", options(network(dc1=3))))
    after = entry.apply(history.now, history.now.epoch + 1)
    assert after.schema.by_name["ks"].replication == network(dc1=3)
    moved = structs.replace(line, group=2, keyspaces=("ks",))
    assert after.degraded == (moved,)


def test_degraded_ranges_follow_the_keyspace_and_stay_with_those_that_share_its_ring() -> None:
    history = with_table(4, simple(1), others=(simple(1),))
    line = Degraded(1, history.now.placements.rings[0].ranges[0].range, 2, (NodeId(1),))
    value = history.now.changed(DEGRADED.set((line,)))
    prepare = PrepareOperation(ReplicationChange("ks", simple(2)))
    value = prepare.apply(value, value.epoch + 1)
    while value.operations:
        operation = value.operations[0]
        assert [one.group for one in value.degraded] == [1, 2]
        value = AdvanceOperation(operation.id, operation.stage, operation.step).apply(
            value, operation.stage_epoch + 1
        )
    assert [one.group for one in value.degraded] == [1, 2] == sorted(value.placements.by_id)


def test_who_is_filled_from_a_replica_that_lacks_writes_lacks_them_too() -> None:
    history = with_table(4, simple(1))
    placed = history.now.placements.rings[0].ranges[0]
    (owner,) = placed.group.reads
    line = Degraded(1, placed.range, 2, (owner,), keyspaces=("ks",))
    value = history.now.changed(DEGRADED.set((line,)))
    prepare = PrepareOperation(ReplicationChange("ks", simple(2)))
    value = prepare.apply(value, value.epoch + 1)
    while value.operations:
        operation = value.operations[0]
        before = value.degraded
        value = AdvanceOperation(operation.id, operation.stage, operation.step).apply(
            value, operation.stage_epoch + 1
        )
        if operation.stage is not Stage.CLEANUP:
            assert {node for one in before for node in one.missing} == {owner}
    lacking = {node for one in value.degraded for node in one.missing}
    assert lacking == set(ring_with(value, simple(2)).group_for(placed.range.right).reads) > {owner}
    assert {one.group for one in value.degraded} == {value.schema.by_name["ks"].group}


def test_an_old_copy_of_an_entry_does_not_advance_a_later_step() -> None:
    history = with_table(4, simple(1))
    change(history, simple(3))
    stale = AdvanceOperation(1, Stage.PREPARED, 1)
    while history.now.operations[0].step == 1:
        advance(history)
    assert "is in step 2, not 1" in refused(history, stale)


def test_sessions_of_the_same_stage_of_two_steps_differ() -> None:
    history = with_table(4, simple(1))
    change(history, simple(3))
    sessions = []
    while history.now.operations:
        sessions += [session.id for session in history.now.sessions]
        advance(history)
    assert len(set(sessions)) == len(sessions) and "operation-1-step-2-prepared" in sessions


def test_a_new_replica_is_filled_by_a_read_quorum_and_a_lost_one_fills_those_that_stay() -> None:
    history = with_table(5, simple(3))
    change(history, simple(4))
    operation = history.now.operations[0]
    for task in stream_plan(operation, history.now, ()):
        assert len(task.sources) == 2
    finish(history)
    change(history, simple(3))
    assert stream_plan(history.now.operations[0], history.now, ()) == ()
    finish(history)
    change(history, simple(2))
    operation = history.now.operations[0]
    tasks = stream_plan(operation, history.now, ())
    for transition in history.now.transitions.of(operation.id):
        mine = [task for task in tasks if task.range == transition.range]
        assert [task.sources for task in mine] == [transition.lost] * 2
        assert tuple(task.target for task in mine) == refills(
            transition, history.now.directory.dc_by_id.__getitem__
        )
    dead = history.now.transitions.of(operation.id)[0].lost
    for task in stream_plan(operation, history.now, dead):
        assert not set(task.sources) & set(dead)


def test_the_last_replicas_of_a_data_centre_hand_over_what_only_they_promised() -> None:
    history = with_table(6, network(dc1=2, dc2=1), dcs=2)
    change(history, network(dc1=2))
    tasks = stream_plan(history.now.operations[0], history.now, ())
    dc_of = history.now.directory.dc_by_id
    assert tasks and all(dc_of[task.target] == "dc1" for task in tasks)
    assert all(dc_of[task.sources[0]] == "dc2" for task in tasks)


def test_cleanup_is_of_those_that_lost_and_of_the_ring_that_the_keyspace_has_then() -> None:
    history = with_table(4, simple(3))
    change(history, simple(2))
    while history.now.operations[0].stage is not Stage.CLEANUP:
        advance(history)
    orders = work_orders(history.now.operations[0], history.now, ())
    assert orders
    for order in orders:
        for group, range_ in order.ranges:
            assert group == history.now.schema.by_name["ks"].group
            assert order.node not in history.now.group_for(group, range_.right).writes


def test_the_steps_are_one_replica_each_more_first() -> None:
    def walk(before: Replication, after: Replication, nodes: int = 9) -> list[Replication]:
        eligible = {"dc1": nodes, "dc2": nodes}
        return list(replication_steps(before, after, eligible, lambda _one, _other: True))

    assert walk(simple(1), simple(3)) == [simple(1), simple(2), simple(3)]
    assert walk(network(dc1=2), network(dc2=1)) == [
        network(dc1=2),
        network(dc1=2, dc2=1),
        network(dc1=1, dc2=1),
        network(dc2=1),
    ]
    assert walk(simple(3), network(dc1=3)) == [simple(3), network(dc1=3)]
    assert walk(simple(1), simple(1000), 2) == [simple(1), simple(2), simple(3), simple(4), simple(1000)]
    assert walk(simple(1000), simple(3), 2) == [simple(1000), simple(4), simple(3)]
    there, back = walk(simple(1), simple(1000), 2), walk(simple(1000), simple(1), 2)
    assert there == back[::-1]


def test_a_change_of_strategy_shares_replicas_out_as_can_be_proved() -> None:
    eligible = {"dc1": 9, "dc2": 9}
    tried: list[Replication] = []

    def only(wanted: Replication | None) -> tuple[Replication, ...]:
        def proved(_one: Replication, other: Replication) -> bool:
            tried.append(other)
            return other == wanted

        return replication_steps(simple(4), network(dc1=2, dc2=3), eligible, proved)

    in_turns = network(dc1=2, dc2=2)
    assert only(in_turns) == (simple(4), in_turns, network(dc1=2, dc2=3))
    assert tried == [network(dc1=1, dc2=3), network(dc1=2, dc2=2)]
    tried.clear()
    assert only(None) == ()
    assert tried == [network(dc1=1, dc2=3), in_turns, in_turns]


@pytest.mark.parametrize("seed", range(6))
def test_a_driven_change_with_lagging_nodes_ends_and_keeps_every_invariant(seed: int) -> None:
    rng = random.Random(seed)
    history = with_table(6, network(dc1=1, dc2=2), dcs=2, racks=2)
    change(history, network(dc1=3, dc2=1), Policy.WAIT)
    world = Coordinator(history, rng)
    for _ in range(rng.randint(3, 40)):
        world.round()
    if seed % 2 and history.now.operations:
        history.submit(CancelRequest(1, "drill"))
    world.finish()
    assert history.now.operations == ()
    all_sound(history)


def test_a_dry_run_goes_through_all_steps() -> None:
    history = with_table(4, simple(1))
    wanted = PrepareOperation(ReplicationChange("ks", simple(3)))
    found = preview(history.now, wanted)
    assert [one.row.stage for one in found.steps] == STAGES * 2
    assert found.last.schema.by_name["ks"].replication == simple(3)
    assert found.point_of_no_return is None


def test_what_is_written_while_replicas_are_filled_asks_for_both_counts_of_whoever_has_heard_of_it() -> None:
    history = with_table(5, simple(3))
    table = history.now.schema.by_name["ks"].by_name["t"].id
    change(history, simple(2))
    needed: dict[Stage, tuple[int, int, int]] = {}
    while history.now.operations:
        operation = history.now.operations[0]
        book = PlanBook(lambda: history.now, lambda: 1)
        write = book.write_plan(table, 5, Consistency.QUORUM)
        read = book.read_plan(table, 5, Consistency.QUORUM)
        needed[operation.stage] = write.required, read.required, write.needs_epoch - operation.stage_epoch
        advance(history)
    assert [needed[stage][:2] for stage in STAGES] == [(2, 2), (3, 3), (3, 3), (2, 2), (2, 2)]
    # A coordinator that has not heard of the stage is refused from then on.
    assert needed[Stage.WRITE_BOTH_READ_OLD][2] == 0


@pytest.mark.parametrize(("before", "after"), [(2, 1), (3, 2), (4, 3)])
def test_what_only_a_replica_that_goes_has_is_given_to_one_that_lacks_writes(before: int, after: int) -> None:
    history = with_table(5, simple(before))
    stays = ring_with(history.now, simple(before)).ranges[0]
    lacking = stays.group.reads[0]
    line = Degraded(1, stays.range, 2, (lacking,))
    value = history.now.changed(DEGRADED.set((line,)))
    wanted = PrepareOperation(ReplicationChange("ks", simple(after)))
    value = wanted.apply(value, value.epoch + 1)
    operation = value.operations[0]
    value = AdvanceOperation(operation.id, operation.stage, operation.step).apply(value, value.epoch + 2)
    tasks = [task for task in stream_plan(value.operations[0], value, ()) if task.range == stays.range]
    transition = next(t for t in value.transitions.of(operation.id) if t.range == stays.range)
    assert [(task.target, task.sources) for task in tasks] == [
        (node, transition.lost) for node in transition.new
    ]
    assert set(filled_nodes(value.operations[0], value)) >= {task.target for task in tasks}
    # Where too few others are left, everyone that lives is asked, not a quorum.
    gone = transition.lost
    if before == 4:
        everyone = structs.replace(line, missing=stays.group.reads[:3])
        value = value.changed(DEGRADED.set((structs.replace(everyone, group=transition.group),)))
        tasks = [task for task in stream_plan(value.operations[0], value, ()) if task.range == stays.range]
        assert [task.sources for task in tasks] == [gone] * 3


def removal(node: int) -> EnqueueRequest:
    return EnqueueRequest(Remove(NodeId(node), presumed_dead=True))


def driven_to_rest(history: History) -> None:
    """Advance until the walk rests in the queue."""
    while history.now.operations:
        advance(history)
    assert history.now.requests.by_keyspace["ks"].state is RequestState.QUEUED


def test_between_two_steps_a_walk_gives_way_to_the_removal_of_a_dead_node_and_goes_on_after_it() -> None:
    history = with_table(7, simple(2))
    change(history, simple(5))
    while history.now.operations[0].step < 2:
        advance(history)
    history.submit(removal(4))
    assert (
        "replication_change of keyspace ks"
        in (why(history.now, history.now.requests.queue[0]) or NONE).reason
    )
    driven_to_rest(history)
    assert replication_of(history) == simple(4)
    request = history.now.requests.by_keyspace["ks"]
    assert request.original == simple(2) and not history.now.transitions.count and not history.now.sessions
    for body in (DropKeyspace("ks"), AlterKeyspace("ks", options(simple(2)))):
        assert "request 1 (replication_change of keyspace ks)" in refused(history, ChangeSchema(body))
    world = Coordinator(history, random.Random(3), dead=(NodeId(4),))
    kinds = []
    while world.round():
        kinds += [operation.kind for operation in history.now.operations if operation.kind not in kinds]
    assert kinds == ["remove", "replication_change"]
    assert replication_of(history) == simple(5)
    assert [one.state for one in history.now.requests.ended] == [RequestState.DONE] * 2
    all_sound(history)


def test_a_cancel_after_a_rest_leads_back_to_where_the_walk_began() -> None:
    history = with_table(6, simple(1))
    change(history, simple(4))
    history.submit(removal(4))
    driven_to_rest(history)
    Coordinator(history, random.Random(3), dead=(NodeId(4),))
    history.submit(PrepareOperation(Remove(NodeId(4), presumed_dead=True), request_id=2))
    run_out(history, 2)
    resumed = step(history.now, Reports())
    assert isinstance(resumed, Propose)
    history.submit(resumed.transformation)
    operation = history.now.operations[0]
    assert (operation.body.path, operation.body.at) == (tuple(simple(n) for n in (1, 2, 3, 4)), 1)
    history.submit(CancelRequest(1, "no"))
    finish(history)
    assert replication_of(history) == simple(1)
    assert history.now.requests.ended[-1].outcome == "no"
    all_sound(history)


def test_a_walk_that_is_cancelled_while_it_rests_says_where_it_stopped() -> None:
    history = with_table(6, simple(1))
    change(history, simple(4))
    history.submit(removal(4))
    driven_to_rest(history)
    history.submit(CancelRequest(1, "no"))
    ended = history.now.requests.ended[-1]
    assert ended.state is RequestState.CANCELLED and ended.outcome == "no; it stopped at SimpleStrategy 2"
    assert replication_of(history) == simple(2)
    history.submit(ChangeSchema(DropKeyspace("ks")))
    all_sound(history)


def test_a_walk_that_is_on_its_way_back_or_whose_removal_cannot_begin_does_not_rest() -> None:
    history = with_table(6, simple(1))
    change(history, simple(4))
    history.submit(removal(4))
    while history.now.operations[0].stage is not Stage.CLEANUP:
        advance(history)
    history.submit(CancelRequest(1, "no"))
    finish(history)
    assert replication_of(history) == simple(1)
    assert history.now.requests.ended[-1].state is RequestState.CANCELLED
    voting = with_table(6, simple(1))
    change(voting, simple(3))
    voting.submit(structs.replace(removal(1)))
    while voting.now.operations:
        advance(voting)
    assert replication_of(voting) == simple(3), "node 1 votes, so its removal could not have begun"
    all_sound(history)


def test_a_change_waits_for_nodes_that_are_shut_out_and_would_get_ranges() -> None:
    history = with_table(4, simple(1))
    history.submit(ExcludeNodes((NodeId(3),), "drill"))
    refusal = EnqueueRequest(ReplicationChange("ks", simple(2)), policy=Policy.REFUSE)
    assert "node 3 is excluded and would get range" in refused(history, refusal)
    change(history, simple(2), Policy.WAIT)
    assert isinstance(step(history.now, Reports()), Idle)
    waiting = why(history.now, history.now.requests.queue[0])
    assert waiting is not None and (waiting.rule, waiting.node) == (Rule.EXCLUSION, NodeId(3))
    history.submit(IncludeNodes((NodeId(3),), (history.now.epoch,)))
    assert isinstance(step(history.now, Reports()), Propose)


def test_a_walk_rests_before_a_step_that_gives_ranges_to_a_node_that_was_shut_out_meanwhile() -> None:
    history = with_table(4, simple(1))
    change(history, simple(3))
    while history.now.operations[0].stage is not Stage.CLEANUP:
        advance(history)
    history.submit(ExcludeNodes((NodeId(3),), "drill"))
    driven_to_rest(history)
    assert replication_of(history) == simple(2)
    assert (why(history.now, history.now.requests.queue[0]) or NONE).rule is Rule.EXCLUSION
    history.submit(IncludeNodes((NodeId(3),), (history.now.epoch,)))
    Coordinator(history, random.Random(1)).finish()
    assert replication_of(history) == simple(3)
    all_sound(history)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_what_a_dead_node_holds_up_names_the_cancel_and_the_node_can_be_removed_then(factor: int) -> None:
    history = with_table(6, simple(factor))
    change(history, simple(factor + 1))
    world = Coordinator(history, random.Random(2), dead=(NodeId(3),))
    while world.round():
        pass
    stuck = step(history.now, world.reports())
    assert isinstance(stuck, Wait)
    advice = "if nodes stay away, `lockstep topology cancel 1` takes this step back"
    assert [node for node, text in stuck.blockers if advice in text] == [NodeId(3)]
    if factor > 1:
        history.submit(removal(3))
    history.submit(CancelRequest(1, "node 3 is gone"))
    world.finish()
    assert history.now.operations == ()
    if factor == 1:
        # Some ranges were on it alone.
        assert "only node 3 is sure to have" in refused(history, removal(3))
        history.submit(ForceRemove(NodeId(3), "gone"))
    ended = [one.state for one in history.now.requests.ended]
    assert ended == [RequestState.CANCELLED, RequestState.DONE][: len(ended)]
    all_sound(history)


@pytest.mark.parametrize("seed", range(12))
def test_no_coordinator_however_stale_misses_a_quorum_of_a_change_whatever_lags(seed: int) -> None:
    rng = random.Random(seed)
    settings = [simple(n) for n in (1, 2, 3, 4, 5)] + [
        network(dc1=n, dc2=m) for n in (1, 2) for m in (0, 1, 3)
    ]
    before, after = rng.sample(settings, 2)
    history = with_table(6, before, dcs=2, racks=rng.randint(1, 2))
    change(history, after, Policy.WAIT)
    world = Coordinator(history, rng, dead=(NodeId(rng.randint(1, 6)),) if seed % 3 == 0 else ())
    for _ in range(400):
        epoch = history.now.epoch
        if not world.round():
            break
        if rng.random() < 0.03 and history.now.operations:
            history.tried(CancelRequest(1, "drill"))
        if history.now.epoch != epoch:
            assert check_stale_coordinators(history.values[-9:], world.seen) == ()
    all_sound(history)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_once_reads_moved_a_dead_node_that_comes_or_goes_holds_up_no_step_from_or_to_one(
    before: int, after: int
) -> None:
    history = with_table(4, simple(before))
    change(history, simple(after))
    while history.now.operations[0].stage is not Stage.WRITE_BOTH_READ_NEW:
        advance(history)
    now = history.now
    transition = now.transitions.of(1)[0]
    dead = transition.gained or transition.lost
    # Of the other ranges that node may be the one that is needed.
    alone = now.changed(TRANSITIONS.set(transitions_of((transition,))))
    need = barrier_need(now.operations[0], alone)
    seen = {node.id: history.now.epoch for node in history.now.directory.nodes if node.id not in dead}
    assert evaluate(need, seen, seen).passed
    stays = {node: epoch for node, epoch in seen.items() if node not in transition.new[:1]}
    assert not evaluate(need, stays, stays).passed
