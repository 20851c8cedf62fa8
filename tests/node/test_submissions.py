"""What a submitter is told: accepted once, rejected for good, or unknown; never a guess."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.metadata.log import recent_ids
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.changes import DropKeyspace
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.errors import CannotApply, OutcomeUnknown, PeerUnreachable, Rejected
from tests.node.support import Outcome, Town, keyspace

FIRST_ID = b"first-submission"


def other_than(leader: int) -> int:
    return 1 + leader % 3


def test_an_accepted_change_is_applied_where_it_was_submitted() -> None:
    with Town() as town:
        town.found()
        begin = town.newest.epoch
        for number in (1, 2, 3):
            outcome = town.finish(town.submit(number, keyspace(f"k{number}")))
            assert outcome.error is None
            assert town.node(number).log.state.epoch >= outcome.value
        assert len(town.ids()) == town.newest.epoch == begin + 3


def test_a_refused_change_is_in_no_log_and_its_reason_is_visible_where_it_was_submitted() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        # It hears nothing of the log but what it asks for.
        behind = town.node(4)
        behind.log.catch_up.heard = lambda address, epoch: None  # type: ignore[method-assign]
        made = town.finish(town.submit(1, keyspace("k")))
        assert made.error is None and behind.log.state.epoch < made.value
        refused = town.finish(town.submit(4, keyspace("k"), entry_id=FIRST_ID))
        assert isinstance(refused.error, Rejected)
        assert behind.log.state.epoch >= refused.error.epoch == made.value
        assert behind.log.cluster.schema.by_name["k"]
        town.wait(1)
        assert FIRST_ID not in town.ids()


def test_an_id_is_applied_once_however_often_and_wherever_it_is_submitted() -> None:
    with Town() as town:
        town.found()
        begin = town.newest.epoch
        outcomes = [town.submit(number, keyspace("k"), entry_id=FIRST_ID) for number in (1, 2, 3, 1, 2, 3)]
        for outcome in outcomes:
            town.finish(outcome)
        outcomes.append(town.finish(town.submit(2, keyspace("k"), entry_id=FIRST_ID)))
        assert [(outcome.error, outcome.value) for outcome in outcomes] == [(None, begin + 1)] * 7
        assert town.ids().count(FIRST_ID) == 1


def refuse_once_and_for_all() -> None:
    with Town() as town:
        town.found()
        leader = town.leader()
        assert town.finish(town.submit(leader, keyspace("k"))).error is None
        refused = town.finish(town.submit(leader, keyspace("k"), entry_id=FIRST_ID))
        assert isinstance(refused.error, Rejected)
        assert town.finish(town.submit(leader, ChangeSchema(DropKeyspace("k")))).error is None
        late = town.finish(town.submit(leader, keyspace("k"), entry_id=FIRST_ID))
        assert isinstance(late.error, Rejected)
        assert FIRST_ID not in town.ids()


def test_a_copy_of_what_was_refused_is_refused_also_when_it_would_pass_now() -> None:
    refuse_once_and_for_all()


def test_an_id_that_is_no_longer_kept_is_unknown_and_not_applied_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recent_ids, "RECENT_ENTRY_IDS_MAX", 4)
    with Town() as town:
        town.found()
        base = town.node(1).log.state.epoch
        assert town.finish(town.submit(1, keyspace("k"), entry_id=FIRST_ID)).error is None
        for number in range(6):
            assert town.finish(town.submit(1, keyspace(f"k{number}"))).error is None
        late = town.finish(town.submit(2, keyspace("k"), entry_id=FIRST_ID, base_epoch=base))
        assert isinstance(late.error, OutcomeUnknown)
        assert town.ids().count(FIRST_ID) == 1


@pytest.mark.parametrize("place", ["processor.appended", "raft.persist.before", "raft.persist.after"])
@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_leader_that_dies_with_a_change_in_hand_applies_it_at_most_once(place: str, kind: str) -> None:
    for seed in range(3):
        with Town(seed=seed) as town:
            town.found()
            leader = town.leader()
            hit = town.world.probes.process_counts.get((f"n{leader}", place), 0) + 1
            rule = CrashRule(label=place, process=f"n{leader}", kind=kind, hit=hit, restart_after_s=1.0)
            town.world.probes.add(rule)
            outcome = town.finish(town.submit(other_than(leader), keyspace("k"), entry_id=FIRST_ID))
            assert rule.fired
            assert outcome.error is None, "two voters were alive all the time"
            town.until(lambda: town.ready(1, 2, 3))
            town.agreed(1, 2, 3)
            assert town.ids().count(FIRST_ID) == 1
            assert town.ids().index(FIRST_ID) == outcome.value - 1


def isolated(town: Town) -> int:
    """The leader, cut off from the other voters."""
    leader = town.leader()
    town.world.network.isolate(town.process(leader).host)
    return leader


def assert_unknown_in_time(outcome: Outcome, limit_s: float = 5.5) -> None:
    assert isinstance(outcome.error, OutcomeUnknown)
    assert outcome.done_s - outcome.begun_s <= limit_s


def test_a_leader_without_a_quorum_answers_unknown_in_time_and_never_a_refusal() -> None:
    with Town() as town:
        town.found()
        assert town.finish(town.submit(1, keyspace("old"))).error is None
        town.agreed(1, 2, 3)
        leader = isolated(town)
        # The second one would be refused because of the first, which is not committed; the third one
        # because of the log: but somebody else may lead by now.
        begun = [
            town.submit(leader, keyspace("k"), entry_id=FIRST_ID),
            town.submit(leader, keyspace("k")),
            town.submit(leader, keyspace("old")),
        ]
        for outcome in begun:
            town.finish(outcome)
        # One of the first two was appended; of what was judged only it is known that nothing was changed.
        assert any(isinstance(outcome.error, OutcomeUnknown) for outcome in begun[:2])
        for outcome in begun:
            assert isinstance(outcome.error, OutcomeUnknown | PeerUnreachable), outcome.error
            assert outcome.done_s - outcome.begun_s <= 5.5
        other = town.finish(town.submit(other_than(leader), keyspace("k")))
        assert other.error is None
        town.world.network.heal()
        town.until(lambda: town.node(leader).log.state.epoch == town.newest.epoch)
        assert FIRST_ID not in town.ids()
        # The same submission again is now judged: somebody else made k meanwhile.
        again = town.finish(town.submit(leader, keyspace("k"), entry_id=FIRST_ID, base_epoch=2))
        assert isinstance(again.error, Rejected)


def test_refusals_wait_until_what_they_were_judged_at_is_committed() -> None:
    with Town() as town:
        town.found()
        leader = town.leader()
        host = town.process(leader).host
        others = [town.process(n).host for n in (1, 2, 3) if n != leader]
        for other in others:
            town.world.network.block(host, other)
        first = town.submit(leader, keyspace("k"))
        second = town.submit(leader, keyspace("k"))
        town.wait(0.2)
        assert not first.done and not second.done
        for other in others:
            town.world.network.unblock(host, other)
        town.finish(first)
        town.finish(second)
        # Which of the two is judged first is up to the scheduler.
        accepted, refused = sorted((first, second), key=lambda outcome: outcome.error is not None)
        assert accepted.error is None
        assert isinstance(refused.error, Rejected) and refused.error.epoch >= accepted.value


def test_a_short_deadline_is_kept_although_no_voter_answers() -> None:
    with Town() as town:
        town.found()
        leader = isolated(town)
        submitter = town.node(leader).log.submitter
        outcome = town.finish(town.begin(leader, lambda node: submitter.submit(keyspace("k"), 300)))
        assert_unknown_in_time(outcome, limit_s=0.4)


def test_nothing_was_submitted_when_no_voter_can_be_reached() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        for number in (1, 2, 3):
            town.process(number).crash()
        outcome = town.finish(town.submit(4, keyspace("k")))
        assert isinstance(outcome.error, PeerUnreachable | OutcomeUnknown)
        outcome = town.finish(town.submit(4, keyspace("k")))
        assert isinstance(outcome.error, PeerUnreachable)


def test_acknowledged_changes_survive_the_power_of_all_nodes() -> None:
    for seed in range(4):
        with Town(seed=seed) as town:
            town.found()
            acknowledged: list[tuple[Any, bytes]] = []
            entries = [bytes([number]) * 16 for number in range(12)]
            begun = [
                town.submit(1 + number % 3, keyspace(f"k{number}"), entry_id=entry)
                for number, entry in enumerate(entries)
            ]
            town.world.run_for(0.012 + seed * 0.004)
            for number in (1, 2, 3):
                town.process(number).crash("power")
            acknowledged = [
                (o.value, e) for o, e in zip(begun, entries, strict=True) if o.done and not o.error
            ]
            town.start(1, 2, 3)
            town.until(lambda: town.ready(1, 2, 3))
            again = [
                town.finish(town.submit(1, keyspace(f"k{number}"), entry_id=entry, base_epoch=1))
                for number, entry in enumerate(entries)
            ]
            assert all(outcome.error is None for outcome in again)
            for epoch, entry in acknowledged:
                assert town.ids()[epoch - 1] == entry
            assert all(town.ids().count(entry) == 1 for entry in entries)


def test_without_a_leader_a_submitter_learns_soon_that_nothing_was_done() -> None:
    with Town() as town:
        town.found()
        town.until(lambda: town.voters_settled)
        town.process(1).crash()
        town.process(2).crash()
        town.until(lambda: not town.node(3).log.is_leader)
        town.wait(2)
        begin = town.world.now_s()
        outcome = town.finish(town.submit(3, keyspace("k"), entry_id=FIRST_ID))
        assert isinstance(outcome.error, PeerUnreachable), outcome.error
        assert 3.5 < town.world.now_s() - begin < 5.5
        town.start(1, 2)
        town.until(lambda: town.ready(1, 2))
        assert town.finish(town.submit(3, keyspace("later"))).error is None
        assert FIRST_ID not in town.ids()


def test_what_a_leader_had_appended_when_it_lost_its_place_is_unknown() -> None:
    with Town() as town:
        town.found()
        town.until(lambda: town.voters_settled)
        leader = town.leader()
        town.world.network.isolate(town.process(leader).host)
        outcome = town.finish(town.submit(leader, keyspace("k"), entry_id=FIRST_ID))
        assert isinstance(outcome.error, OutcomeUnknown), outcome.error


def test_a_committed_change_that_cannot_be_applied_here_is_never_told_as_failed() -> None:
    with Town() as town:
        town.found()
        number = other_than(town.leader())
        state = town.node(number).log.state
        before = state.epoch
        state.hold_at(before)
        outcome = town.submit(number, keyspace("k"))
        town.until(lambda: town.newest.epoch > before)
        town.wait(1)
        assert not outcome.done
        state.give_up(CannotApply("a test says so"))
        assert isinstance(town.finish(outcome).error, OutcomeUnknown)
