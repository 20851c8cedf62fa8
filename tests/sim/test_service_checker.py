"""The checker of the metadata group's voters objects to what must not be."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.membership import PrepareMembership
from lockstep.metadata.groups.service import SERVICE, Service
from lockstep.metadata.transformations import Initialize
from lockstep.sim.checkers.log import check_voters, unsettled_voters
from lockstep.sim.checkers.violation import Violation
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


def values() -> tuple[ClusterMetadata, ClusterMetadata]:
    """A cluster of five with three voters, before and after a change of them began."""
    made = History()
    founders = tuple(founder(number, (number * 10,)) for number in range(1, 6))
    made.submit(Initialize("c", "n", founders, ids(1, 2, 3)))
    before = made.now
    return before, made.submit(PrepareMembership(ids(4), ids(1)))


def with_service(cluster: ClusterMetadata, **changes: object) -> ClusterMetadata:
    service: Service = msgspec.structs.replace(cluster.service, **changes)
    return cluster.changed(SERVICE.set(service))


def test_sound_steps_pass() -> None:
    before, begun = values()
    check_voters(before, begun)
    check_voters(begun, with_service(begun, voters=ids(1, 2, 3, 4)))


@pytest.mark.parametrize("voters", [(), (1, 4, 5), (1, 2, 3, 4, 5)])
def test_a_jump_of_voters_is_found(voters: tuple[int, ...]) -> None:
    _, begun = values()
    with pytest.raises(Violation, match="CMS-1"):
        check_voters(begun, with_service(begun, voters=ids(*voters)))


def test_a_change_that_nobody_began_is_found() -> None:
    before, _ = values()
    with pytest.raises(Violation, match="without a change"):
        check_voters(before, with_service(before, voters=ids(1, 2)))


def test_a_voter_that_leaves_is_found() -> None:
    _, begun = values()
    leaves = PrepareOperation(Decommission(NodeId(5))).apply(begun, 3)
    with pytest.raises(Violation, match="that node votes"):
        check_voters(begun, with_service(leaves, voters=ids(1, 2, 3, 5)))


def test_an_unfinished_change_is_not_settled() -> None:
    before, begun = values()
    assert "runs" in unsettled_voters(begun, None)
    assert unsettled_voters(before, None) == "nobody leads"


def test_a_change_that_leads_to_a_weaker_group_is_found_unless_it_was_asked_for() -> None:
    before, _ = values()
    for additions, removals, weaker in (((), (2, 3), True), ((4,), (3,), False)):
        entry = PrepareMembership(ids(*additions), ids(*removals))
        after = msgspec.structs.replace(entry.apply(before, before.epoch + 1), epoch=before.epoch + 1)
        if weaker:
            with pytest.raises(Violation, match="CMS-3"):
                check_voters(before, after)
            check_voters(with_service(before, size=1), with_service(after, size=1))
        else:
            check_voters(before, after)
