"""Disasters that follow each other, and what else repairs meet. Numbers are those of the scenarios."""

from __future__ import annotations

from lockstep.metadata.directory import LINEAGE, NodeState
from lockstep.metadata.groups.service import GlobalState
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.recovery.reset_service import Decided
from lockstep.recovery.plan import ResetPlan, Wish
from lockstep.recovery.steps import Phase
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.errors import PreconditionError
from tests.node.support import Outcome, Town, keyspace, leave
from tests.node.test_recovery import (
    LEFT,
    LOST,
    cluster_ids,
    former_id,
    leads,
    migrate,
    one_history,
    reset,
    struck,
)
from tests.recovery.test_plan import following


def test_16_a_node_that_slept_through_ten_repairs_is_judged_against_each() -> None:
    with struck() as town:
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        town.world.monitors.remove(town.log)  # Several incarnations have several histories.
        for _ in range(9):
            voter = next(number for number in LEFT if town.node(number).log.is_leader)
            other = 9 - voter
            before = town.node(other).log.cluster.identity.cluster_id
            # What only the voter applied is lost with it.
            town.wait(3)
            town.until(lambda: len({town.node(n).log.state.epoch for n in LEFT}) == 1)
            town.process(voter).crash("power")
            town.wait(4)
            assert town.finish(reset(town, other)).error is None
            town.until(lambda n=other, was=before: town.ready(n) and was not in cluster_ids(town, (n,)))  # type: ignore[misc]
            town.until(lambda n=other: town.node(n).log.is_leader)  # type: ignore[misc]
            town.start(voter)
            town.until(lambda n=voter: town.ready(n))  # type: ignore[misc]
            assert [one.refused for one in migrate(town, voter, other).value[0]] == [""]
            town.until(lambda: town.ready(*LEFT) and len(cluster_ids(town, LEFT)) == 1)
        leader = next(number for number in LEFT if town.node(number).log.is_leader)
        assert len(town.node(leader).log.cluster.identity.lineage) == 11
        # One that holds a prefix goes; two that went on by themselves have diverged since the first repair.
        town.start(3)
        town.until(lambda: town.ready(3))
        assert [one.refused for one in migrate(town, 3, leader).value[0]] == [""]
        town.until(lambda: town.ready(3, *LEFT) and len(cluster_ids(town, (3, *LEFT))) == 1)
        one_history(town, (3, *LEFT))
        town.start(1, 2)
        town.until(lambda: town.ready(1, 2) and any(town.node(n).log.is_leader for n in (1, 2)))
        town.finish(town.submit(1, keyspace("elsewhere")))
        town.wait(2)
        said = migrate(town, 1, leader).value[0]
        first = town.node(leader).log.cluster.parts[LINEAGE][0]
        assert [one.diverged_at for one in said] == [first.epoch + 1] * 2


def test_17_a_second_disaster_finds_the_voters_of_the_first_repair() -> None:
    with struck() as town:
        first = town.finish(reset(town, 4))
        assert first.value.plan.voters == (4,)
        town.until(lambda: leads(town, LEFT))
        town.process(4).crash("power")
        town.wait(5)
        outcome = town.finish(reset(town, 5))
        assert outcome.error is None
        assert outcome.value.plan.voters == (5,) and set(outcome.value.plan.absent) == {1, 2, 3, 4}
        town.until(lambda: leads(town, (5,)))
        town.finish(town.submit(5, keyspace("after")))


def test_11_what_was_applied_just_before_the_power_failed_counts() -> None:
    with struck() as town:
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        town.world.monitors.remove(town.log)
        town.start(*LOST)
        town.until(lambda: town.ready(*LOST) and any(town.node(n).log.is_leader for n in LOST))
        leader = next(n for n in LOST if town.node(n).log.is_leader)
        town.finish(town.submit(leader, keyspace("elsewhere")))
        for number in LOST:
            town.process(number).crash("power")
        town.wait(1)
        town.start(leader)
        town.until(lambda: town.ready(leader))
        (said,) = migrate(town, leader, 4).value[0]
        assert said.diverged_at, said


