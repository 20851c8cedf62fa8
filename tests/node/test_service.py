"""The voters of the metadata group on running nodes: growing, exchanging, leaving, whoever dies meanwhile."""

from __future__ import annotations

from functools import partial

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.membership import (
    CancelMembership,
    PrepareMembership,
    ServiceWish,
    SetService,
)
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import SetExtension
from lockstep.sim.runtime.probes import CrashRule
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.node.support import Outcome, Town, leave

#: Where a node may die while voters are exchanged.
PLACES = (
    "service.submit",
    "service.configure",
    "service.transfer",
    "processor.appended",
    "raft.persist.before",
    "raft.persist.after",
    "raft.became_leader",
    "metadata.apply.before_sync",
    "metadata.apply.after_sync",
)


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


def five(seed: int = 1) -> Town:
    town = Town(seed=seed, founders=5)
    town.found()
    assert town.newest.voters == ids(1, 2, 3)
    return town


EXCHANGE = PrepareMembership(ids(4, 5), ids(1, 2), "by hand", 3)


def acknowledged_once(town: Town, outcomes: list[Outcome]) -> None:
    """Every acknowledged extension is in the log exactly once, and no two entries share an id."""
    assert len(set(town.ids())) == len(town.ids())
    log = max(town.nodes.values(), key=lambda node: node.log.state.epoch).log.state.entries
    bodies = [entry.body for entry in log if entry.kind == EntryKind.SET_EXTENSION]
    assert len(set(bodies)) == len(bodies), "a commit was doubled"
    applied = town.newest.extensions
    for number, outcome in enumerate(outcomes):
        if outcome.done and outcome.error is None:
            assert applied.get(f"x{number}") == b"1", f"commit {number} was lost"


def drive(town: Town, limit_s: float, done: object) -> list[Outcome]:
    """Constant commits through nodes that live, until `done()`."""
    outcomes: list[Outcome] = []
    end = town.world.now_s() + limit_s
    while not done() and town.world.now_s() < end:  # type: ignore[operator]
        alive = [n for n in range(1, 6) if town.ready(n)]
        if alive:
            number = len(outcomes)
            outcomes.append(town.submit(alive[number % len(alive)], SetExtension(f"x{number}", b"1")))
        town.wait(0.05)
    return outcomes


def test_voters_are_exchanged_under_constant_commits() -> None:
    with five() as town:
        assert town.finish(town.submit(3, EXCHANGE)).error is None
        outcomes = drive(town, 20, lambda: town.voters_settled)
        assert town.newest.voters == ids(3, 4, 5) and len(outcomes) >= 2
        for outcome in outcomes:
            assert town.finish(outcome).error is None
        acknowledged_once(town, outcomes)
        town.wait(1)
        for number in (1, 2):
            assert town.node(number).log.driver is None, "who does not vote runs no consensus"
            assert town.finish(town.submit(number, SetExtension(f"from{number}", b"1"))).error is None
        town.agreed(1, 2, 3, 4, 5)
        # They are needed no more.
        town.process(1).crash()
        town.process(2).crash()
        assert town.finish(town.submit(4, SetExtension("alone", b"1"))).error is None


def exchanged(town: Town, begun: Outcome) -> bool:
    """Who asked for it knows, unless it died meanwhile: then nobody does."""
    told = begun.done or town.process(3).incarnation > 1
    return told and town.voters_settled and town.newest.voters != ids(1, 2, 3)


def has_left(town: Town, node: int) -> bool:
    return town.state_of(node) is NodeState.LEFT


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("place", PLACES)
def test_any_node_may_die_at_any_sub_step(place: str, kind: str) -> None:
    fired = 0
    for hit, name in ((1, None), (3, None), (6, None), (2, "n4"), (2, "n1")):
        with five(seed=hit) as town:
            rule = CrashRule(label=place, process=name, kind=kind, hit=hit, restart_after_s=0.7)
            town.world.probes.add(rule)
            begun = town.submit(3, EXCHANGE)
            outcomes = drive(town, 60, partial(exchanged, town, begun))
            if begun.error is None:
                assert town.newest.voters == ids(3, 4, 5)
            town.until(lambda: town.ready(1, 2, 3, 4, 5))
            town.agreed(1, 2, 3, 4, 5)
            acknowledged_once(town, outcomes)
            fired += rule.fired
    assert fired or place in ("raft.became_leader",)


def test_a_dead_addition_is_waited_for_visibly_and_cancel_drops_it() -> None:
    with five() as town:
        town.process(5).crash()
        assert town.finish(town.submit(3, EXCHANGE)).error is None
        town.until(lambda: town.newest.voters == ids(1, 2, 3, 4))
        town.wait(3)
        blocked = town.node(town.leader()).work.service.blocked
        assert blocked is not None and blocked.node == 5
        change = town.newest.service.change
        assert change is not None
        assert town.finish(town.submit(1, CancelMembership(change.id, "it is dead"))).error is None
        town.until(lambda: town.newest.service.change is None)
        assert town.newest.voters == ids(1, 2, 3, 4), "steps that were done stay"
        town.wait(3)
        assert town.newest.service.paused and town.newest.voters == ids(1, 2, 3), "evened out, no more"
        assert town.finish(town.submit(1, SetService(ServiceWish.RESUME))).error is None
        town.until(lambda: town.voters_settled and len(town.newest.voters) == 3)


