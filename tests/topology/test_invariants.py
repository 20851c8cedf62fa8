"""Values that break an invariant, made by hand: each check names what is wrong."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.directory import DIRECTORY, NodeState
from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.transitions import TRANSITIONS, transitions_of
from lockstep.placement.placements import PlacedRange, ReplicaGroup
from lockstep.topology.invariants import (
    check_endings,
    check_replica_counts,
    check_restored,
    check_transitions,
)
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.metadata.histories import History, ring_with, simple, started
from tests.topology.drills import replacing, run_out, run_to
from tests.topology.test_planted import JOIN, all_violations, three_nodes
from tests.topology.test_replication_change import change, with_table


def walking(stage: Stage = Stage.PREPARED) -> History:
    """The replication of `k` changes from one copy to two, beside `other`; node 1 owns the lowest token."""
    history = with_table(4, simple(1), others=(simple(1),))
    change(history, simple(2))
    run_to(history, 1, stage)
    return history


def test_a_walk_whose_keyspace_is_not_on_its_ring_is_found() -> None:
    for stage in (Stage.PREPARED, Stage.WRITE_BOTH_READ_NEW):
        now = walking(stage).now
        assert check_transitions(now) == ()
        keyspace = now.schema.by_name["ks"]
        shared = msgspec.structs.replace(keyspace, group=9)
        lost = now.changed(SCHEMA.set(now.schema.with_keyspace(shared)))
        assert check_transitions(lost) == (
            "OP-1: the placement group of operation 1 (replication_change of keyspace ks) belongs to []",
        )
        other = simple(3)
        elsewhere = msgspec.structs.replace(keyspace, replication=other)
        (found,) = check_transitions(now.changed(SCHEMA.set(now.schema.with_keyspace(elsewhere))))
        reached = 2 if stage is Stage.WRITE_BOTH_READ_NEW else 1
        assert f"has reached {simple(reached).text()}, its keyspace has {other.text()}" in found


def test_a_walk_that_is_taken_back_is_where_it_began() -> None:
    history = walking(Stage.WRITE_BOTH_READ_OLD)
    history.submit(CancelOperation(1))
    assert history.now.operations[0].stage is Stage.ROLLBACK_TO_NORMAL
    assert all_violations(history) == []


@pytest.mark.parametrize("left_out", [0, 1, -1])
def test_a_walk_that_does_not_hold_its_whole_ring_is_found(left_out: int) -> None:
    now = walking().now
    transitions = now.transitions.listed()
    del transitions[left_out]
    assert check_transitions(now.changed(TRANSITIONS.set(transitions_of(transitions)))) == (
        "OP-1: operation 1 (replication_change of keyspace ks) does not hold the whole ring of its keyspace",
    )


def test_ranges_on_their_way_that_are_no_placed_ones_are_found() -> None:
    history = three_nodes()
    history.submit(JOIN)
    now, (first, *others) = history.now, history.now.transitions.listed()
    wider = msgspec.structs.replace(first, range=Range(-5, first.range.right))
    found = check_transitions(now.changed(TRANSITIONS.set(transitions_of((wider, *others)))))
    assert len(found) == 1 and found[0].endswith("of group 1 is on its way, and no placed range")
    # What an operation has, and a look-up does not find.
    tree = now.transitions.tree.without(first.key)
    lost = now.changed(TRANSITIONS.set(msgspec.structs.replace(now.transitions, tree=tree)))
    (text,) = check_transitions(lost)
    assert text.endswith("of operation 1 is not found as its range's")
    with pytest.raises(AssertionError, match="is found by it"):
        lost.validate()


def test_a_walk_that_ends_elsewhere_or_too_early_is_found() -> None:
    history = walking(Stage.WRITE_BOTH_READ_NEW)
    before = history.now
    run_out(history, 1)
    assert check_endings(history.values[-2], history.now) == ()
    (early,) = check_endings(before, history.now)
    assert early == (
        "OP-1: operation 1 (replication_change of keyspace ks) ended in stage write_both_read_new"
    )
    keyspace = history.now.schema.by_name["ks"]
    wrong = msgspec.structs.replace(keyspace, replication=simple(1))
    after = history.now.changed(SCHEMA.set(history.now.schema.with_keyspace(wrong)))
    (elsewhere,) = check_endings(history.values[-2], after)
    assert elsewhere.endswith(f"did not leave its keyspace with {simple(2).text()}")
    ring = ring_with(history.now, simple(2))
    short = PlacedRange(ring.ranges[0].range, ReplicaGroup((NodeId(1),), (NodeId(1),), 1))
    rings = ring.with_ranges((short, *ring.ranges[1:]))
    after = history.now.changed(PLACEMENTS.set(history.now.placements.with_rings((rings,))))
    found = check_endings(history.values[-2], after)
    assert found and all(" left " in line and ", not " in line for line in found)


def test_a_node_that_does_not_end_as_its_operation_says_is_found() -> None:
    history = three_nodes()
    history.submit(JOIN)
    run_to(history, 1, Stage.CLEANUP)
    before = history.now
    run_out(history, 1)
    assert check_endings(before, history.now) == ()
    newcomer = history.now.directory.by_id[NodeId(4)]
    for change_, text in (
        ({"state": NodeState.NONE}, "left its node none"),
        ({"tokens": (51,)}, "left its node without its tokens"),
    ):
        directory = history.now.directory.with_node(msgspec.structs.replace(newcomer, **change_))
        found = check_endings(before, history.now.changed(DIRECTORY.set(directory)))
        assert [line.partition(") ")[2] for line in found] == [text]
    not_moved = history.now.changed(PLACEMENTS.set(history.values[3].placements))
    assert any(" left " in line and ", not " in line for line in check_endings(before, not_moved))


def test_a_replaced_node_that_stays_in_the_ring_is_found() -> None:
    history = started([(0,), (100,), (200,)], ("k", simple(2)))
    history.submit(replacing(4, history.now.directory.by_id[NodeId(3)]))
    history.submit(PrepareOperation(Replace(NodeId(4), NodeId(3))))
    run_to(history, 1, Stage.CLEANUP)
    before = history.now
    run_out(history, 1)
    stays = msgspec.structs.replace(history.now.directory.by_id[NodeId(3)], state=NodeState.NORMAL)
    after = history.now.changed(DIRECTORY.set(history.now.directory.with_node(stays)))
    assert check_endings(before, history.now) == ()
    assert (
        "OP-1: operation 1 (replace of node 3 by node 4) left the replaced node in the ring"
        in check_endings(before, after)
    )


@pytest.mark.parametrize(
    ("reads", "writes", "text"),
    [
        ((1, 2), (1, 2), "2 readers  [1, 2], 3 expected"),
        ((1, 2, 3), (1, 2, 3, 4), "readers (1, 2, 3) and writers (1, 2, 3, 4) differ outside an operation"),
        ((1, 2, 3), (3, 2, 1), "differ outside an operation"),
    ],
)
def test_a_range_with_replicas_that_nobody_asked_for_is_found(
    reads: tuple[int, ...], writes: tuple[int, ...], text: str
) -> None:
    history = three_nodes()
    assert check_replica_counts(history.now) == ()
    (ring,) = history.now.placements.rings
    group = ReplicaGroup(tuple(map(NodeId, reads)), tuple(map(NodeId, writes)), 1)
    ranges = (PlacedRange(ring.ranges[0].range, group), *ring.ranges[1:])
    rings = history.now.placements.with_rings((ring.with_ranges(ranges),))
    found = check_replica_counts(history.now.changed(PLACEMENTS.set(rings)))
    assert len(found) == 1 and text in found[0]
    holes = history.now.placements.with_rings((ring.with_ranges(ring.ranges[1:]),))
    (hole,) = check_replica_counts(history.now.changed(PLACEMENTS.set(holes)))
    assert hole.startswith("PLC-1: ")


def test_what_a_cancel_may_leave_nothing_of() -> None:
    history = three_nodes()
    before = history.now
    history.submit(JOIN)
    held = before.changed(TRANSITIONS.set(history.now.transitions))
    assert check_restored(before, held) == ("OP-1: the ranges on their way differ after a cancel",)
    owner = msgspec.structs.replace(before.directory.by_id[NodeId(3)], tokens=(7,))
    moved = before.changed(DIRECTORY.set(before.directory.with_node(owner)))
    assert check_restored(before, moved) == ("OP-1: the token owners differ after a cancel",)
    assert check_restored(before, before) == ()