def test_22_a_group_is_available_then_degraded_then_not_and_back_after_the_repair() -> None:
    with Town(1, founders=5) as town:
        town.found()

        def words() -> set[GlobalState]:
            groups = town.node(4).membership.groups
            return {groups.peers(group).state for group in (METADATA_GROUP, MANAGEMENT_GROUP)}

        assert words() == {GlobalState.AVAILABLE}
        # Nobody is chosen in its place meanwhile.
        town.process(1).crash("power")
        town.until(lambda: words() == {GlobalState.DEGRADED}, 10.0)
        town.process(2).crash("power")
        town.until(lambda: words() == {GlobalState.UNAVAILABLE}, 10.0)
        town.until(lambda: not town.node(5).membership.groups.peers(METADATA_GROUP).available, 10.0)
        assert town.finish(reset(town, 4)).error is None
        town.until(lambda: town.ready(4) and words() == {GlobalState.AVAILABLE})


def test_an_entry_that_comes_after_the_decision_is_not_applied_any_more() -> None:
    """A leader of the former id that comes alive just then is not followed."""
    with struck() as town:
        state = town.node(5).log.state
        late = following(state.current, 1, term=9)
        rule = CrashRule(
            label="recovery.activated", process="n5", kind="", hit=1, on_fired=lambda _name: state.offer(late)
        )
        town.world.probes.add(rule)
        assert town.finish(reset(town, 4)).error is None
        town.until(lambda: leads(town, LEFT))
        assert rule.fired and not town.ended
        one_history(town, LEFT)


def test_24_the_epoch_goes_on_upwards_under_the_new_id_and_nodes_come_and_go() -> None:
    """Who compares (place of the id in the lineage, epoch) never sees it fall."""
    with Town(1, founders=5) as town:
        town.found()
        for number in LOST:
            town.process(number).crash("power")
        town.wait(5)
        seen = [(1, town.newest.epoch)]

        def watch(_now: int, label: str, kind: str, facts: dict[str, object]) -> None:
            if kind == "metadata.applied" and label.startswith("n4."):
                cluster = facts["cluster"]
                seen.append((len(cluster.identity.lineage), cluster.epoch))  # type: ignore[attr-defined]

        town.world.monitors.append(watch)
        epoch = town.newest.epoch
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        town.start(6)
        town.until(lambda: town.ready(6), 120.0)
        assert town.newest.epoch > epoch and town.state_of(6) is NodeState.NORMAL
        leader = next(number for number in (*LEFT, 6) if town.node(number).log.is_leader)
        other = 5 if leader == 4 else 4
        assert town.finish(town.submit(leader, leave(6))).error is None
        town.until(lambda: town.state_of(6) is NodeState.LEFT, 120.0)
        assert seen == sorted(seen) and {place for place, _ in seen} == {1, 2}
        town.agreed(leader, other)


def test_25_participants_that_are_cut_apart_after_they_were_asked_change_nothing() -> None:
    with struck() as town:
        former = former_id(town)
        desk = town.node(4).membership.recovery

        async def plan(_node: object) -> ResetPlan:
            return await desk.plan(Wish())

        made: Outcome = town.finish(town.begin(4, plan))
        assert made.value.participants == LEFT
        town.world.network.partition(["127.0.0.4"], ["127.0.0.5"])

        async def apply(_node: object) -> Decided:
            return await desk.reset(made.value)

        outcome = town.finish(town.begin(4, apply))
        assert isinstance(outcome.error, PreconditionError) and "nothing was changed" in outcome.error.message
        town.world.network.heal()
        town.wait(15)
        assert cluster_ids(town, LEFT) == {former}
        assert town.node(4).membership.recovery.file.standing.phase is Phase.IDLE
        assert town.finish(reset(town, 4)).error is None, "planned again, it goes on"
        town.until(lambda: leads(town, LEFT))
