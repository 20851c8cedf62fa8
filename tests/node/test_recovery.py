"""Both groups made anew after their majority was lost, struck at every record; and who may come back.

Numbers are those of the scenarios that disasters of system groups are tried by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pytest

from lockstep.metadata.directory import LINEAGE
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.node.node import Node
from lockstep.node.recovery import applying, audit_file
from lockstep.node.recovery.judging import as_target
from lockstep.node.recovery.reset_service import Decided
from lockstep.recovery.audit import problem_in
from lockstep.recovery.plan import Wish
from lockstep.recovery.steps import Phase
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.errors import PreconditionError, Rejected
from tests.node.support import Outcome, Town, keyspace

#: What a participant makes durable, in order.
PLACES = (
    "recovery.prepared",
    "recovery.activated",
    "recovery.extended",
    "recovery.managed",
    "recovery.grouped",
    "recovery.moved",
    "recovery.applied",
)
LOST, LEFT = (1, 2, 3), (4, 5)


def struck(seed: int = 1) -> Town:
    """Five nodes of which the voters 1 to 3 died; the log has a keyspace."""
    town = Town(seed, founders=5)
    town.found()
    assert tuple(town.newest.voters) == LOST
    town.finish(town.submit(town.leader(), keyspace("before")))
    town.agreed(*LOST, *LEFT)
    for number in LOST:
        town.process(number).crash("power")
    town.wait(5)
    return town


ANY: Final = Wish()


def reset(town: Town, conductor: int, wish: Wish = ANY) -> Outcome:
    async def conduct(node: object) -> Decided:
        desk = town.node(conductor).membership.recovery
        return await desk.reset(await desk.plan(wish))

    return town.begin(conductor, conduct)


def cluster_ids(town: Town, numbers: Iterable[int]) -> set[str]:
    return {town.node(number).log.cluster.identity.cluster_id for number in numbers}


def leads(town: Town, numbers: Iterable[int]) -> bool:
    """Whether one of them leads each of the groups, and all are of one cluster."""
    nodes = [town.node(number) for number in numbers if town.ready(number)]
    groups = [node.membership.management.group for node in nodes]
    return (
        len(nodes) == len(tuple(numbers))
        and len({node.log.cluster.identity.cluster_id for node in nodes}) == 1
        and any(node.log.is_leader for node in nodes)
        and any(group is not None and group.is_up_to_date for group in groups)
    )


def one_history(town: Town, numbers: Iterable[int]) -> None:
    """No two nodes of one cluster id have different entries at one epoch."""
    nodes = [town.node(number) for number in numbers]
    shared = min(node.log.state.epoch for node in nodes)
    for epoch in range(1, shared + 1):
        assert len({node.log.state.hash_at(epoch) for node in nodes} - {None}) <= 1, epoch


def former_id(town: Town) -> str:
    (found,) = cluster_ids(town, LEFT)
    return found


def test_the_rest_goes_on_under_another_id() -> None:
    with struck() as town:
        before = former_id(town)
        outcome = town.finish(reset(town, 4))
        assert outcome.error is None and outcome.value.told == LEFT
        town.until(lambda: leads(town, LEFT))
        cluster = town.node(4).log.cluster
        assert cluster.identity.lineage == (before, outcome.value.plan.cluster_id)
        assert tuple(cluster.voters) == outcome.value.plan.voters == (4,), "two that are left have one voter"
        assert cluster.service.recovery_generation == 1 and cluster.schema.by_name.get("before")
        state = town.node(4).membership.management.state
        assert [link.cluster_id for link in state.lineage] == list(cluster.identity.lineage)
        assert state.lineage[1].repair.kind == "reset"
        town.finish(town.submit(4, keyspace("after")))
        town.agreed(*LEFT)
        one_history(town, LEFT)


def steps(town: Town, number: int) -> list[str]:
    """What the audit of a node has, with who asked for it."""
    records = town.node(number).membership.recovery.audit.records
    assert problem_in(records) is None
    assert {one.actor for one in records} <= {"operator"}
    return [one.step for one in records]


def test_each_step_of_a_repair_is_in_the_audit_of_every_node() -> None:
    with struck() as town:
        town.finish(reset(town, 4, Wish(actor="operator")))
        town.until(lambda: leads(town, LEFT))
        assert steps(town, 4) == ["planned", "prepared", "activated", "decided", "applied"]
        assert steps(town, 5) == ["prepared", "activated", "applied"]
        (applied,) = [one for one in town.node(5).membership.recovery.audit.records if one.step == "applied"]
        assert applied.cluster_id == town.node(5).log.cluster.identity.cluster_id and applied.attempt
        town.start(1)
        town.until(lambda: town.node(1).is_loaded)
        migrate(town, 1, 4, actor="operator")
        town.until(lambda: town.ready(1) and len(cluster_ids(town, (1, *LEFT))) == 1)
        assert steps(town, 1) == ["migrating", "migrated"]


def test_a_repair_without_room_for_its_audit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with struck() as town:
        before = former_id(town)
        monkeypatch.setattr(audit_file, "RECOVERY_AUDIT_BYTES_MAX", 100)
        outcome = town.finish(reset(town, 4, Wish(actor="operator")))
        assert isinstance(outcome.error, PreconditionError) and "takes no more" in outcome.error.message
        town.wait(5)
        assert former_id(town) == before and steps(town, 5) == []


def test_8_the_old_majority_serves_itself_alone() -> None:
    with struck() as town:
        before = former_id(town)
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        term = town.node(4).log.driver.raft.term  # type: ignore[union-attr]
        town.world.monitors.remove(town.log)  # Two incarnations have two histories from here on.
        town.start(*LOST)
        town.until(lambda: town.ready(*LOST) and any(town.node(n).log.is_leader for n in LOST))
        town.wait(10)
        assert cluster_ids(town, LOST) == {before} and before not in cluster_ids(town, LEFT)
        assert town.node(4).log.driver.raft.term == term  # type: ignore[union-attr]
        assert tuple(town.node(5).log.cluster.voters) == (4,)
        one_history(town, LEFT)


def migrate(town: Town, old: int, new: int, *, dry_run: bool = False, actor: str = "") -> Outcome:
    target = as_target(town.node(new).log, 512)

    async def go(node: object) -> object:
        return await town.node(old).membership.recovery.migrate(target, actor, dry_run=dry_run)

    return town.finish(town.begin(old, go))


def test_2_and_10_a_node_that_has_diverged_stays_out_whenever_it_is_asked() -> None:
    with struck() as town:
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        town.world.monitors.remove(town.log)
        town.start(*LOST)
        town.until(lambda: town.ready(*LOST) and any(town.node(n).log.is_leader for n in LOST))
        leader = next(number for number in LOST if town.node(number).log.is_leader)
        fork = town.node(4).log.cluster.parts[LINEAGE][0].epoch
        town.finish(town.submit(leader, keyspace("elsewhere")))
        town.until(lambda: all(town.node(n).log.state.epoch > fork for n in LOST))
        for _ in range(2):
            said, silent = migrate(town, leader, 4).value
            assert {one.node for one in said} == {*LOST} and set(silent) == {*LEFT}
            assert all(one.diverged_at == fork + 1 for one in said), said
        town.process(leader).crash("power")
        town.wait(1)
        town.start(leader)
        town.until(lambda: town.ready(leader))
        said, _ = migrate(town, leader, 4).value
        assert all(one.refused for one in said)
        assert town.node(leader).log.cluster.identity.cluster_id != former_id(town)


def test_10_a_node_that_has_diverged_is_parked_as_a_zombie_and_stays_one() -> None:
    """It has no voice and serves nobody, over three starts, and its data are there to be read."""
    with struck() as town:
        town.keeps_broken = True
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        town.world.monitors.remove(town.log)
        town.start(*LOST)
        town.until(lambda: town.ready(*LOST) and any(town.node(n).log.is_leader for n in LOST))
        leader = next(number for number in LOST if town.node(number).log.is_leader)
        fork = town.node(4).log.cluster.parts[LINEAGE][0].epoch
        town.finish(town.submit(leader, keyspace("elsewhere")))
        town.until(lambda: all(town.node(n).log.state.epoch > fork for n in LOST))
        target = as_target(town.node(4).log, 64)

        async def park(node: Node) -> object:
            return await node.membership.recovery.migrate(target, "me", dry_run=False, parks=True)

        said, _ = town.finish(town.begin(leader, park)).value
        assert [one.zombie for one in said] == [True] * 3, said
        for _ in range(3):
            town.until(lambda: all("is a zombie" in str(town.ended.get(f"n{n}")) for n in LOST))
            for number in LOST:
                node = town.node(number)
                assert not node.ready and node.log.driver is None and node.membership.management.group is None
                assert node.membership.recovery.file.standing.diverged.epoch == fork + 1
                assert str(fork + 1) in str(town.ended[f"n{number}"])
                town.process(number).crash("power")
            town.wait(1)
            town.start(*LOST)
        assert leads(town, LEFT)


def test_9_and_19_who_was_away_follows_the_repaired_log_and_may_vote_again() -> None:
    with struck() as town:
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        town.finish(town.submit(4, keyspace("after")))
        town.start(1)  # Alone it can do nothing, also not be in the way.
        town.until(lambda: town.ready(1))
        assert migrate(town, 1, 4, dry_run=True).value[0][0].refused == ""
        assert town.node(1).membership.recovery.file.standing.phase is Phase.IDLE
        said, _ = migrate(town, 1, 4).value
        assert [one.refused for one in said] == [""]
        town.until(lambda: town.ready(1) and len(cluster_ids(town, (1, *LEFT))) == 1)
        town.agreed(1, *LEFT)
        assert town.node(1).log.cluster.schema.by_name.get("after")
        for number in (2, 3):
            town.start(number)
            town.until(lambda number=number: town.ready(number))  # type: ignore[misc]
            migrate(town, number, 4)
            town.until(
                lambda number=number: town.ready(number) and len(cluster_ids(town, (number, *LEFT))) == 1
            )  # type: ignore[misc]
        town.until(lambda: len(town.newest.voters) == 3 and town.voters_settled, 120.0)
        town.agreed(*LOST, *LEFT)
        one_history(town, (*LOST, *LEFT))


def astray(town: Town, change: Any) -> tuple[int, int]:
    """The old majority is back and applies a change that the repaired cluster lacks: who led it, and the last
    epoch of both."""
    town.finish(reset(town, 4))
    town.until(lambda: leads(town, LEFT))
    town.world.monitors.remove(town.log)
    town.start(*LOST)
    town.until(lambda: town.ready(*LOST) and any(town.node(n).log.is_leader for n in LOST))
    leader = next(number for number in LOST if town.node(number).log.is_leader)
    fork = town.node(4).log.cluster.parts[LINEAGE][0].epoch
    assert town.finish(town.submit(leader, change)).error is None
    town.until(lambda: all(town.node(n).log.state.epoch > fork for n in LOST))
    return leader, fork


def test_12_what_makes_no_difference_is_given_up_with_a_record() -> None:
    with struck() as town:
        leader, fork = astray(town, TakeSnapshot("rehearsal"))
        town.wait(2)
        said, _ = migrate(town, leader, 4, dry_run=True).value
        assert [one.waived for one in said] == ["upkeep of the log (1)"] * 3
        migrate(town, leader, 4)
        town.until(lambda: town.ready(*LOST, *LEFT) and len(cluster_ids(town, (*LOST, *LEFT))) == 1, 120.0)
        town.finish(town.submit(4, keyspace("after")))
        town.until(lambda: all(town.node(n).log.cluster.schema.by_name.get("after") for n in (*LOST, *LEFT)))
        one_history(town, (*LOST, *LEFT))
        (first, _) = town.node(1).membership.recovery.audit.records
        assert f"gives up entries from {fork + 1} on: upkeep of the log (1)" in first.text


def test_12_who_is_not_taken_back_to_the_fork_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what was waived stays in the files."""

    async def nothing(*_: object) -> int:
        return 0

    monkeypatch.setattr(applying, "step_back", nothing)
    with struck() as town:
        leader, _ = astray(town, TakeSnapshot("rehearsal"))
        town.wait(2)
        migrate(town, leader, 4)
        town.wait(20)
        stray = [number for number in LOST if town.ready(number)]
        assert not stray or len(cluster_ids(town, (*stray, *LEFT))) > 1, (
            "nobody is let in with another history"
        )


