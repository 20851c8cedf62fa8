"""Who votes in the metadata group: the choice, the entries that change it, and the leader's next step."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.groups.membership import (
    AdvanceMembership,
    CancelMembership,
    PrepareMembership,
    ServiceWish,
    SetService,
)
from lockstep.metadata.groups.membership_step import (
    Configure,
    GroupView,
    Members,
    Observed,
    Submit,
    Waits,
    next_step,
)
from lockstep.metadata.groups.voter_choice import (
    choose_voters,
    crowded_dc,
    size_for,
    size_problem,
    target_size,
)
from lockstep.metadata.transformations import Initialize, Register, SetExtension, UpdateNode
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.transformations import PrepareOperation, preparation
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.metadata.group_model import Group
from tests.metadata.histories import History, founder


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


def cluster_of(places: list[tuple[str, str]], voters: tuple[int, ...] = (1,)) -> History:
    history = History()
    founders = tuple(
        founder(number, (number * 10,), dc, rack) for number, (dc, rack) in enumerate(places, start=1)
    )
    history.submit(Initialize("c", "n", founders, ids(*voters)))
    return history


def plain(nodes: int, voters: tuple[int, ...] = (1,)) -> History:
    return cluster_of([("dc1", "r1")] * nodes, voters)


def refused(history: History, transformation: object) -> str:
    refusal = history.tried(transformation)  # type: ignore[arg-type]
    assert isinstance(refusal, Rejected), f"{transformation} was accepted"
    return refusal.message


def leave(node: int) -> EnqueueRequest:
    return EnqueueRequest(Decommission(NodeId(node)), actor="operator")


# -- the choice


@pytest.mark.parametrize(
    ("nodes", "size"), [(1, 1), (2, 1), (3, 3), (5, 3), (6, 5), (100, 5), (101, 7), (1000, 7)]
)
def test_the_size_follows_the_cluster(nodes: int, size: int) -> None:
    assert size_for(nodes) == size


def test_voters_are_spread_over_racks() -> None:
    made = cluster_of([("dc1", rack) for rack in ("a", "a", "a", "b", "c")])
    assert choose_voters(made.now) == ids(1, 4, 5)


def test_scenario_26_no_data_centre_of_three_holds_half_of_the_votes() -> None:
    places = [("dc1", "a")] * 6 + [("dc2", "a")] * 2 + [("dc3", "a")]
    chosen = choose_voters(cluster_of(places).now)
    assert len(chosen) == 5
    assert sum(node <= 6 for node in chosen) == 2
    lopsided = cluster_of([("dc1", "a")] * 10 + [("dc2", "a"), ("dc3", "a")]).now
    assert target_size(lopsided) == 3 and len(choose_voters(lopsided)) == 3


def test_present_voters_stay_and_nodes_that_are_down_are_not_added() -> None:
    made = plain(6, (2, 4, 6)).now
    assert choose_voters(made) == ids(1, 2, 3, 4, 6)
    assert choose_voters(made, down=ids(1)) == ids(2, 3, 4, 5, 6)
    assert choose_voters(made, down=ids(1, 3, 5)) == ids(2, 4, 6), "an even number is no gain"
    assert choose_voters(made, down=ids(1, 3)) == ids(2, 4, 6)
    assert choose_voters(made, down=ids(2)) == ids(1, 2, 3, 4, 6), "a vote is not lost by being down"


def test_a_lost_voter_is_substituted_only_by_a_node_that_is_up() -> None:
    made = plain(4, (1, 2, 3)).now
    assert choose_voters(made, down=ids(2), lost=ids(2)) == ids(1, 3, 4)
    assert choose_voters(made, down=ids(2, 4), lost=ids(2)) == ids(1, 2, 3)


def test_of_several_lost_voters_as_many_are_substituted_as_can_be() -> None:
    made = plain(6, (1, 2, 3, 4, 5)).now
    assert choose_voters(made, down=ids(2, 4), lost=ids(2, 4)) == ids(1, 3, 4, 5, 6)


def test_a_leaving_voter_goes_even_when_nobody_can_take_its_place() -> None:
    made = plain(3, (1, 2, 3))
    made.submit(leave(1))
    assert choose_voters(made.now) == ids(2)
    assert choose_voters(made.now, down=ids(2)) == ids(3)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    places=st.lists(
        st.tuples(st.sampled_from(["dc1", "dc2", "dc3", "dc4"]), st.sampled_from(["a", "b"])),
        min_size=1,
        max_size=14,
    ),
    data=st.data(),
)
def test_any_choice_is_odd_allowed_and_stable(places: list[tuple[str, str]], data: st.DataObject) -> None:
    count = len(places)
    voters = tuple(sorted(data.draw(st.sets(st.integers(1, count), min_size=1, max_size=min(7, count)))))
    history = cluster_of(places, voters)
    down = ids(*sorted(data.draw(st.sets(st.integers(1, count)))))
    cluster = history.now
    chosen = choose_voters(cluster, down=down)
    assert chosen == choose_voters(cluster, down=tuple(reversed(down)))
    added = [node for node in chosen if node not in voters]
    assert not [node for node in added if node in down]
    if chosen != cluster.voters:
        assert len(chosen) % 2 == 1 and not crowded_dc(cluster, chosen)
    settled = cluster_of(places, chosen).now
    assert choose_voters(settled, down=down) == chosen
    everyone = choose_voters(cluster)
    assert len(everyone) == target_size(cluster) and not crowded_dc(cluster, everyone)
    kept = [node for node in everyone if node in voters]
    if len({dc for dc, _ in places}) < 3:
        assert len(kept) == min(len(voters), len(everyone)), "voters stay where they can"


# -- the entries


def test_a_change_is_refused_unless_its_end_is_sound() -> None:
    made = cluster_of([("dc1", "r")] * 3 + [("dc2", "r"), ("dc3", "r")], (1, 4, 5))
    assert "one voter at least" in refused(made, PrepareMembership((), ids(1, 4, 5)))
    assert "odd number" in refused(made, PrepareMembership(ids(2), ()))
    assert "odd number" in refused(made, PrepareMembership((), ids(1)))
    assert "there is no node 9" in refused(made, PrepareMembership(ids(9), ids(1)))
    assert "voter already" in refused(made, PrepareMembership(ids(1), ids(4)))
    assert "is no voter" in refused(made, PrepareMembership(ids(2), ids(3)))
    assert "is down" in refused(made, PrepareMembership(ids(2), ids(1), down=ids(2)))
    assert "these are the voters" in refused(made, PrepareMembership((), ()))
    assert "dc1 would hold half" in refused(made, PrepareMembership(ids(2), ids(4), size=3))
    assert "leads to 3 voters, not 5" in refused(made, PrepareMembership(ids(2), ids(1), size=5))
    assert made.tried(PrepareMembership(ids(2), ids(1))) is None


@pytest.mark.parametrize(
    ("size", "why"),
    [(-1, "one voter at least"), (500, "more than the 4 normal nodes"), (2, "odd number")],
)
def test_a_size_that_cannot_be_is_refused(size: int, why: str) -> None:
    assert why in refused(plain(4), SetService(ServiceWish.SIZE, size=size))


SPREAD = [("dc1", "r")] * 6 + [("dc2", "r"), ("dc3", "r")]


@pytest.mark.parametrize(
    ("places", "size", "why"),
    [
        (SPREAD, 3, ""),
        (SPREAD, 5, "half of the votes into one data centre"),
        ([*SPREAD, ("dc2", "r")], 5, ""),
        ([("dc1", "r")] * 9 + [("dc2", "r")], 7, ""),
        ([("dc1", "r")] * 9, 8, "at most 7 nodes vote"),
        ([("dc1", "r")] * 7, 7, ""),
        ([("dc1", "r")] * 6, 7, "7 voters are more than the 6 normal nodes"),
        ([("dc1", "r")] * 6, 6, "6 voters survive no more losses than 5"),
        ([("dc1", "r")], 1, ""),
        ([("dc1", "r")], 0, "one voter at least"),
    ],
)
def test_how_many_may_be_asked_to_vote(places: list[tuple[str, str]], size: int, why: str) -> None:
    told = size_problem(cluster_of(places).now, size)
    assert why in told and bool(told) is bool(why)


def test_a_size_of_nine_is_refused_and_one_that_fits_is_kept() -> None:
    made = plain(12)
    assert "at most 7" in refused(made, SetService(ServiceWish.SIZE, size=9))
    made.submit(SetService(ServiceWish.SIZE, size=7))
    assert target_size(made.now) == 7
    made.submit(SetService(ServiceWish.SIZE, size=0))
    assert target_size(made.now) == 5


def test_a_change_while_another_runs_is_refused_and_named() -> None:
    made = plain(5)
    made.submit(PrepareMembership(ids(2, 3), ()))
    for other in (PrepareMembership(ids(4, 5), ()), SetService(ServiceWish.SIZE, size=1)):
        assert "change 2 of the voters (adds 2, 3) is running" in refused(made, other)


def test_sub_steps_are_recorded_once_and_in_order() -> None:
    made = plain(5, (1, 2, 3))
    made.submit(PrepareMembership(ids(4, 5), ids(1, 2)))
    change = made.now.epoch
    assert "is not due" in refused(made, AdvanceMembership(change, 1, ids(1, 2, 3, 4, 5)))
    assert "leads to voters" in refused(made, AdvanceMembership(change, 0, ids(1, 2, 3)))
    for index, voters in enumerate([(1, 2, 3, 4), (1, 2, 3, 4, 5), (2, 3, 4, 5), (3, 4, 5)]):
        advance = AdvanceMembership(change, index, ids(*voters))
        made.submit(advance)
        again = refused(made, advance)
        assert "already applied" in again or "has ended" in again
    assert made.now.service.change is None and made.now.voters == ids(3, 4, 5)


def test_cancel_drops_the_half_added_member_and_keeps_what_was_done() -> None:
    made = plain(5)
    made.submit(PrepareMembership(ids(2, 3), ()))
    change = made.now.epoch
    made.submit(AdvanceMembership(change, 0, ids(1, 2)))
    made.submit(CancelMembership(change, "by hand"))
    assert "being cancelled already" in refused(made, CancelMembership(change))
    made.submit(AdvanceMembership(change, 1, ids(1, 2)))
    service = made.now.service
    assert (service.voters, service.change, service.paused) == (ids(1, 2), None, "by hand")
    made.submit(SetService(ServiceWish.RESUME))
    assert made.now.service.paused == ""
    assert "has ended" in refused(made, CancelMembership(change))


def test_a_frozen_service_takes_only_entries_about_itself() -> None:
    made = plain(3)
    made.submit(SetService(ServiceWish.FREEZE, text="upgrade, ticket 7"))
    for other in (
        SetExtension("name", b"x"),
        Register("host-9", "10.0.0.9", 7000, 9042, 7080, "dc1", "r1", "1"),
        PrepareOperation(Decommission(NodeId(3))),
        leave(3),
    ):
        assert "frozen: upgrade, ticket 7" in refused(made, other)
    made.submit(UpdateNode(NodeId(2), "10.0.0.2", 7000, 9042, 7080, "2"))
    made.submit(PrepareMembership(ids(2, 3), ()))
    made.submit(SetService(ServiceWish.THAW))
    made.submit(SetExtension("name", b"x"))


def test_a_voter_leaves_only_after_it_lost_its_vote() -> None:
    made = plain(4, (1, 2, 3))
    assert "is a voter" in refused(made, PrepareOperation(Decommission(NodeId(2))))
    made.submit(leave(2))
    assert "node 2 has request" in refused(made, leave(2))
    assert choose_voters(made.now) == ids(1, 3, 4)
    made.submit(PrepareMembership(ids(4), ids(2)))
    change = made.now.epoch
    made.submit(AdvanceMembership(change, 0, ids(1, 2, 3, 4)))
    made.submit(AdvanceMembership(change, 1, ids(1, 3, 4)))
    (request,) = made.now.requests.queue
    made.submit(preparation(request, request.id))
    assert made.now.service.leaving == ()


def test_the_wish_that_a_coming_voter_leaves_ends_its_addition() -> None:
    for index, node, cancelled in ((0, 2, True), (0, 3, True), (1, 3, True), (1, 2, False)):
        made = plain(5)
        made.submit(PrepareMembership(ids(2, 3), ()))
        change = made.now.epoch
        if index:
            made.submit(AdvanceMembership(change, 0, ids(1, 2)))
        assert "is a voter" in refused(made, PrepareOperation(Decommission(NodeId(node))))
        made.submit(leave(node))
        service = made.now.service
        assert service.change is not None and service.change.cancelled is cancelled, (index, node)
        assert service.leaving == ids(node) and not service.paused
        group = Group(made, random.Random(index), 0.1)
        group.run(lambda g=group, n=node: g.quiet or g.tip.service.leaving == ())  # type: ignore[misc]
        assert NodeId(node) not in group.tip.service.members


def test_a_request_to_remove_a_coming_voter_is_queued_and_its_addition_ends() -> None:
    made = plain(5, (1, 2, 3))
    made.submit(PrepareMembership(ids(4), ids(1)))
    made.submit(EnqueueRequest(Remove(NodeId(4)), actor="operator"))
    change = made.now.service.change
    assert change is not None and change.cancelled and made.now.service.leaving == ids(4)
    assert [request.node for request in made.now.requests.queue] == [4]


def test_the_leader_gives_up_only_whom_the_change_waits_for() -> None:
    made = plain(6, (1, 2, 3))
    made.submit(PrepareMembership(ids(4, 5), ()))
    change = made.now.epoch
    assert "does not wait for node 5" in refused(made, CancelMembership(change, "dead", NodeId(5)))
    made.submit(AdvanceMembership(change, 0, ids(1, 2, 3, 4)))
    assert "does not wait for node 4" in refused(made, CancelMembership(change, "dead", NodeId(4)))
    made.submit(CancelMembership(change, "dead", NodeId(5)))
    assert not made.now.service.paused, "the wish for five voters is not over"
    made.submit(AdvanceMembership(change, 1, ids(1, 2, 3, 4)))
    assert made.now.service.change is None
    assert choose_voters(made.now, down=ids(5)) == ids(1, 2, 3, 4, 6)


def test_a_leaving_node_still_leaves_when_its_substitute_is_given_up() -> None:
    made = plain(5, (1, 2, 3))
    made.submit(leave(1))
    made.submit(PrepareMembership(ids(4), ids(1)))
    made.submit(CancelMembership(made.now.epoch, "dead", NodeId(4)))
    assert made.now.service.leaving == ids(1) and made.now.requests.queue
    assert choose_voters(made.now, down=ids(4)) == ids(2, 3, 5)


def test_only_an_addition_without_a_vote_is_given_up() -> None:
    made = plain(5, (1, 2, 3))
    made.submit(PrepareMembership(ids(4), ids(1)))
    observed = Observed(late=ids(4))
    for members, settled, given_up in (
        (Members((1, 2, 3)), True, True),
        (Members((1, 2, 3), (4,)), True, True),
        (Members((1, 2, 3), (4,)), False, False),
        (Members((1, 2, 3, 4)), False, False),
        (Members((1, 2, 3, 4)), True, False),
    ):
        action = next_step(made.now, GroupView(NodeId(1), members, settled), observed)
        entry = action.transformation if isinstance(action, Submit) else None
        assert isinstance(entry, CancelMembership) is given_up, (members, settled)


def test_a_group_grows_around_nodes_that_never_come() -> None:
    for seed in range(40):
        group = Group(plain(7), random.Random(seed), 0.1)
        dead = group.draw.sample(range(2, 8), 2)
        group.down.update(NodeId(node) for node in dead)
        group.settle()
        assert len(group.tip.voters) == 5 and not set(group.tip.voters) & set(dead)


def test_without_enough_nodes_that_come_the_number_of_voters_stays_odd() -> None:
    for seed in range(40):
        history = plain(6, (1, 2, 3))
        history.submit(PrepareMembership(ids(4, 5), ()))
        group = Group(history, random.Random(seed), 0.1)
        group.down.update(ids(5, 6))
        group.settle()
        assert group.tip.voters in (ids(1, 2, 3), ids(1, 2, 4), ids(1, 3, 4), ids(2, 3, 4))
        assert group.tip.service.change is None


def test_the_last_node_that_can_vote_stays_and_a_wish_can_be_taken_back() -> None:
    made = plain(2)
    made.submit(leave(2))
    assert "last node" in refused(made, leave(1))
    made.submit(SetService(ServiceWish.STAY, node=NodeId(2)))
    assert "does not wait" in refused(made, SetService(ServiceWish.STAY, node=NodeId(2)))


def test_a_wish_to_leave_is_read_from_old_logs_and_made_no_more() -> None:
    made = plain(4, (1, 2, 3))
    wish = SetService(ServiceWish.LEAVE, node=NodeId(2))
    assert "leaves by a request" in refused(made, wish)
    after = wish.apply(made.now, made.now.epoch + 1)
    assert after.service.leaving == ids(2) and choose_voters(after) == ids(1, 3, 4)
    asked = leave(2).apply(after, after.epoch + 1)
    assert asked.service == after.service and [request.node for request in asked.requests.queue] == [2]
    back = SetService(ServiceWish.STAY, node=NodeId(2)).apply(after, after.epoch + 1)
    assert back.service.leaving == () and back.requests == after.requests, "no request of it waits"


# -- the next step, against a model of the group that loses leaders and what they had not committed


@pytest.mark.parametrize("loss", [0.0, 0.15, 0.5])
def test_a_group_grows_by_itself_whatever_leaders_are_lost(loss: float) -> None:
    for seed in range(40):
        group = Group(plain(6), random.Random(f"{seed} {loss}"), loss)
        group.settle()
        assert group.tip.voters == ids(1, 2, 3, 4, 5)


def test_three_voters_are_exchanged_with_a_leader_change_at_every_sub_step() -> None:
    for at in range(1, 60):
        history = plain(5, (1, 2, 3))
        history.submit(PrepareMembership(ids(4, 5), ids(1, 2), size=3))
        group = Group(history, random.Random(at), 0.0)
        group.lose_leader_at = at
        group.settle()
        assert group.tip.voters == ids(3, 4, 5)
        assert group.configurations_seen == sorted(group.configurations_seen, key=lambda v: v[0])


def test_a_cancel_in_the_middle_leaves_no_half_added_member() -> None:
    ends: dict[tuple[NodeId, ...], int] = {}
    for at in range(1, 80):
        history = plain(5, (1, 2, 3))
        history.submit(PrepareMembership(ids(4, 5), ids(1, 2), size=3))
        group = Group(history, random.Random(at), 0.1)
        change = group.tip.service.change
        assert change is not None
        group.at(1 + at % 20, CancelMembership(change.id, "stop"))
        group.settle()
        ends[group.tip.voters] = ends.get(group.tip.voters, 0) + 1
        assert group.tip.service.change is None and not group.learners
        assert len(group.tip.voters) % 2 == 1, "a cancel between two sub-steps is evened out"
    assert ids(1, 2, 3) in ends and ids(3, 4, 5) in ends and len(ends) >= 3, ends


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@example(seed=494, nodes=6)
@given(seed=st.integers(0, 1 << 32), nodes=st.integers(1, 12))
def test_random_histories_end_with_record_and_group_equal_and_wanted(seed: int, nodes: int) -> None:
    draw = random.Random(seed)
    group = Group(plain(nodes), draw, draw.choice((0.0, 0.05, 0.3)))
    group.impatience = draw.choice((0.0, 0.02, 0.2))
    for _ in range(draw.randrange(6)):
        at, node = draw.randrange(1, 80), NodeId(draw.randrange(1, nodes + 1))
        group.at(
            at,
            draw.choice(
                (
                    SetService(ServiceWish.SIZE, size=draw.choice((0, 1, 3, 5, 7))),
                    leave(node),
                    SetService(ServiceWish.RESUME),
                    CancelMembership(0, "random"),
                )
            ),
        )
    for _ in range(draw.randrange(3)):
        group.dies(draw.randrange(1, 80), NodeId(draw.randrange(1, nodes + 1)), draw.randrange(1, 60))
    group.run(lambda: group.quiet)
    for _ in range(20):  # a leader that is lost may take the wish with it
        group.submit(SetService(ServiceWish.RESUME))
        group.settle()
        if not group.tip.service.paused:
            break
    cluster: ClusterMetadata = group.tip
    assert cluster.voters == choose_voters(cluster)
    assert len(cluster.voters) == target_size(cluster)
    assert not set(cluster.service.leaving) & set(cluster.voters)


def test_the_service_round_trips() -> None:
    made = plain(5)
    made.submit(PrepareMembership(ids(2, 3), (), "why"))
    service = made.now.service
    assert service.change is not None and service.change.title() == "change 2 of the voters (adds 2, 3)"
    assert service.members == ids(1, 2, 3)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(service), type=type(service)) == service


# -- the number of voters follows the members of the cluster


def newcomer(made: History, replaced: int) -> NodeId:
    """A node that is registered and asks to take the place of a dead one."""
    made.submit(Register(f"new-{replaced}", f"10.9.0.{replaced}", 7000, 9042, 7080, "dc1", "r1", "1"))
    node = max(made.now.directory.by_id)
    made.submit(EnqueueRequest(Replace(node, NodeId(replaced)), actor="operator"))
    return node


def test_a_rebuild_and_an_exclusion_change_no_number_of_voters() -> None:
    for nodes, voters in ((3, (1, 2, 3)), (4, (1, 2, 3)), (6, (1, 2, 3, 4, 5))):
        made = plain(nodes, voters)
        made.submit(PrepareOperation(Rebuild(NodeId(1))))
        assert choose_voters(made.now) == ids(*voters), "who is rebuilt keeps its vote"
        other = plain(nodes, voters)
        if nodes > len(voters):
            other.submit(ExcludeNodes(ids(nodes), "its disk is suspect"))
        assert choose_voters(other.now) == ids(*voters)


def test_the_node_that_takes_a_dead_voters_place_takes_its_vote_when_nobody_else_can() -> None:
    made = plain(3, (1, 2, 3))
    node = newcomer(made, 3)
    assert target_size(made.now) == 3
    assert choose_voters(made.now, down=ids(3)) == (1, 2, node)
    assert choose_voters(made.now, down=(*ids(3), node)) == ids(1, 2, 3), "nobody can take the vote yet"
    made.submit(PrepareMembership((node,), ids(3), down=ids(3)))
    change = made.now.epoch
    made.submit(AdvanceMembership(change, 0, (*ids(1, 2, 3), node)))
    made.submit(AdvanceMembership(change, 1, (*ids(1, 2), node)))
    (request,) = made.now.requests.queue
    made.submit(preparation(request, request.id))
    assert choose_voters(made.now, down=ids(3)) == (1, 2, node), "also while its operation runs"
    with_spare = plain(4, (1, 2, 3))
    newcomer(with_spare, 3)
    assert choose_voters(with_spare.now, down=ids(3)) == ids(1, 2, 4), "a node that is there goes first"


def test_a_newcomer_that_was_given_a_vote_and_taken_back_keeps_it_until_another_has_it() -> None:
    made = plain(3, (1, 2, 3))
    node = newcomer(made, 3)
    made.submit(PrepareMembership((node,), ids(3), down=ids(3)))
    change = made.now.epoch
    made.submit(AdvanceMembership(change, 0, (*ids(1, 2, 3), node)))
    made.submit(AdvanceMembership(change, 1, (*ids(1, 2), node)))
    made.submit(CancelRequest(made.now.requests.queue[0].id, "not now"))
    assert choose_voters(made.now, down=ids(3)) == (1, 2, node)
    assert choose_voters(made.now) == ids(1, 2, 3)
    assert "only nodes of the cluster" in refused(plain_with_stranger(), PrepareMembership(ids(4), ids(3)))


def plain_with_stranger() -> History:
    made = plain(3, (1, 2, 3))
    made.submit(Register("new", "10.9.0.1", 7000, 9042, 7080, "dc1", "r1", "1"))
    return made


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_no_choice_survives_fewer_losses_than_before_unless_so_few_members_stay(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 9))
    size = data.draw(st.sampled_from([n for n in (1, 3, 5) if n <= count]))
    voters = tuple(sorted(data.draw(st.sets(st.integers(1, count), min_size=size, max_size=size))))
    made = plain(count, voters)
    for node in sorted(data.draw(st.sets(st.integers(1, count), max_size=2))):
        made.tried(leave(node))
    if data.draw(st.booleans()):
        dead = data.draw(st.integers(1, count))
        if made.now.requests.by_node.get(NodeId(dead)) is None:
            newcomer(made, dead)
    down = tuple(NodeId(n) for n in sorted(data.draw(st.sets(st.integers(1, count + 1)))))
    chosen = choose_voters(made.now, down=down, lost=tuple(n for n in down if n in made.now.voters))
    going = set(made.now.service.leaving)
    kept = sum(1 for node in made.now.directory.nodes if node.id not in going and node.tokens)
    kept += sum(1 for request in made.now.requests.queue if request.about.replaced)
    allowed = (1 if kept <= 2 else 3 if kept <= 5 else 5 if kept <= 100 else 7) // 2
    assert (len(chosen) - 1) // 2 >= min((len(voters) - 1) // 2, allowed), (voters, chosen, down)


def test_a_voter_is_let_go_only_while_the_rest_can_decide_without_it() -> None:
    made = plain(3, (1, 2, 3))
    made.submit(leave(3))
    made.submit(PrepareMembership((), ids(3, 2)))
    group = Members((1, 2, 3))
    both, alone = (
        GroupView(NodeId(1), group, True, ids(1, 2, 3)),
        GroupView(NodeId(1), group, True, ids(1, 3)),
    )
    assert next_step(made.now, both, Observed()) == Configure(Members((1, 2)))
    for caught_up in (ids(1, 3), ids(1)):
        view = msgspec.structs.replace(alone, caught_up=caught_up)
        waits = next_step(made.now, view, Observed())
        assert isinstance(waits, Waits) and waits.node == 2
    given_up = next_step(made.now, alone, Observed(down=ids(2)))
    assert isinstance(given_up, Submit) and isinstance(given_up.transformation, CancelMembership)
    made.submit(given_up.transformation)
    made.submit(AdvanceMembership(made.now.service.change.id, 0, ids(1, 2, 3)))  # type: ignore[union-attr]
    assert choose_voters(made.now, down=ids(2)) == ids(1) and not made.now.service.paused
