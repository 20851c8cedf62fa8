from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import Requirement
from lockstep.quorum.plans import Plan, PlanBook
from lockstep.quorum.request_trace import RequestTrace
from lockstep.quorum.round import Target, first_choice
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.rows import ReadCommand
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

from .clusters import TABLE_ID, make_cluster, whole_ring

QUORUM = Consistency.QUORUM


class Newest:
    def __init__(self, cluster: ClusterMetadata) -> None:
        self.cluster = cluster
        self.book = PlanBook(lambda: self.cluster, lambda: 1)


def test_a_plan_is_made_once_for_one_metadata_value_and_anew_for_the_next() -> None:
    newest = Newest(whole_ring(5, [1, 2, 3]))
    first = newest.book.write_plan(TABLE_ID, 1, QUORUM)
    assert newest.book.write_plan(TABLE_ID, 99, QUORUM) is first
    newest.cluster = whole_ring(6, [1, 2, 3])
    again = newest.book.write_plan(TABLE_ID, 1, QUORUM)
    assert again is not first and again.epoch == 6 and again.needs_epoch == 1


def test_writes_and_quorum_reads_need_the_pending_replica_in_addition() -> None:
    book = Newest(whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6)).book
    write = book.write_plan(TABLE_ID, 1, QUORUM)
    read = book.read_plan(TABLE_ID, 1, QUORUM)
    assert (write.required, read.required) == (3, 3)
    assert [t.node for t in write.targets] == [1, 2, 3, 4]
    assert [t.node for t in read.targets] == [1, 2, 3, 4]
    assert write.needs_epoch == 6


def test_reads_that_promise_no_order_ask_read_replicas_only() -> None:
    book = Newest(whole_ring(6, [1, 2, 3], [1, 2, 3, 4], group_epoch=6)).book
    read = book.read_plan(TABLE_ID, 1, Consistency.ONE)
    assert read.required == 1
    assert [t.node for t in read.targets] == [1, 2, 3]


def test_quorum_reads_ask_the_read_quorum_once_nothing_is_pending() -> None:
    read = Newest(whole_ring(6, [1, 2, 3])).book.read_plan(TABLE_ID, 1, QUORUM)
    assert read.required == 2


def test_a_changed_table_matters_like_a_changed_group() -> None:
    book = Newest(whole_ring(9, [1, 2, 3], table_epoch=8)).book
    assert book.write_plan(TABLE_ID, 1, QUORUM).needs_epoch == 8
    assert book.changed_since(TABLE_ID, Range(0, 10), 7)
    assert not book.changed_since(TABLE_ID, Range(0, 10), 8)
    older = Newest(make_cluster(9, [(TOKEN_MAX, [1, 2, 3], [1, 2, 3], 2)])).book
    assert not older.changed_since(TABLE_ID, Range(0, 10), 8), "no group of the table has changed since"
    assert not older.changed_since(TABLE_ID, Range(0, 10), 10), "who asks knows more than this node"


def test_a_request_that_wants_no_plans_notes_none() -> None:
    plan = Newest(whole_ring(5, [1, 2, 3])).book.read_plan(TABLE_ID, 1, QUORUM)
    command = ReadCommand(TABLE_ID, 0, 1, None, (), (), False, False, 0, 0, 0)
    quiet, told = RequestTrace(), RequestTrace(wants_plans=True)
    for trace in (quiet, told):
        trace.read(plan, command, [(NodeId(1), 5)], repaired=False)
    assert not quiet.plans and [one["tokens"] for one in told.plans] == [[0, 1]]


def test_changed_since_looks_at_every_range_that_is_asked() -> None:
    cluster = make_cluster(6, [(0, [1, 2, 3], [1, 2, 3], 1), (TOKEN_MAX, [1, 2, 3], [1, 2, 3, 4], 6)])
    book = Newest(cluster).book
    assert not book.changed_since(TABLE_ID, Range(-10, 0), 5)
    assert book.changed_since(TABLE_ID, Range(-10, 1), 5)