def test_11_what_was_applied_a_moment_before_the_power_went_is_seen() -> None:
    """It is in the journal of the group alone."""
    with struck() as town:
        leader, fork = astray(town, keyspace("elsewhere"))
        assert town.node(leader).log.state.epoch > fork
        for number in LOST:
            town.process(number).crash("power")
        town.wait(1)
        town.start(leader)
        town.until(lambda: town.node(leader).is_loaded)
        said, _ = migrate(town, leader, 4).value
        assert [(one.node, one.diverged_at) for one in said] == [(leader, fork + 1)]
        assert said[0].own_hash and not said[0].waived


def test_13_what_was_never_applied_goes_and_is_on_record() -> None:
    """One of the old majority alone has an entry in its log that nobody confirmed."""
    with struck() as town:
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        town.world.monitors.remove(town.log)
        town.start(*LOST)
        town.until(lambda: town.ready(*LOST) and any(town.node(n).log.is_leader for n in LOST))
        leader = next(number for number in LOST if town.node(number).log.is_leader)
        for number in LOST:
            if number != leader:
                town.process(number).crash("power")
        before = town.node(leader).log.state.epoch
        town.submit(leader, keyspace("never"))
        town.until(lambda: town.node(leader).membership.recovery.own.tail(before) != [])
        said, _ = migrate(town, leader, 4).value
        assert [(one.node, one.refused) for one in said] == [(leader, "")]
        town.until(lambda: town.ready(leader) and len(cluster_ids(town, (leader, *LEFT))) == 1)
        assert not town.node(leader).log.cluster.schema.by_name.get("never")
        (first, *_) = town.node(leader).membership.recovery.audit.records
        assert f"entries {before + 1} to {before + 1} of its log were never applied and go" in first.text


