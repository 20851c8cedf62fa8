"""A command that no member of the management group can apply is taken out of its log (scenario 21)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lockstep.metadata.directory import LINEAGE
from lockstep.metadata.groups.management import Admit, Command, Host, ManagementState
from lockstep.node.membership.management_group import ManagementGroup
from lockstep.node.recovery.management_cutting import CutPlan
from lockstep.node.recovery.reset_service import Decided
from lockstep.recovery.management_cut import ManagementCut
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.errors import CannotApply, LockstepError, PreconditionError
from tests.node.support import Outcome, Town, keyspace
from tests.node.test_recovery import cluster_ids, leads, one_history

ALL = (1, 2, 3)
POISON = b"no command of any version"
#: A newcomer that the group let in and that was not registered yet, and one that a command behind the poison
#: would let in.
WAITING = Host("11111111-0000-4000-8000-000000000000", "127.0.0.8", 7000)
LATER = Host("22222222-0000-4000-8000-000000000000", "127.0.0.9", 7000)
PLACES = ("recovery.decided", "recovery.managed", "recovery.grouped", "recovery.moved")


def group(town: Town, number: int) -> ManagementGroup:
    found = town.node(number).membership.management.group
    assert found is not None
    return found


def first(town: Town) -> int:
    return next(number for number in ALL if group(town, number).is_leader)


def admit(town: Town, host: Host) -> Outcome:
    return town.begin(1, lambda node: node.membership.management.admit(host))


@contextmanager
def poisoned(seed: int = 1) -> Iterator[tuple[Town, int]]:
    """Three nodes whose members of the group all stopped at a command, and its index."""
    with Town(seed) as town:
        town.found()
        town.until(lambda: town.management_settled)
        assert town.finish(admit(town, WAITING)).error is None
        leader = group(town, first(town))
        town.until(lambda: all(group(town, n).state.index == leader.state.index for n in ALL))
        accepted = leader.driver.propose((POISON,))
        assert accepted is not None
        later = Command(b"l" * 16, leader.state.index, "test", Admit(LATER, 1))
        town.begin(first(town), lambda _node: leader.submit(later))
        town.until(lambda: all(group(town, n).broken is not None for n in ALL))
        yield town, leader.driver.raft.last_index - 1


def plan(town: Town, cut: ManagementCut, conductor: int = 2) -> Outcome:
    return town.finish(town.begin(conductor, lambda node: node.membership.cutting.plan(cut)))


def carry_out(town: Town, cut: ManagementCut, conductor: int = 2) -> Outcome:
    async def conduct(node: object) -> Decided:
        membership = town.node(conductor).membership
        told: CutPlan = await membership.cutting.plan(cut)
        return await membership.recovery.reset(told.planned.plan)

    return town.finish(town.begin(conductor, conduct))


def works(town: Town, former: str) -> bool:
    return (
        leads(town, ALL)
        and former not in cluster_ids(town, ALL)
        and all(town.node(n).membership.management.group is not None for n in ALL)
        and any(group(town, n).is_leader for n in ALL)
    )


def test_21_a_command_that_no_member_can_apply_is_taken_out() -> None:
    with poisoned() as (town, index):
        (former,) = cluster_ids(town, ALL)
        assert isinstance(group(town, 1).broken, CannotApply)
        assert f"management command {index} cannot be read" in str(group(town, 1).broken)
        refused = plan(town, ManagementCut(index, "operator"))
        assert isinstance(refused.error, PreconditionError) and "are committed" in refused.error.message
        told: CutPlan = plan(town, ManagementCut(index, "operator", committed=True)).value
        assert [one.kind for one in told.held[0].commands][:2] == ["unreadable", "admit"]
        assert LATER.host_id in told.held[0].commands[1].summary
        assert told.planned.source == 1 and all(one.has_before for one in told.held)
        assert "commands" in told.planned.plan.lost and told.planned.plan.absent == ()
        # Nothing is changed by a plan.
        assert cluster_ids(town, ALL) == {former} and town.node(1).log.cluster.epoch == town.newest.epoch
        town.finish(town.submit(town.leader(), keyspace("meanwhile")))
        assert carry_out(town, ManagementCut(index, "operator", committed=True)).error is None
        town.until(lambda: works(town, former))
        cluster = town.node(3).log.cluster
        (repaired,) = cluster.parts[LINEAGE]
        assert (repaired.kind, repaired.actor) == ("truncate-cmg", "operator")
        assert repaired.lost == told.planned.plan.lost and cluster.schema.by_name.get("meanwhile")
        state = group(town, 3).state
        assert WAITING.host_id in state.by_host_id and LATER.host_id not in state.by_host_id
        assert [link.cluster_id for link in state.lineage] == [former, cluster.identity.cluster_id]
        # It does its work again: who was behind what went is let in, and is not let in twice.
        for host in (LATER, WAITING):
            assert town.finish(admit(town, host)).error is None
        town.until(lambda: all(LATER.host_id in group(town, n).state.by_host_id for n in ALL))
        assert all(group(town, n).broken is None for n in ALL)
        town.finish(town.submit(town.leader(), keyspace("after")))
        town.agreed(*ALL)
        one_history(town, ALL)
        audit = town.node(1).membership.recovery.audit.records[-1]
        assert (audit.step, audit.actor) == ("applied", "operator") and repaired.lost in audit.text


def test_after_it_all_begin_alike_and_again_after_a_loss_of_power() -> None:
    with poisoned() as (town, index):
        (former,) = cluster_ids(town, ALL)
        assert carry_out(town, ManagementCut(index, "operator", committed=True)).error is None
        town.until(lambda: works(town, former))
        for number in ALL:
            town.process(number).crash("power")
        town.start(*ALL)
        town.until(lambda: works(town, former))
        town.until(lambda: len({group(town, n).state.digest for n in ALL}) == 1)
        assert all(WAITING.host_id in group(town, n).state.by_host_id for n in ALL)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("who", [1, 3])
def test_21_a_crash_on_the_way_is_gone_on_with(place: str, who: int) -> None:
    with poisoned() as (town, index):
        (former,) = cluster_ids(town, ALL)
        rule = CrashRule(label=place, process=f"n{who}", kind="power", hit=1, restart_after_s=1.0)
        town.world.probes.add(rule)
        assert carry_out(town, ManagementCut(index, "operator", committed=True)).error is None
        town.until(lambda: works(town, former), 120.0)
        assert rule.fired
        assert town.finish(admit(town, LATER)).error is None
        one_history(town, ALL)


def _snapshot(town: Town, number: int) -> None:
    one = group(town, number)
    one._compact(one.state.index, one.state)
    one.driver.raft.state.log.compact(one.state.index)


@pytest.mark.parametrize(("inside", "source"), [((1,), 2), (ALL, 0)])
def test_21_a_command_inside_a_snapshot_goes_too(inside: tuple[int, ...], source: int) -> None:
    """Some members, or all, have a snapshot with a command that is to go."""
    with Town(1) as town:
        town.found()
        town.until(lambda: town.management_settled)
        (former,) = cluster_ids(town, ALL)
        assert town.finish(admit(town, WAITING)).error is None
        leader = group(town, first(town))
        cut = leader.state.index + 1
        assert town.finish(admit(town, LATER)).error is None
        town.until(lambda: all(group(town, n).state.index == cut for n in ALL))
        for number in inside:
            _snapshot(town, number)
        town.wait(1)
        leader = group(town, first(town))
        assert leader.driver.propose((POISON,)) is not None
        town.until(lambda: all(group(town, n).broken is not None for n in ALL))
        wanted = ManagementCut(cut, "operator", committed=True)
        told: CutPlan = plan(town, wanted).value
        assert told.planned.source == source
        assert [one.has_before for one in told.held] == [n not in inside for n in ALL]
        assert carry_out(town, wanted).error is None
        town.until(lambda: works(town, former))
        state: ManagementState = group(town, 1).state
        assert LATER.host_id not in state.by_host_id
        assert (WAITING.host_id in state.by_host_id) is bool(source)
        assert ("snapshots hold the commands" in town.node(1).log.cluster.parts[LINEAGE][0].lost) is (
            not source
        )


def test_a_group_that_does_its_work_loses_nothing() -> None:
    with Town(1) as town:
        town.found()
        town.until(lambda: town.management_settled)
        index = group(town, 1).state.index
        refused = plan(town, ManagementCut(index, "operator", committed=True))
        assert isinstance(refused.error, PreconditionError) and "does its work" in refused.error.message
        beyond = plan(town, ManagementCut(index + 5, "operator", committed=True))
        assert isinstance(beyond.error, PreconditionError) and "the log ends at index" in beyond.error.message


def test_without_a_metadata_leader_it_is_refused_with_what_to_do() -> None:
    with poisoned() as (town, index):
        for number in (1, 3):
            town.process(number).crash("power")
        town.wait(8)
        refused: LockstepError | None = plan(town, ManagementCut(index, "operator", committed=True)).error
        assert isinstance(refused, PreconditionError) and "nobody leads the metadata group" in refused.message
        assert "cluster reset" in refused.hint
