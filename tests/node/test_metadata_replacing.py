"""Metadata are replaced on every replica: an entry that no node can apply is taken out of the log, struck at
every record; and what an operator brings goes past the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.log import metadata_state
from lockstep.node.log.metadata_member import MetadataMember
from lockstep.node.membership.identity import IdentityFile
from lockstep.node.recovery import applying
from lockstep.node.recovery.judging import as_target
from lockstep.node.recovery.messages import Decide
from lockstep.node.recovery.replacing import Replacing
from lockstep.recovery.plan import ResetPlan
from lockstep.recovery.replacing import FORCED, LOADED, Cut, Held, Put, begun, packed
from lockstep.recovery.steps import Phase
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.errors import CannotApply, PreconditionError, Rejected
from lockstep.values.ids import NodeId
from tests.node.support import Outcome, Town, keyspace

ALL: Final = (1, 2, 3)
POISON: Final = b"poison"
PLACES: Final = (
    "recovery.prepared",
    "recovery.activated",
    "recovery.moved_away",
    "recovery.replaced",
    "recovery.extended",
    "recovery.managed",
    "recovery.grouped",
    "recovery.moved",
    "recovery.applied",
)


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[int]], None]:
    """Have nodes find out, when they apply an entry, that they cannot."""
    apply, known = metadata_state.apply_entry, MetadataMember.known_value

    def of(_nodes: Iterable[int] = ()) -> None:
        def failing(before: ClusterMetadata, entry: LogEntry, registry: Any) -> ClusterMetadata:
            if POISON in entry.body:
                raise CannotApply(f"entry {entry.epoch} is poison")
            return apply(before, entry, registry)

        def unknown(
            member: MetadataMember, entry: LogEntry, before: ClusterMetadata
        ) -> ClusterMetadata | None:
            return None if POISON in entry.body else known(member, entry, before)

        monkeypatch.setattr(metadata_state, "apply_entry", failing)
        monkeypatch.setattr(MetadataMember, "known_value", unknown)

    return of


def broken(town: Town) -> int:
    """Have every node break at an entry; its epoch."""
    town.keeps_broken = True
    town.found()
    town.finish(town.submit(town.leader(), keyspace("before")))
    town.agreed(*ALL)
    epoch = town.newest.epoch + 1
    town.submit(town.leader(), keyspace("poison"))
    town.until(lambda: all(isinstance(town.ended.get(f"n{n}"), CannotApply) for n in ALL))
    # What follows is another history.
    town.world.monitors.remove(town.log)
    return epoch


def part(town: Town, number: int) -> Replacing:
    node = town.node(number)
    return Replacing(node.runtime, node.log, node.membership.recovery)


def ask(town: Town, number: int, work: Callable[[Replacing], Any]) -> Outcome:
    return town.finish(town.begin(number, lambda _node: work(part(town, number))))


def held(town: Town, epoch: int, numbers: Iterable[int] = ALL) -> list[Held]:
    found = [ask(town, number, lambda one: one.hold(epoch)) for number in numbers]
    assert all(one.error is None for one in found), [one.error for one in found]
    return [one.value for one in found]


def planned(town: Town, cut: Cut, numbers: Iterable[int] = ALL, planner: int = 1) -> Outcome:
    told = held(town, cut.epoch, numbers)
    absent = [number for number in ALL if number not in numbers]
    return ask(town, planner, lambda one: one.cut(told, absent, cut))


def decided(town: Town, number: int, plan: ResetPlan, *, go: bool = True) -> Outcome:
    desk = town.node(number).membership.recovery
    return town.finish(town.begin(number, lambda _node: desk.decide(Decide(plan.attempt, go))))


def goes_on(town: Town, plan: ResetPlan, numbers: Iterable[int] = ALL) -> bool:
    nodes = [town.node(number) for number in numbers]
    return (
        town.ready(*numbers)
        and {node.log.cluster.identity.cluster_id for node in nodes} == {plan.cluster_id}
        and any(node.log.is_leader for node in nodes)
    )


def one_history(town: Town, numbers: Iterable[int] = ALL) -> None:
    nodes = [town.node(number) for number in numbers]
    shared = min(node.log.state.epoch for node in nodes)
    for epoch in range(1, shared + 1):
        assert len({node.log.state.hash_at(epoch) for node in nodes} - {None}) <= 1, epoch


def carried_out(town: Town, plan: ResetPlan, numbers: Iterable[int] = ALL) -> None:
    for number in numbers:
        assert ask(town, number, lambda one: one.prepare(plan)).error is None
    for number in numbers:
        assert decided(town, number, plan).error is None


def test_21_an_entry_that_no_node_can_apply_is_taken_out(poisoned: Any) -> None:
    poisoned()
    with Town(1) as town:
        epoch = broken(town)
        told = held(town, epoch)
        assert all(one.broken and one.committed == epoch for one in told)
        assert [one.entries[0].epoch for one in told] == [epoch] * 3
        refused = planned(town, Cut(epoch, "operator"))
        assert isinstance(refused.error, PreconditionError) and "are committed" in refused.error.message
        plan: ResetPlan = planned(town, Cut(epoch, "operator", committed=True)).value
        assert plan.base_epoch == epoch - 1 and plan.lost == f"entries {epoch} to {epoch}"
        carried_out(town, plan)
        town.until(lambda: goes_on(town, plan))
        cluster = town.node(2).log.cluster
        assert cluster.schema.by_name.get("before") and not cluster.schema.by_name.get("poison")
        assert cluster.identity.lineage[-1] == plan.cluster_id and cluster.epoch >= epoch + 1
        leader = town.leader()
        assert town.finish(town.submit(leader, keyspace("after"))).error is None
        town.until(lambda: all(town.node(n).log.cluster.schema.by_name.get("after") for n in ALL))
        one_history(town)
        steps = [one.step for one in town.node(3).membership.recovery.audit.records]
        assert steps == ["prepared", "activated", "applied"]
        kept = town.world.processes["n2"].disk.names("metadata-replaced")
        assert kept and all(name.startswith(plan.attempt) for name in kept)
        # All of it also holds after the next start.
        for number in ALL:
            town.process(number).crash("power")
        town.start(*ALL)
        town.until(lambda: goes_on(town, plan))
        one_history(town)


def test_21_below_what_nodes_have_applied_epochs_do_not_go_back(poisoned: Any) -> None:
    """The command is in the value already, and two more have followed it."""
    poisoned()
    with Town(1) as town:
        town.keeps_broken = True
        town.found()
        for name in ("first", "second", "third"):
            town.finish(town.submit(town.leader(), keyspace(name)))
        town.agreed(*ALL)
        second = next(entry.epoch for entry in town.node(1).log.state.entries if b"second" in entry.body)
        town.submit(town.leader(), keyspace("poison"))
        town.until(lambda: all(isinstance(town.ended.get(f"n{n}"), CannotApply) for n in ALL))
        town.world.monitors.remove(town.log)
        shown = town.node(1).log.state.epoch
        plan: ResetPlan = planned(town, Cut(second, "operator", committed=True)).value
        assert plan.base_epoch == shown, "counted on from what nodes have shown"
        carried_out(town, plan)
        town.until(lambda: goes_on(town, plan))
        schema = town.node(3).log.cluster.schema.by_name
        assert "first" in schema and not {"second", "third", "poison"} & set(schema)
        assert town.finish(town.submit(town.leader(), keyspace("second"))).error is None


def test_a_group_that_does_its_work_loses_nothing() -> None:
    with Town(1) as town:
        town.found()
        epoch = town.newest.epoch
        refused = planned(town, Cut(epoch, "operator", committed=True))
        assert isinstance(refused.error, PreconditionError) and "does its work" in refused.error.message
        assert isinstance(planned(town, Cut(epoch + 5, "operator")).error, PreconditionError)
        assert all(town.node(n).membership.recovery.file.standing.phase is Phase.IDLE for n in ALL)


def test_what_was_given_up_changes_nothing(poisoned: Any) -> None:
    poisoned()
    with Town(1) as town:
        epoch = broken(town)
        plan: ResetPlan = planned(town, Cut(epoch, "operator", committed=True)).value
        for number in (1, 2):
            assert ask(town, number, lambda one: one.prepare(plan)).error is None
        for number in (1, 2):
            assert decided(town, number, plan, go=False).error is None
        assert all(town.node(n).membership.recovery.file.standing.phase is Phase.IDLE for n in ALL)
        assert isinstance(decided(town, 1, plan).error, Rejected)


def test_21_also_when_all_of_them_were_started_again(poisoned: Any) -> None:
    """Who knows that the entry is committed comes up broken; one that does not waits for others."""
    poisoned()
    with Town(1) as town:
        epoch = broken(town)
        for number in ALL:
            town.process(number).crash("power")
        town.start(*ALL)
        town.wait(10)
        assert len(town.ended) >= 2, "without a majority"
        told = held(town, epoch)
        assert all(one.last_epoch == epoch for one in told) and sum(bool(one.broken) for one in told) >= 2
        plan: ResetPlan = planned(town, Cut(epoch, "operator", committed=True)).value
        assert plan.raft_index > 1 and plan.raft_term > 1
        carried_out(town, plan)
        town.until(lambda: goes_on(town, plan))
        assert town.finish(town.submit(town.leader(), keyspace("after"))).error is None
        one_history(town)


def test_an_absent_node_is_brought_without_what_was_taken_out(poisoned: Any) -> None:
    """It was up, broken too, and nobody asked it."""
    poisoned()
    with Town(1) as town:
        epoch = broken(town)
        plan: ResetPlan = planned(town, Cut(epoch, "operator", committed=True), (1, 2)).value
        assert plan.absent == (3,) and "only nodes 3" in plan.lost
        carried_out(town, plan, (1, 2))
        town.until(lambda: goes_on(town, plan, (1, 2)))
        target = as_target(town.node(1).log, 512)
        desk = town.node(3).membership.recovery
        said, _ = town.finish(town.begin(3, lambda _node: desk.migrate(target, dry_run=False))).value
        assert [one.refused for one in said if one.node == 3] == [""]
        town.until(lambda: goes_on(town, plan, ALL))
        one_history(town)


def put(town: Town, told: bytes, wish: Put, numbers: Iterable[int] = ALL) -> Outcome:
    found = held(town, 0, numbers)
    planner = max(found, key=lambda one: one.survey.epoch).survey.node

    async def plan(one: Replacing) -> ResetPlan:
        return one.put(told, found, wish)

    return ask(town, planner, plan)


def test_metadata_of_an_operator_take_the_place_of_those_of_a_living_cluster() -> None:
    """They are from before two changes; who has the plan decides nothing any more."""
    with Town(1) as town:
        town.found()
        town.finish(town.submit(town.leader(), keyspace("kept")))
        town.agreed(*ALL)
        told = packed(town.node(1).log.cluster)
        for name in ("gone", "too"):
            town.finish(town.submit(town.leader(), keyspace(name)))
        town.agreed(*ALL)
        town.world.monitors.remove(town.log)
        newest = town.node(1).log.state.epoch
        plan: ResetPlan = put(town, told, Put(LOADED, "operator")).value
        assert plan.base_epoch == newest
        for number in ALL:
            assert ask(town, number, lambda one: one.prepare(plan)).error is None
        town.wait(5)
        assert not any(town.node(n).log.is_leader for n in ALL), "silent from the plan on"
        for number in ALL:
            assert decided(town, number, plan).error is None
        town.until(lambda: goes_on(town, plan))
        schema = town.node(3).log.cluster.schema.by_name
        assert "kept" in schema and not {"gone", "too"} & set(schema)
        assert town.finish(town.submit(town.leader(), keyspace("gone"))).error is None
        one_history(town)


def test_who_gave_a_plan_up_takes_part_again() -> None:
    with Town(1) as town:
        town.found()
        before = town.node(1).log.cluster.identity.cluster_id
        plan: ResetPlan = put(town, b"", Put(FORCED, "operator", voters=(NodeId(1),))).value
        for number in ALL:
            assert ask(town, number, lambda one: one.prepare(plan)).error is None
        for number in ALL:
            assert decided(town, number, plan, go=False).error is None
        town.wait(1)
        town.until(lambda: town.ready(*ALL) and any(town.node(n).log.is_leader for n in ALL))
        assert {town.node(n).log.cluster.identity.cluster_id for n in ALL} == {before}
        assert town.finish(town.submit(town.leader(), keyspace("after"))).error is None


def test_a_change_behind_the_survey_ends_the_attempt() -> None:
    """What was acknowledged meanwhile is not in the plan: nobody takes part."""
    with Town(1) as town:
        town.found()
        plan: ResetPlan = put(town, b"", Put(FORCED, "operator", voters=(NodeId(1),))).value
        town.finish(town.submit(town.leader(), keyspace("meanwhile")))
        town.agreed(*ALL)
        refused = [ask(town, number, lambda one: one.prepare(plan)).error for number in ALL]
        assert all(isinstance(one, Rejected) and "applied epoch" in one.message for one in refused)
        assert town.finish(town.submit(town.leader(), keyspace("after"))).error is None


def test_one_voter_of_which_every_other_is_gone_is_a_cluster_again() -> None:
    with Town(1) as town:
        town.found()
        town.finish(town.submit(town.leader(), keyspace("before")))
        town.agreed(*ALL)
        for number in (2, 3):
            town.process(number).crash("power")
        town.wait(5)
        town.world.monitors.remove(town.log)
        plan: ResetPlan = put(town, b"", Put(FORCED, "operator", voters=(NodeId(1),)), (1,)).value
        assert plan.voters == (1,) and plan.absent == (2, 3)
        carried_out(town, plan, (1,))
        town.until(lambda: goes_on(town, plan, (1,)))
        assert town.finish(town.submit(1, keyspace("after"))).error is None
        # The others have a prefix of its history.
        target = as_target(town.node(1).log, 512)
        town.start(2, 3)
        town.until(lambda: town.ready(2, 3) and any(town.node(n).log.is_leader for n in (2, 3)))
        desk = town.node(2).membership.recovery
        said, _ = town.finish(town.begin(2, lambda _node: desk.migrate(target, dry_run=False))).value
        assert [(one.node, one.refused) for one in said] == [(2, ""), (3, "")]
        town.until(lambda: goes_on(town, plan, ALL), 120.0)
        one_history(town)


def test_16_who_slept_through_ten_repairs_is_judged_against_each() -> None:
    """Voters change from one to two and back; a node that took no part has only a prefix."""
    with Town(1) as town:
        town.found()
        town.agreed(*ALL)
        town.process(3).crash("power")
        town.wait(5)
        town.world.monitors.remove(town.log)
        for number in range(10):
            voters = (NodeId(1),) if number % 2 else (NodeId(1), NodeId(2))
            wish = Put(FORCED, "operator", voters=voters)
            plan: ResetPlan = put(town, b"", wish, (1, 2)).value
            carried_out(town, plan, (1, 2))
            town.until(lambda plan=plan: goes_on(town, plan, (1, 2)))  # type: ignore[misc]
            done = town.finish(town.submit(town.leader(), keyspace(f"k{number}")))
            assert done.error is None
            town.until(lambda: town.node(1).log.state.epoch == town.node(2).log.state.epoch)
        cluster = town.node(1).log.cluster
        assert len(cluster.identity.lineage) == 11
        kinds = [one.repair.kind for one in town.node(1).membership.management.state.lineage]
        assert kinds[1:] == [FORCED] * 10
        town.start(3)
        town.until(lambda: town.node(3).is_loaded)
        town.wait(2)
        target = as_target(town.node(1).log, 512)
        desk = town.node(3).membership.recovery
        first = town.node(3).log.state.hash_at(town.node(3).log.state.epoch)
        said, _ = town.finish(town.begin(3, lambda _node: desk.migrate(target, dry_run=True))).value
        assert [(one.node, one.refused) for one in said] == [(3, "")] and first
        # A fork that it does not share is seen through all of them.
        forged = msgspec.structs.replace(
            target,
            hashes=tuple((epoch, b"another") for epoch, _ in target.hashes),
            repairs=(msgspec.structs.replace(target.repairs[0], hash=b"another"), *target.repairs[1:]),
        )
        said, _ = town.finish(town.begin(3, lambda _node: desk.migrate(forged, dry_run=True))).value
        assert said[0].refused and said[0].diverged_at
        town.finish(town.begin(3, lambda _node: desk.migrate(target, dry_run=False)))
        town.until(lambda: goes_on(town, plan, ALL), 120.0)
        one_history(town)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_21_a_crash_at_every_record_leads_to_the_same(place: str, poisoned: Any) -> None:
    poisoned()
    with Town(1) as town:
        epoch = broken(town)
        plan: ResetPlan = planned(town, Cut(epoch, "operator", committed=True)).value
        for number in ALL:
            if (number, place) != (2, "recovery.prepared"):
                assert ask(town, number, lambda one: one.prepare(plan)).error is None
        town.world.probes.add(CrashRule(label=place, process="n2", kind="power", hit=1))
        if place == "recovery.prepared":
            town.begin(2, lambda _node: part(town, 2).prepare(plan))
        else:
            desk = town.node(2).membership.recovery
            town.begin(2, lambda _node: desk.decide(Decide(plan.attempt, True)))
        town.until(lambda: not town.process(2).alive)
        for number in (1, 3):
            assert decided(town, number, plan).error is None
        town.until(lambda: goes_on(town, plan, (1, 3)))
        town.start(2)
        if place == "recovery.prepared":
            # It comes up broken and is told again, or hears of the decision from those that went on.
            town.wait(5)
            if "n2" in town.ended:
                assert decided(town, 2, plan).error is None
        town.until(lambda: goes_on(town, plan, ALL), 120.0)
        one_history(town)


async def _nothing(*_: object) -> None:
    """Planted in the place of a step."""


def _keep_the_journal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(applying, "_begin_metadata_group", _nothing)


def _keep_the_id(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdentityFile, "move", _nothing)


def _forget_the_repair(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(applying, "replace_metadata", _own_value)


async def _own_value(runtime: Any, registry: Any, plan: ResetPlan) -> ClusterMetadata:
    _, after = begun(plan, registry)
    return after


@pytest.mark.parametrize("plant", [_keep_the_journal, _keep_the_id, _forget_the_repair])
def test_planted_bugs_of_a_truncation_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], poisoned: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    poisoned()
    with Town(1) as town:
        epoch = broken(town)
        plan: ResetPlan = planned(town, Cut(epoch, "operator", committed=True)).value
        plant(monkeypatch)
        with pytest.raises(AssertionError):
            carried_out(town, plan)
            town.until(lambda: goes_on(town, plan))
            assert town.finish(town.submit(town.leader(), keyspace("after"))).error is None
            one_history(town)
            for number in ALL:
                town.process(number).crash("power")
            town.start(*ALL)
            town.until(lambda: goes_on(town, plan))