def test_a_dead_addition_is_given_up_and_another_node_gets_the_vote() -> None:
    with Town(founders=4) as town:
        town.found()
        town.start(5)
        town.until(lambda: town.ready(5) and town.voters_settled)
        town.process(4).crash()
        change = PrepareMembership(ids(4), (town.newest.voters[0],), size=3)
        assert town.finish(town.submit(2, change)).error is None
        town.until(lambda: town.newest.service.change is None, limit_s=40)
        town.wait(1)
        assert not town.newest.service.paused
        town.until(lambda: town.voters_settled)
        assert len(town.newest.voters) == 3 and 4 not in town.newest.voters
        given_up = [e for e in town.node(1).log.state.entries if e.kind == EntryKind.CANCEL_MEMBERSHIP]
        body = town.node(1).log.registry.decode(given_up[-1].kind, given_up[-1].body)
        assert isinstance(body, CancelMembership) and body.unreached == 4


def test_a_dead_node_that_was_to_vote_can_be_removed_at_once() -> None:
    with Town(founders=5) as town:
        town.found()
        town.until(lambda: town.voters_settled)
        dead = next(number for number in range(5, 1, -1) if number not in town.newest.voters)
        town.process(dead).crash()
        change = PrepareMembership(ids(dead), (town.newest.voters[0],), size=3)
        assert town.finish(town.submit(2, change)).error is None
        wish = EnqueueRequest(Remove(NodeId(dead), presumed_dead=True), actor="operator")
        assert town.finish(town.submit(2, wish)).error is None
        town.until(lambda: has_left(town, dead), limit_s=8)
        town.until(lambda: town.voters_settled)
        assert dead not in town.newest.service.members


def test_a_voter_that_leaves_is_substituted_first_whoever_dies_meanwhile() -> None:
    for leaving, dies in ((1, 1), (1, 2), (2, 1), (3, 3)):
        with five(seed=leaving) as town:
            rule = CrashRule(label="service.configure", process=f"n{dies}", hit=2, restart_after_s=0.5)
            town.world.probes.add(rule)
            assert town.finish(town.submit(4, leave(leaving))).error is None
            town.until(partial(has_left, town, leaving))
            assert town.newest.service.leaving == ()
            town.until(lambda: town.voters_settled)
            assert leaving not in town.newest.voters and len(town.newest.voters) == 3
            states = [value.voters for value in town.log.values if value.epoch]
            decommission = next(
                value for value in town.log.values if any(o.node == leaving for o in value.operations)
            )
            assert leaving not in decommission.voters and len(decommission.voters) == 3
            assert all(states)


def test_three_nodes_of_which_one_leaves_keep_one_voter() -> None:
    with Town() as town:
        town.found()
        gone = town.leader()
        assert town.finish(town.submit(other(gone), leave(gone))).error is None
        town.until(lambda: town.state_of(gone) is NodeState.LEFT)
        town.until(lambda: town.voters_settled)
        assert len(town.newest.voters) == 1


def other(number: int) -> int:
    return 1 + number % 3


def test_a_cluster_that_grows_gets_more_voters_and_one_that_is_told_keeps_its_number() -> None:
    with Town(founders=1) as town:
        town.found()
        for number, voters in ((2, 1), (3, 3), (4, 3), (5, 3), (6, 5)):
            town.start(number)
            town.until(lambda: town.ready(number))  # noqa: B023
            town.until(lambda: town.voters_settled)
            assert len(town.newest.voters) == voters
        assert town.finish(town.submit(2, SetService(ServiceWish.SIZE, size=1))).error is None
        town.until(lambda: town.voters_settled)
        assert len(town.newest.voters) == 1
        refused = town.finish(town.submit(2, SetService(ServiceWish.SIZE, size=7))).error
        assert isinstance(refused, Rejected) and "more than the 6" in refused.message


def test_a_silent_voter_is_substituted_only_where_the_policy_says_so() -> None:
    for policy_ms, substituted in ((0, False), (5000, True)):
        with Town(founders=4) as town:
            for number in range(1, 5):
                town.process(number)
                town.extra_lines[f"n{number}"] = f"[cms]\nreplace_after_ms={policy_ms}\n"
            town.found()
            lost = other(town.leader())
            town.process(lost).crash()
            town.wait(4)
            assert lost in town.newest.voters
            town.wait(15)
            assert (lost not in town.newest.voters) is substituted
            if substituted:
                begun = [e for e in town.node(4).log.state.entries if e.kind == EntryKind.PREPARE_MEMBERSHIP]
                entry = begun[-1]
                body = town.node(4).log.registry.decode(entry.kind, entry.body)
                assert isinstance(body, PrepareMembership)
                assert body.down == (lost,) and body.removals == (lost,)


def test_all_nodes_lose_power_while_voters_are_exchanged() -> None:
    for callbacks in range(5, 200, 25):
        with five(seed=callbacks) as town:
            begun = town.submit(3, EXCHANGE)
            for number in range(1, 6):
                town.process(number).crash_after(callbacks + number, "power", restart_after_s=1.0)
            town.until(lambda: town.world.effects.get("process.power", 0) == 5)
            town.until(lambda: town.ready(1, 2, 3, 4, 5))
            town.until(lambda: town.voters_settled)
            assert town.newest.voters in (ids(1, 2, 3), ids(3, 4, 5))
            assert begun.error is None
            assert town.finish(town.submit(1, SetExtension("after", b"1"))).error is None


def test_a_frozen_service_still_changes_its_voters() -> None:
    with five() as town:
        assert town.finish(town.submit(1, SetService(ServiceWish.FREEZE, text="upgrade"))).error is None
        refused = town.finish(town.submit(2, SetExtension("x", b"1"))).error
        assert isinstance(refused, Rejected) and "upgrade" in refused.message
        assert town.finish(town.submit(3, EXCHANGE)).error is None
        town.until(lambda: town.newest.voters == ids(3, 4, 5))
        assert town.finish(town.submit(4, SetService(ServiceWish.THAW))).error is None
        assert town.finish(town.submit(5, SetExtension("x", b"1"))).error is None
