"""A node given up without its data: what is degraded, until when, and what is refused."""

from __future__ import annotations

import pytest

from lockstep.metadata.degraded import DEGRADED, Degraded, without_range
from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.topology.force_remove import ForceRemove, MarkRepaired
from lockstep.topology.invariants import check_adjacent, violations
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.streams import stream_plan
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.metadata.histories import History, SetKeyspaces, simple, started
from tests.metadata.stored import REGISTERED, from_stored, stored
from tests.topology.drills import refused, register, run_out
from tests.topology.test_histories import assert_rings_are_fresh

A, B, C, D, X = (NodeId(number) for number in (1, 2, 3, 4, 5))


def four(factor: int = 2) -> History:
    history = started([(100,), (200,), (300,), (400,)], ("ks", simple(factor)))
    history.submit(register(5, "dc1", "r1"))
    return history


def forced(factor: int = 2) -> History:
    history = four(factor)
    history.submit(ForceRemove(D, "its disk burnt"))
    return history


def test_the_node_has_left_and_every_range_with_a_new_replica_is_degraded() -> None:
    history = forced()
    now = history.now
    assert now.directory.by_id[D].state is NodeState.LEFT and now.directory.by_id[D].tokens == ()
    assert_rings_are_fresh(now)
    assert violations(history.values[-2], now) == ()
    assert [(one.range.left, one.range.right, one.missing) for one in now.degraded] == [
        (200, 300, (A,)),
        (300, 400, (B,)),
    ]
    assert {one.since_epoch for one in now.degraded} == {now.epoch}
    now.validate()


def test_degraded_ranges_are_kept_in_snapshots_and_images() -> None:
    now = forced().now
    assert from_stored(stored(now)).degraded == now.degraded
    decoder = SnapshotDecoder(registered=REGISTERED)
    for piece in pieces(now):
        decoder.feed(piece)
    assert decoder.finish() == now


def test_without_the_mark_the_invariants_find_what_was_given_up() -> None:

    history = forced()
    before, after = history.values[-2:]
    found = check_adjacent(before, after.changed(DEGRADED.set(())))
    assert any(line.startswith("PLC-3") for line in found)


def test_a_range_that_only_lost_its_last_sure_copy_is_degraded_for_nobody() -> None:
    history = started([(100,), (200,)], ("ks", simple(2)))
    history.submit(ForceRemove(B))
    assert history.now.degraded == ()
    alone = forced(1).now
    assert [one.missing for one in alone.degraded] == [()]


def test_a_repair_clears_the_range_and_nothing_else() -> None:
    history = forced()
    first, second = history.now.degraded
    middle = Range(220, 250)
    history.submit(MarkRepaired(first.group, middle))
    assert [one.range for one in history.now.degraded] == [Range(200, 220), Range(250, 300), second.range]
    assert "is degraded" in refused(history, MarkRepaired(first.group, middle))
    history.submit(MarkRepaired(first.group, Range(0, 1000)))
    assert history.now.degraded == ()
    assert without_range((first,), 7, first.range) == (first,)


def test_a_second_one_given_up_takes_what_only_it_lacked() -> None:
    history = started([(at * 100,) for at in range(1, 6)], ("ks", simple(2)))
    history.submit(ForceRemove(X))
    assert {node for one in history.now.degraded for node in one.missing} == {A, B}
    history.submit(ForceRemove(B))
    now = history.now
    assert all(B not in one.missing and X not in one.missing for one in now.degraded)
    assert_rings_are_fresh(now)
    assert violations(history.values[-2], now) == ()


def test_a_keyspace_that_goes_takes_its_degraded_ranges_along() -> None:
    history = forced()
    history.submit(SetKeyspaces((("other", simple(1)),)))
    assert history.now.degraded == ()
    history.now.validate()


def test_a_newcomer_that_never_joined_is_forgotten() -> None:
    history = four()
    history.submit(ForceRemove(X))
    assert history.now.directory.by_id[X].state is NodeState.LEFT and history.now.degraded == ()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (ForceRemove(NodeId(9)), "there is no node 9"),
        (ForceRemove(A), "node 1 is a voter"),
        (ForceRemove(D, "x" * 100_000), "a reason has at most"),
    ],
)
def test_a_node_that_cannot_be_given_up_says_why(body: ForceRemove, why: str) -> None:
    assert why in refused(four(), body)