@pytest.mark.parametrize(
    "place", ["recovery.migrating", "recovery.stepped_back", "recovery.journals_forgotten"]
)
def test_12_a_crash_on_the_way_back_leads_to_the_same(place: str) -> None:
    with struck() as town:
        leader, _ = astray(town, TakeSnapshot("rehearsal"))
        town.wait(2)
        town.world.probes.add(CrashRule(label=place, process=f"n{leader}", kind="power", hit=1))
        target = as_target(town.node(4).log, 512)
        town.begin(leader, lambda _node: town.node(leader).membership.recovery.migrate(target, dry_run=False))
        town.until(lambda: not town.process(leader).alive)
        town.start(leader)
        town.until(lambda: town.ready(leader, *LEFT) and len(cluster_ids(town, (leader, *LEFT))) == 1, 120.0)
        one_history(town, (leader, *LEFT))


def test_5_a_recipient_that_is_silent_leaves_every_node_where_it_was() -> None:
    with struck() as town:
        before = former_id(town)
        town.world.probes.add(CrashRule(label="recovery.prepared", process="n5", kind="power", hit=1))
        outcome = town.finish(reset(town, 4, Wish(actor="operator")))
        assert (
            isinstance(outcome.error, PreconditionError) and "node 5 takes no part" in outcome.error.message
        )
        assert steps(town, 4) == ["planned", "refused"], "who conducts it prepares last"
        for number in LEFT:
            town.process(number).crash("power")
        town.start(*LEFT)
        town.until(lambda: town.ready(*LEFT))
        town.wait(10)
        assert cluster_ids(town, LEFT) == {before}
        assert not town.logged("recovery.applied")


