"""The management group on nodes that an operator named, apart from the voters of the metadata group."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.internode import verbs
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.placing import PlaceManagement, named_managers
from lockstep.metadata.groups.service import GlobalState
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.recovery.judging import as_target
from lockstep.node.recovery.messages import Done, Prepare
from lockstep.recovery.plan import Wish
from lockstep.recovery.steps import Phase
from lockstep.values.errors import PreconditionError, Rejected
from lockstep.values.ids import NodeId
from tests.node.support import Outcome, Town, keyspace, leave


def place(*members: int) -> PlaceManagement:
    return PlaceManagement(tuple(NodeId(member) for member in members))


def members(town: Town) -> tuple[int, ...]:
    """Of the group, as whoever leads it has them and all of it is committed; empty without a leader."""
    for name, node in town.nodes.items():
        group = node.membership.management.group if town.ready(int(name[1:])) else None
        if group is not None and group.is_leader:
            raft = group.driver.raft
            settled = raft.state.configurations.changed_at <= raft.commit_index
            return raft.configuration.voters if settled and not raft.configuration.learners else ()
    return ()


def apart(town: Town, *numbers: int) -> None:
    """Have the group live on these nodes."""
    assert town.finish(town.submit(town.leader(), place(*numbers))).error is None
    town.until(lambda: members(town) == numbers)


def told(town: Town, number: int, group: int) -> tuple[bool, int, GlobalState]:
    peers = town.node(number).membership.groups.peers(group)
    return peers.available, peers.count, peers.state


def test_3_the_group_lives_where_it_was_put_and_survives_without_the_metadatas() -> None:
    with Town(1, founders=5) as town:
        town.found()
        apart(town, 3, 4, 5)
        assert tuple(town.newest.voters) == (1, 2, 3)
        whole = (True, 3, GlobalState.AVAILABLE)
        town.until(lambda: all(told(town, number, MANAGEMENT_GROUP) == whole for number in range(1, 6)))
        for number in (1, 2):
            town.process(number).crash("power")
        town.wait(10)
        for number in (3, 4, 5):
            assert told(town, number, MANAGEMENT_GROUP) == whole
            assert told(town, number, METADATA_GROUP) == (False, 1, GlobalState.UNAVAILABLE)
        assert members(town) == (3, 4, 5)


def conduct(town: Town, number: int, wish: Wish) -> Outcome:
    async def repair(_node: object) -> object:
        desk = town.node(number).membership.recovery
        return await desk.reset(await desk.plan(wish))

    return town.finish(town.begin(number, repair))


def test_3_a_lost_metastorage_is_repaired_with_the_managers_that_live() -> None:
    """The freshest log goes on, whoever conducts; the other group is made anew, too, where it was."""
    with Town(1, founders=5) as town:
        town.found()
        apart(town, 3, 4, 5)
        town.until(lambda: members(town) == (3, 4, 5))
        former = town.newest.identity.cluster_id
        for number in (1, 2):
            town.process(number).crash("power")
        town.wait(8)
        outcome = conduct(town, 3, Wish(keeps_managers=True, size=3))
        assert outcome.error is None
        made = outcome.value.plan
        assert (made.management, made.voters, made.former_id) == ((3, 4, 5), (3, 4, 5), former)
        town.until(lambda: town.ready(3, 4, 5) and members(town) == (3, 4, 5))
        for number in (3, 4, 5):
            town.until(lambda number=number: town.node(number).log.cluster.epoch >= made.last.epoch)  # type: ignore[misc]
        town.until(lambda: any(town.node(number).log.is_leader for number in (3, 4, 5)))
        leader = next(number for number in (3, 4, 5) if town.node(number).log.is_leader)
        assert town.finish(town.submit(leader, keyspace("after"))).error is None
        town.agreed(3, 4, 5)


def test_3_without_a_leader_of_the_managers_nobody_says_who_they_are() -> None:
    with Town(1, founders=5) as town:
        town.found()
        for number in (1, 2):
            town.process(number).crash("power")
        town.wait(8)
        outcome = conduct(town, 3, Wish(keeps_managers=True))
        assert isinstance(outcome.error, PreconditionError)
        assert "nobody leads the management group" in outcome.error.message


def test_5_a_node_that_hangs_is_left_out_by_name_and_migrates_later() -> None:
    """It answers the survey and never prepares: an attempt with it changes nothing."""
    with Town(1, founders=5) as town:
        town.found()
        former = town.newest.identity.cluster_id
        for number in (1, 2):
            town.process(number).crash("power")
        town.wait(8)

        async def hang(*_: object) -> None:
            await asyncio.sleep(10**6)

        hanging = town.node(5)
        hanging.context.internode.register(verbs.RECOVERY_PREPARE, Prepare, Done, hang)
        outcome = conduct(town, 4, Wish())
        assert (
            isinstance(outcome.error, PreconditionError)
            and "nothing was changed: node 5" in outcome.error.message
        )
        for number in (3, 4, 5):
            assert town.node(number).membership.recovery.file.standing.phase is Phase.IDLE
            assert town.node(number).log.cluster.identity.cluster_id == former
        outcome = conduct(town, 4, Wish(excluded=(NodeId(5),)))
        assert outcome.error is None and 5 in outcome.value.plan.absent
        town.until(lambda: town.ready(3, 4) and members(town) == outcome.value.plan.management)
        town.world.monitors.remove(town.log)  # Two incarnations have two histories from here on.
        assert town.node(5).log.cluster.identity.cluster_id == former
        target = as_target(town.node(4).log, 512)
        going = town.begin(5, lambda _node: town.node(5).membership.recovery.migrate(target, dry_run=False))
        town.finish(going)
        wanted = outcome.value.plan.cluster_id
        town.until(lambda: town.ready(5) and town.node(5).log.cluster.identity.cluster_id == wanted)


def test_it_follows_the_voters_again_when_it_is_told_to() -> None:
    with Town(1, founders=5) as town:
        town.found()
        apart(town, 5)
        town.until(lambda: town.node(1).membership.management.group is None)
        assert town.finish(town.submit(town.leader(), place())).error is None
        town.until(lambda: members(town) == (1, 2, 3))
        town.until(lambda: town.node(5).membership.management.group is None)


def test_voters_change_while_it_lives_elsewhere() -> None:
    with Town(1, founders=5) as town:
        town.found()
        apart(town, 3, 4, 5)
        assert town.finish(town.submit(town.leader(), leave(1))).error is None
        town.until(lambda: town.state_of(1) is NodeState.LEFT, 120.0)
        town.until(lambda: 1 not in town.newest.voters and town.voters_settled)
        assert members(town) == (3, 4, 5)
        town.finish(town.submit(town.leader(), keyspace("after")))


@pytest.mark.parametrize("named", [(4,), (3, 4, 5)])
def test_a_node_leaves_only_once_the_group_is_elsewhere(named: tuple[int, ...]) -> None:
    with Town(1, founders=5) as town:
        town.found()
        apart(town, *named)
        seen: list[tuple[int, ...]] = []

        def gone() -> bool:
            if town.state_of(4) is NodeState.LEFT:
                seen.append(members(town))
                return True
            return False

        assert town.finish(town.submit(town.leader(), leave(4))).error is None
        town.until(gone, 120.0)
        left = tuple(one for one in named if one != 4)
        town.until(lambda: members(town) == (left or (1, 2, 3)))
        assert named_managers(town.newest) == left
        assert seen and 4 not in seen[0], "it was out before it had left"
        town.finish(town.submit(town.leader(), keyspace("after")))


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((1, 2), "odd number"),
        ((1, 2, 9), "no node 9"),
        ((3, 2, 1), "distinct and ascending"),
        ((1, 1, 2), "distinct and ascending"),
        ((), "lives already"),
        (tuple(range(1, 10)), "odd number"),
    ],
)
def test_what_is_no_place_is_refused(numbers: tuple[int, ...], text: str) -> None:
    with Town(1, founders=3) as town:
        town.found()
        outcome = town.finish(town.submit(town.leader(), place(*numbers)))
        assert isinstance(outcome.error, Rejected) and text in outcome.error.message