def test_one_question_is_about_neighbours_with_the_same_replicas_while_nothing_moves() -> None:
    alike = [(0, [1, 2, 3], [1, 2, 3], 1), (5, [3, 1, 2], [3, 1, 2], 4)]
    moving, last = (9, [1, 2, 3], [1, 2, 3, 4], 6), (TOKEN_MAX, [1, 2, 3], [1, 2, 3], 1)
    book = Newest(make_cluster(6, [*alike, moving, last])).book
    plan = book.scan_plan(TABLE_ID, -7, QUORUM)
    assert plan.range == Range(TOKEN_MIN, 5) and plan.needs_epoch == 4 and plan.required == 2
    all_three = tuple(map(NodeId, (1, 2, 3)))
    assert plan.group == ReplicaGroup(all_three, all_three, 4)
    assert book.scan_plan(TABLE_ID, 0, QUORUM) is plan
    assert book.scan_plan(TABLE_ID, 1, QUORUM).range == Range(0, 5)
    assert book.scan_plan(TABLE_ID, 6, QUORUM) is book.read_plan(TABLE_ID, 6, QUORUM)
    assert book.scan_plan(TABLE_ID, 10, QUORUM).range == Range(9, TOKEN_MAX)
    book.validate()


def test_a_table_that_is_gone_has_no_plan_and_counts_as_changed() -> None:
    book = Newest(whole_ring(5, [1, 2, 3], tables=False)).book
    assert book.changed_since(TABLE_ID, Range(0, 1), 100)
    with pytest.raises(InvalidRequest):
        book.read_plan(TABLE_ID, 1, QUORUM)


def test_reads_prefer_this_node_then_near_then_far_then_dead() -> None:
    dcs = {1: "a", 2: "a", 3: "b", 4: "b"}
    book = Newest(whole_ring(5, [4, 3, 2, 1], factors={"a": 2, "b": 2}, dcs=dcs)).book
    plan = book.read_plan(TABLE_ID, 1, QUORUM)

    def everybody(node: int) -> bool:
        return True

    def not_two(node: int) -> bool:
        return node != 2

    assert [t.node for t in book.read_order(plan, not_two, not_two)] == [1, 4, 3, 2]
    assert [t.node for t in book.read_order(plan, lambda node: node == 3, not_two)] == [1, 3, 4, 2]
    assert next(t.node for t in book.read_order(plan, lambda node: False, everybody)) == 1, "itself at least"


@settings(max_examples=200, deadline=None)
@given(
    dcs=st.lists(st.sampled_from("ab"), min_size=1, max_size=6),
    needs=st.sampled_from(
        [
            (Requirement("", 1),),
            (Requirement("", 3),),
            (Requirement("a", 2),),
            (Requirement("a", 1), Requirement("b", 2)),
        ]
    ),
)
def test_the_first_choice_satisfies_whenever_anything_does_and_has_no_one_to_spare(
    dcs: list[str], needs: tuple[Requirement, ...]
) -> None:
    targets = tuple(Target(NodeId(i), (f"n{i}", 1), dc) for i, dc in enumerate(dcs))
    group = whole_ring(1, [1]).placements.rings[0].ranges[0].group
    plan = Plan(1, 1, Range(0, 1), group, targets, needs, QUORUM)
    chosen = [target.node for target in first_choice(plan.needs, targets)]
    possible = any(
        plan.satisfied_by([target.node for target in some])
        for size in range(len(targets) + 1)
        for some in itertools.combinations(targets, size)
    )
    assert plan.satisfied_by(chosen) == possible == plan.attainable
    if possible:
        assert len(chosen) == plan.required
        assert not any(plan.satisfied_by([n for n in chosen if n != gone]) for gone in chosen)
    assert plan.counted(chosen) == len(chosen)


def test_an_answer_counts_for_its_data_centre_and_for_the_whole() -> None:
    targets = tuple(Target(NodeId(n), ("h", n), "dc2" if n == 3 else "dc1") for n in (1, 2, 3))
    needs = (Requirement("dc2", 1), Requirement("", 3))
    group = whole_ring(6, [1, 2, 3]).placements.rings[0].ranges[0].group
    plan = Plan(6, 6, Range(0, 9), group, targets, needs, QUORUM)
    assert plan.required == 3 and plan.attainable
    assert [plan.counted(held) for held in ((), (1,), (3,), (1, 3), (1, 2, 3))] == [0, 1, 1, 2, 3]
    assert plan.satisfied_by((1, 2, 3)) and not plan.satisfied_by((1, 3))
