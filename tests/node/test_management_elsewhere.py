"""The management group on nodes that an operator named, apart from the voters of the metadata group."""

from __future__ import annotations

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.placing import PlaceManagement, named_managers
from lockstep.metadata.groups.service import GlobalState
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.node.support import Town, keyspace, leave


def place(*members: int) -> PlaceManagement:
    return PlaceManagement(tuple(NodeId(member) for member in members))


def members(town: Town) -> tuple[int, ...]:
    """Of the group, as whoever leads it has them and all of it is committed; empty without a leader."""
    for node in town.nodes.values():
        group = node.membership.management.group if node.ready else None
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