def test_5_a_conductor_that_cannot_prepare_itself_leaves_every_node_where_it_was() -> None:
    with struck() as town:
        before = former_id(town)

        async def refuses(_plan: object) -> None:
            raise Rejected("its audit is full")

        town.node(4).membership.recovery._prepare = refuses  # type: ignore[method-assign, assignment]
        outcome = town.finish(reset(town, 4, Wish(actor="operator")))
        assert isinstance(outcome.error, PreconditionError) and "nothing was changed" in outcome.error.message
        town.wait(10)
        assert steps(town, 5) == ["prepared", "withdrawn"] and cluster_ids(town, LEFT) == {before}
        assert not town.logged("recovery.applied")


def test_17_the_next_disaster_is_repaired_by_the_voters_of_now() -> None:
    """No node has had another start than those in its process."""
    with struck() as town:
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        assert tuple(town.node(5).log.cluster.voters) == (4,), "and not 1, 2 and 3 as when it joined"
        town.finish(town.submit(4, keyspace("between")))
        town.agreed(*LEFT)
        town.process(4).crash("power")
        town.wait(5)
        outcome = town.finish(reset(town, 5))
        assert outcome.error is None and outcome.value.plan.voters == (5,)
        town.until(lambda: leads(town, (5,)))
        cluster = town.node(5).log.cluster
        assert len(cluster.identity.lineage) == 3 and cluster.schema.by_name.get("between")
        town.finish(town.submit(5, keyspace("after")))