def test_nobody_is_given_up_while_ranges_move_nor_twice() -> None:
    history = four()
    history.submit(PrepareOperation(Bootstrap(X, (150,))))
    assert "while operation 1 (bootstrap of node 5) moves ranges" in refused(history, ForceRemove(D))
    run_out(history, 1)
    history.submit(ForceRemove(D))
    assert "has left" in refused(history, ForceRemove(D))
    assert isinstance(history.now.degraded[0], Degraded)


def test_who_lacks_writes_is_no_source_while_enough_others_have_them() -> None:
    history = forced()
    assert [one.missing for one in history.now.degraded] == [(A,), (B,)]
    history.submit(PrepareOperation(Bootstrap(X, (350,))))
    tasks = stream_plan(history.now.operations[0], history.now, ())
    asked = {(task.range.left, task.range.right): task.sources for task in tasks}
    assert asked == {(200, 300): (C,), (300, 350): (A,)}
    # The only one that has it is dead: it is waited for.
    starved = stream_plan(history.now.operations[0], history.now, (C,))
    assert [task.sources for task in starved] == [(), (A,)]
    run_out(history, history.now.operations[0].id)
    assert [one.missing for one in history.now.degraded] == [(A,), (B,)], "the newcomer lacks nothing"


def test_who_is_filled_where_too_few_are_sure_may_lack_writes_too() -> None:
    """Of three replicas two lack what the third had alone with those that are gone."""
    history = started([(at * 100,) for at in range(1, 7)], ("ks", simple(3)))
    history.submit(register(7, "dc1", "r1"))
    history.submit(ForceRemove(D))
    history.submit(ForceRemove(C))
    lost = [one.range for one in history.now.degraded if not one.missing]
    assert lost == [Range(100, 200), Range(200, 300)], "those of which C and D were two of three"
    history.submit(PrepareOperation(Bootstrap(NodeId(7), (150,))))
    operation = history.now.operations[0]
    (task,) = [task for task in stream_plan(operation, history.now, ()) if task.range == Range(100, 150)]
    assert task.sources
    run_out(history, operation.id)
    handed = [one.missing for one in history.now.degraded if one.range.intersects(Range(100, 150))]
    assert any(NodeId(7) in missing for missing in handed)


def test_what_two_in_a_row_take_away_is_counted_together() -> None:
    """D is missing from what A gave up; when B goes too, only C is left of the three that had it."""
    history = started([(at * 100,) for at in range(1, 7)], ("ks", simple(3)))
    history.submit(ForceRemove(D))
    first = {(one.range.left, one.range.right): one.missing for one in history.now.degraded}
    assert first[100, 200] == (X,) and () not in first.values()
    history.submit(ForceRemove(C))
    now = [(one.missing, one.inherited) for one in history.now.degraded if one.range == Range(100, 200)]
    assert now == [((X,), (X,)), ((), (NodeId(6),))]
    assert violations(history.values[-2], history.now) == ()


def test_a_node_is_not_removed_when_only_it_is_sure_to_have_what_others_lack() -> None:
    history = started([(at * 100,) for at in range(1, 7)], ("ks", simple(3)))
    history.submit(ForceRemove(D))
    message = refused(history, PrepareOperation(Remove(C)))
    assert "only node 3 is sure to have all of range" in message
    # One that has nothing alone goes as ever.
    history.submit(PrepareOperation(Decommission(C)))
    sources = {s for task in stream_plan(history.now.operations[0], history.now, ()) for s in task.sources}
    assert X not in sources or all(X not in one.missing for one in history.now.degraded)


def test_a_replacement_that_is_given_up_lets_the_node_it_was_to_replace_vote_again() -> None:
    history = four()
    history.submit(ExcludeNodes((X,), "silent"))
    history.submit(EnqueueRequest(Replace(X, D)))
    assert history.now.service.leaving == (D,)
    history.submit(ForceRemove(X))
    assert history.now.service.leaving == ()
