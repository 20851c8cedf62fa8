"""The management group lost alone, apart from the voters: the metadata log gives the cluster another id."""

from __future__ import annotations

import pytest

from lockstep.metadata.directory import LINEAGE
from lockstep.metadata.groups.membership_step import Observed, plan
from lockstep.node.recovery.reset_service import Decided
from lockstep.recovery.plan import Wish
from lockstep.recovery.steps import Phase
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.errors import PreconditionError
from lockstep.values.ids import NodeId
from tests.node.support import Outcome, Town, keyspace
from tests.node.test_management_elsewhere import apart, members
from tests.node.test_recovery import cluster_ids, leads, migrate, one_history

PLACES = (
    "recovery.decided",
    "recovery.extended",
    "recovery.managed",
    "recovery.grouped",
    "recovery.moved",
)
LEFT = (1, 2, 3, 5)


def alone(seed: int = 1) -> Town:
    """Five nodes; 1 to 3 vote on the metadata, and node 4, which was the management group, is dead."""
    town = Town(seed, founders=5)
    town.found()
    town.finish(town.submit(town.leader(), keyspace("before")))
    apart(town, 4)
    town.agreed(*LEFT, 4)
    town.process(4).crash("power")
    town.wait(8)
    return town


def reset(town: Town, conductor: int, wish: Wish) -> Outcome:
    async def conduct(_node: object) -> Decided:
        desk = town.node(conductor).membership.recovery
        return await desk.reset(await desk.plan(wish))

    return town.begin(conductor, conduct)


def managed_by(*nodes: int, **more: object) -> Wish:
    return Wish(tuple(NodeId(node) for node in nodes), actor="operator", **more)  # type: ignore[arg-type]


def gone_on(town: Town, former: str, *numbers: int) -> bool:
    return leads(town, numbers) and former not in cluster_ids(town, numbers)


def test_1_the_management_group_is_made_anew_and_who_was_away_migrates() -> None:
    with alone() as town:
        (former,) = cluster_ids(town, LEFT)
        epoch = town.newest.epoch
        outcome = town.finish(reset(town, 2, managed_by(2)))
        assert outcome.error is None and outcome.value.plan.by_log
        town.until(lambda: gone_on(town, former, *LEFT))
        cluster = town.node(5).log.cluster
        assert tuple(cluster.voters) == (1, 2, 3) and members(town) == (2,)
        (repaired,) = cluster.parts[LINEAGE]
        assert (repaired.kind, repaired.epoch, repaired.lost) == ("management", epoch, "")
        town.finish(town.submit(town.leader(), keyspace("after")))
        town.agreed(*LEFT)
        town.world.monitors.remove(town.log)  # Two incarnations have two histories from here on.
        town.start(4)
        town.until(lambda: town.ready(4))
        town.wait(5)
        assert cluster_ids(town, (4,)) == {former}
        assert [one.refused for one in migrate(town, 4, 5).value[0]] == [""]
        town.until(lambda: town.ready(4) and len(cluster_ids(town, (*LEFT, 4))) == 1)
        one_history(town, (*LEFT, 4))
        assert town.node(4).log.cluster.schema.by_name.get("after")
        assert all(town.node(n).membership.recovery.file.standing.phase is Phase.IDLE for n in (*LEFT, 4))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("who", [1, 3, 5])
def test_6_and_7_a_crash_on_the_way_is_gone_on_with(place: str, who: int) -> None:
    """The metadata's leader (1), a voter (3) or another node (5) loses power there."""
    with alone() as town:
        (former,) = cluster_ids(town, LEFT)
        rule = CrashRule(label=place, process=f"n{who}", kind="power", hit=1, restart_after_s=1.0)
        town.world.probes.add(rule)
        assert town.finish(reset(town, 2, managed_by(1, 2, 3))).error is None
        town.until(lambda: gone_on(town, former, *LEFT), 120.0)
        assert rule.fired and len(town.logged("recovery.followed", f"n{who}")) == 1
        town.finish(town.submit(town.leader(), keyspace("after")))
        town.agreed(*LEFT)
        one_history(town, LEFT)


def test_a_voter_that_hears_only_the_greeting_knows_that_it_was_decided() -> None:
    with alone() as town:
        (former,) = cluster_ids(town, LEFT)
        heard = town.node(3).log.state.offer
        town.node(3).log.state.offer = lambda entries: town.node(3).log.state.epoch  # type: ignore[method-assign]
        town.finish(reset(town, 2, managed_by(2)))
        town.until(lambda: gone_on(town, former, 1, 2, 5))
        assert cluster_ids(town, (3,)) == {former}
        town.node(3).log.state.offer = heard  # type: ignore[method-assign]
        town.until(lambda: gone_on(town, former, *LEFT), 120.0)
        assert town.world.probes.counts["recovery.heard_by_greeting"]


def test_a_voter_that_has_not_heard_of_it_gives_its_vote_away_before_it_migrates() -> None:
    with alone() as town:
        (former,) = cluster_ids(town, LEFT)
        deaf = town.node(3)
        assert deaf.log.driver is not None
        deaf.log.driver.received = lambda *_: None  # type: ignore[method-assign]
        deaf.log.catch_up.heard = lambda *_: None  # type: ignore[method-assign]
        deaf.log.catch_up._want = lambda *_: None  # type: ignore[method-assign]
        assert town.finish(reset(town, 2, managed_by(2))).error is None
        town.until(lambda: gone_on(town, former, 1, 2, 5))
        assert cluster_ids(town, (3,)) == {former} and 3 in town.node(1).log.cluster.voters
        (said,) = [one for one in migrate(town, 3, 5).value[0] if one.node == 3]
        assert "had no part in it yet" in said.refused
        change = plan(town.node(1).log.cluster, (NodeId(1), NodeId(2), NodeId(5)), Observed(), "asked for", 3)
        leader = next(n for n in (1, 2, 5) if town.node(n).log.is_leader)
        assert town.finish(town.submit(leader, change)).error is None
        town.until(lambda: tuple(town.node(5).log.cluster.voters) == (1, 2, 5), 120.0)
        assert [one.refused for one in migrate(town, 3, 5).value[0] if one.node == 3] == [""]
        town.until(lambda: town.ready(3) and gone_on(town, former, *LEFT), 120.0)
        town.agreed(*LEFT)
        one_history(town, LEFT)


def test_4_both_groups_that_work_are_left_alone() -> None:
    with Town(1, founders=5) as town:
        town.found()
        apart(town, 4)
        outcome = town.finish(reset(town, 2, managed_by(2)))
        assert isinstance(outcome.error, PreconditionError) and "has a majority" in outcome.error.message
        outcome = town.finish(reset(town, 2, Wish(keeps_managers=True)))
        assert isinstance(outcome.error, PreconditionError) and "has a majority" in outcome.error.message