def test_20_nodes_that_were_all_started_again_without_a_majority_are_repaired() -> None:
    with struck() as town:
        for number in LEFT:
            town.process(number).crash("power")
        town.start(*LEFT)
        town.until(lambda: town.ready(*LEFT))
        assert town.finish(reset(town, 5)).error is None
        town.until(lambda: leads(town, LEFT))
        leader = next(number for number in LEFT if town.node(number).log.is_leader)
        assert town.finish(town.submit(leader, keyspace("after"))).error is None
        one_history(town, LEFT)


def test_18_migrations_backwards_and_to_itself_are_refused() -> None:
    with struck() as town:
        backwards = as_target(town.node(5).log, 512)
        town.finish(reset(town, 4))
        town.until(lambda: leads(town, LEFT))
        own = migrate(town, 4, 5).value[0]
        assert all("belongs to that cluster already" in one.refused for one in own)

        async def back(node: object) -> object:
            return await town.node(4).membership.recovery.migrate(backwards, dry_run=False)

        said, _ = town.finish(town.begin(4, back)).value
        assert all("a former one" in one.refused for one in said)
        assert leads(town, LEFT)


def test_4_there_is_nothing_to_repair_while_a_majority_lives() -> None:
    with Town(1, founders=5) as town:
        town.found()
        outcome = town.finish(reset(town, 5))
        assert isinstance(outcome.error, PreconditionError) and "has a majority" in outcome.error.message
        assert all(
            town.node(number).membership.recovery.file.standing.phase is Phase.IDLE for number in range(1, 6)
        )


def test_4_a_wish_that_cannot_be_met_changes_nothing() -> None:
    with struck() as town:
        for wish, text in (
            (Wish(size=2), "odd number"),
            (Wish(size=3), "2 of those that answer"),
            (Wish(management=(4, 4)), "each node once"),  # type: ignore[arg-type]
            (Wish(management=(1,)), "do not answer"),  # type: ignore[arg-type]
        ):
            outcome = town.finish(reset(town, 4, wish))
            assert isinstance(outcome.error, PreconditionError) and text in outcome.error.message
        assert all(town.node(number).membership.recovery.file.standing.phase is Phase.IDLE for number in LEFT)


def test_members_start_again_one_after_the_other_in_their_processes() -> None:
    with Town(1, founders=3) as town:
        town.found()
        lives = {number: town.node(number).context.identity.value.generation for number in (1, 2, 3)}

        async def restart(_node: object) -> dict[int, str]:
            return await town.node(2).membership.recovery.restart([1, 2, 3])

        outcome = town.finish(town.begin(2, restart))
        assert outcome.value == {1: "", 3: "", 2: ""}
        town.until(lambda: town.ready(1, 2, 3) and any(town.node(n).log.is_leader for n in (1, 2, 3)))
        town.wait(2)
        assert {n: town.node(n).context.identity.value.generation - lives[n] for n in lives} == {
            1: 1,
            2: 1,
            3: 1,
        }
        town.process(3).crash("power")
        outcome = town.finish(town.begin(2, restart))
        assert outcome.value[1] == "" and outcome.value[3] and 2 not in outcome.value, "it stops there"


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("who", [4, 5])
def test_6_and_7_a_crash_at_every_record_leaves_one_history(place: str, who: int) -> None:
    """Conductor (4) or participant (5) loses power right after each record; both start again."""
    with struck() as town:
        before = former_id(town)
        town.world.probes.add(CrashRule(label=place, process=f"n{who}", kind="power", hit=1))
        reset(town, 4)
        town.until(lambda: not town.process(who).alive)
        town.wait(5)
        town.start(who)
        town.until(lambda: town.ready(*LEFT), 120.0)
        decided = who == 5 or place != "recovery.prepared"
        if decided and not (who == 5 and place == "recovery.prepared"):
            town.until(lambda: leads(town, LEFT), 120.0)
        else:
            town.wait(5)
        if before in cluster_ids(town, LEFT):
            # Nothing was decided: the repair is begun again, on the other node.
            assert cluster_ids(town, LEFT) == {before}, "nobody went alone"
            town.finish(reset(town, 5))
            town.until(lambda: leads(town, LEFT), 120.0)
        assert before not in cluster_ids(town, LEFT)
        applied = town.logged("recovery.applied", f"n{who}")
        assert len(applied) <= 2 and town.node(who).membership.recovery.file.standing.phase is Phase.IDLE
        leader = next(number for number in LEFT if town.node(number).log.is_leader)
        town.finish(town.submit(leader, keyspace("after")))
        town.agreed(*LEFT)
        one_history(town, LEFT)
