"""The leader's next step about the voters: every row of its table, and which row wins over which."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.groups.membership import AdvanceMembership, CancelMembership, PrepareMembership
from lockstep.metadata.groups.membership_step import (
    Action,
    Configure,
    GroupConfigure,
    GroupView,
    Idle,
    Members,
    Observed,
    Submit,
    Transfer,
    Waits,
    group_next_step,
    next_step,
    plan,
)
from lockstep.metadata.groups.service import SERVICE, MembershipChange
from lockstep.values.ids import NodeId
from tests.metadata.test_membership import cluster_of, ids, leave, plain

CHANGE = 90
FOUR = (1, 2, 3, 4)


def cluster(
    *,
    nodes: int = 5,
    voters: tuple[int, ...] = (1, 2, 3),
    change: MembershipChange | None = None,
    **service: Any,
) -> ClusterMetadata:
    value = plain(nodes, voters).now
    return value.changed(SERVICE.set(msgspec.structs.replace(value.service, change=change, **service)))


def adds(*nodes: int, removes: tuple[int, ...] = (), **more: Any) -> MembershipChange:
    return MembershipChange(CHANGE, ids(*nodes), ids(*removes), **more)


def removes(*nodes: int, **more: Any) -> MembershipChange:
    return MembershipChange(CHANGE, (), ids(*nodes), **more)


def step(
    value: ClusterMetadata,
    voters: tuple[int, ...] = (1, 2, 3),
    learners: tuple[int, ...] = (),
    *,
    own: int = 1,
    settled: bool = True,
    caught_up: tuple[int, ...] = (1, 2, 3, 4, 5),
    **observed: Any,
) -> Action:
    view = GroupView(NodeId(own), Members(voters, learners), settled, ids(*caught_up))
    return next_step(value, view, Observed(**observed))


def advance(index: int, *voters: int) -> Submit:
    return Submit(AdvanceMembership(CHANGE, index, ids(*voters)))


# -- a change is running


@pytest.mark.parametrize(
    ("change", "group", "seen", "answer"),
    [
        # It adds 4, which is no member.
        (adds(4), {}, {}, Waits("has not applied the change that adds it", NodeId(4), CHANGE)),
        (adds(4), {}, {"reached": {4: CHANGE - 1}},
         Waits("has not applied the change that adds it", NodeId(4), CHANGE)),
        (adds(4), {}, {"reached": {4: CHANGE}}, Configure(Members((1, 2, 3), (4,)))),
        # 4 is a learner: whether it has applied the change counts no more.
        (adds(4), {"learners": (4,), "caught_up": (1, 2, 3)}, {},
         Waits("does not have the log yet", NodeId(4))),
        (adds(4), {"learners": (4,)}, {}, Configure(Members(FOUR))),
        (adds(4), {"learners": (4,)}, {"follows": "behind"}, Configure(Members(FOUR))),
        # It does not come: no matter how far it is, and only as long as it has no vote.
        (adds(4), {}, {"late": ids(4), "reached": {4: CHANGE}},
         Submit(CancelMembership(CHANGE, "node 4 does not take part: another node is to", NodeId(4)))),
        (adds(4), {"learners": (4,)}, {"late": ids(4)},
         Submit(CancelMembership(CHANGE, "node 4 does not take part: another node is to", NodeId(4)))),
        (adds(4), {"voters": FOUR}, {"late": ids(4)}, advance(0, *FOUR)),
        (adds(4), {}, {"late": ids(5), "reached": {4: CHANGE}}, Configure(Members((1, 2, 3), (4,)))),
        # It votes: the next sub-step may begin.
        (adds(4), {"voters": FOUR}, {}, advance(0, *FOUR)),
        # It removes 3.
        (removes(3), {}, {"follows": "nodes vote there"}, Waits("nodes vote there")),
        (removes(3), {}, {}, Configure(Members((1, 2)))),
        (removes(3), {"voters": (1, 2)}, {"follows": "nodes vote there"}, advance(0, 1, 2)),
        (removes(3), {"caught_up": (1,)}, {}, Waits("does not have the log yet", NodeId(2))),
        (removes(3), {"caught_up": (1, 3)}, {"down": ids(2)},
         Submit(CancelMembership(
             CHANGE, "node 2, which was to stay, is down: another node is to go", NodeId(2)))),
        # The leader itself is to go: it hands over to one that stays, of those that have its log.
        (removes(1), {}, {}, Transfer(NodeId(2))),
        (removes(1, 2), {}, {}, Transfer(NodeId(3))),
        (removes(1), {"caught_up": (1, 3)}, {}, Transfer(NodeId(3))),
        (removes(1), {"own": 2}, {}, Configure(Members((2, 3)))),
        (removes(1), {"caught_up": (1,)}, {}, Waits("does not have the log yet", NodeId(2))),
        # Cancelled: a learner is dropped, and one sub-step ends it.
        (adds(4, cancelled=True), {"learners": (4,)}, {}, Configure(Members((1, 2, 3)))),
        (adds(4, cancelled=True), {}, {"late": ids(4)}, advance(0, 1, 2, 3)),
        (adds(4, cancelled=True), {"voters": FOUR}, {}, advance(0, *FOUR)),
        (removes(3, cancelled=True), {"voters": (1, 2)}, {}, advance(0, 1, 2)),
        # Not settled: whatever runs waits.
        (adds(4), {"settled": False, "learners": (4,)}, {},
         Waits("the new configuration of the group is not committed yet")),
        (adds(4), {"settled": False}, {}, Waits("the new configuration of the group is not committed yet")),
    ],
)  # fmt: skip
def test_the_steps_of_a_change(
    change: MembershipChange, group: dict[str, Any], seen: dict[str, Any], answer: Action
) -> None:
    assert step(cluster(change=change), **group, **seen) == answer


def test_a_later_sub_step_names_its_place() -> None:
    both = adds(4, removes=(1,), index=1)
    value = cluster(voters=(1, 2, 3), change=both)
    value = value.changed(SERVICE.set(msgspec.structs.replace(value.service, voters=ids(*FOUR))))
    assert step(value, FOUR, own=2) == Configure(Members((2, 3, 4)))
    assert step(value, (2, 3, 4), own=2) == advance(1, 2, 3, 4)


# -- none is running


@pytest.mark.parametrize(
    ("voters", "learners", "settled", "answer"),
    [
        ((1, 2, 3), (), True, Idle()),
        ((1, 2, 3), (), False, Idle()),
        ((1, 2), (), False, Waits("the new configuration of the group is not committed yet")),
        ((1, 2, 3), (4,), False, Waits("the new configuration of the group is not committed yet")),
        ((1, 2, 4), (), True, Waits("voters are [1, 2, 4], recorded are [1, 2, 3]")),
        ((1, 2), (4,), True, Waits("voters are [1, 2], recorded are [1, 2, 3]")),
        ((1, 2, 3), (4,), True, Configure(Members((1, 2, 3)))),
    ],
)
def test_without_a_change_the_group_is_made_to_fit_the_record(
    voters: tuple[int, ...], learners: tuple[int, ...], settled: bool, answer: Action
) -> None:
    assert step(cluster(), voters, learners, settled=settled) == answer


def wanted(additions: tuple[int, ...], removals: tuple[int, ...], reason: str, *down: int) -> Submit:
    return Submit(PrepareMembership(ids(*additions), ids(*removals), reason, 0, ids(*down)))


def test_the_group_is_resized_with_the_cluster_and_says_why() -> None:
    assert step(cluster(nodes=6)) == wanted((4, 5), (), "5 voters suit the cluster")
    assert step(cluster(size=1)) == wanted((), (2, 3), "1 voters were asked for")
    assert step(cluster(nodes=6), down=ids(5), late=ids(4)) == Waits(
        "too few nodes are up for more voters", NodeId(4)
    )
    assert step(cluster(nodes=7), down=ids(4), late=ids(6)) == wanted(
        (5, 7), (), "5 voters suit the cluster", 4, 6
    )
    lost = {"down": ids(2), "lost": ids(2)}
    assert step(cluster(), **lost) == wanted((4,), (2,), "node 2 is unreachable for too long", 2)
    going = plain(5, (1, 2, 3))
    going.submit(leave(3))
    assert step(going.now, **lost) == wanted((4, 5), (2, 3), "node 3 is to leave", 2)
    spread = cluster_of([("dc1", "r")] * 3 + [("dc2", "r"), ("dc3", "r")], (1, 2, 3)).now
    assert step(spread) == wanted((4, 5), (2, 3), "the votes are spread over nodes that are there")


def test_whoever_must_go_and_finds_nobody_for_its_vote_is_waited_for() -> None:
    excluded = plain(4, (1, 2, 3))
    excluded.submit(ExcludeNodes(ids(4), "its disk is suspect"))
    assert step(excluded.now) == Idle()
    going = plain(4, (1, 2, 3))
    going.submit(leave(2))
    assert step(going.now, down=ids(4)) == Waits("no other node that is up can take its vote", NodeId(2))


@pytest.mark.parametrize(
    ("voters", "service", "down", "answer"),
    [
        ((1, 2, 3), {"paused": "by hand"}, (), Idle()),
        (FOUR, {"paused": "by hand"}, (), wanted((), (4,), "an odd number of voters, after a cancel")),
        (FOUR, {"paused": "by hand"}, (2,), wanted((), (2,), "an odd number of voters, after a cancel", 2)),
        ((1, 2), {"paused": "by hand"}, (1,), wanted((), (1,), "an odd number of voters, after a cancel", 1)),
    ],
)
def test_while_changes_are_paused_only_an_even_number_is_mended(
    voters: tuple[int, ...], service: dict[str, Any], down: tuple[int, ...], answer: Action
) -> None:
    assert step(cluster(nodes=7, voters=voters, **service), voters, down=ids(*down)) == answer


def test_an_even_number_that_cannot_grow_is_mended() -> None:
    value = cluster(nodes=4, voters=FOUR)
    found = step(value, FOUR, down=ids(3))
    assert isinstance(found, Submit) and isinstance(found.transformation, PrepareMembership)
    assert (found.transformation.additions, len(found.transformation.removals)) == ((), 1)


def test_a_plan_holds_what_one_change_may_and_the_dead_go_first() -> None:
    value = cluster(nodes=14, voters=(1, 2, 3, 4, 5, 6, 7), leaving=ids(5))
    seen = Observed(down=ids(6), late=ids(14))
    found = plan(value, ids(1, 8, 9, 10, 11, 12, 13), seen, "why")
    assert found == PrepareMembership(ids(8), ids(6), "why", 0, ids(6, 14)), "one more than may vote, for one"
    asked = plan(value, ids(1, 2, 3, 8, 9), seen, "why", size=5)
    assert asked == PrepareMembership(ids(8, 9), ids(6, 5, 4, 7), "why", 5, ids(6, 14))
    fewer = plan(value, ids(1, 2, 3), seen, "why")
    assert fewer.removals == ids(6, 5, 4, 7) and fewer.additions == ()
    some = plan(cluster(nodes=14, voters=(1, 2, 3, 4, 5)), ids(1, 6, 7, 8, 9), Observed(), "why")
    assert (some.additions, some.removals) == (ids(6, 7, 8), ids(2, 3, 4))


def test_a_learner_that_is_wanted_no_more_leaves_the_group_first() -> None:
    assert group_next_step([1, 3], Members((1,), (2, 3)), (1, 3), 1) == GroupConfigure(Members((1,), (3,)))
