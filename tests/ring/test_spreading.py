"""Whom a member tells what, and what it keeps for that."""

from __future__ import annotations

import pytest

from lockstep.ring.changes import Kind, Step, decide
from lockstep.ring.limits import (
    RING_DELTAS_KEPT,
    RING_GOSSIP_MS,
    RING_GOSSIP_PENDING_MS,
    RING_SEEDS_TOLD_MAX,
)
from lockstep.ring.messages import Deltas, Summary, Whole
from lockstep.ring.ring import Delta, Ring, applied
from lockstep.ring.spreading import Spreader

from .rings import after, change, founders, join


def grown(count: int) -> tuple[Ring, Ring, list[Delta], Spreader]:
    first = ring = founders(3)
    spreader, deltas = Spreader("n1", ("n2",), 0), []
    for number in range(count):
        delta = decide(ring, f"op{number}", [join(100 + number)])
        ring = applied(ring, delta)
        spreader.moved(ring, delta)
        spreader.validate()
        deltas.append(delta)
    return first, ring, deltas, spreader


def test_who_is_behind_gets_the_changes_it_lacks_in_their_order() -> None:
    first, ring, deltas, spreader = grown(5)
    answer = spreader.answer(ring, Summary(first.sequence, first.fingerprint))
    assert answer == Deltas(tuple(deltas))
    assert spreader.newest(ring) == Deltas((deltas[-1],))
    assert spreader.since(ring, deltas[2].target) == Deltas(tuple(deltas[3:]))


def test_who_lacks_more_than_is_kept_gets_the_ring() -> None:
    first, ring, deltas, spreader = grown(RING_DELTAS_KEPT + 1)
    assert spreader.since(ring, first.fingerprint) == Whole(ring)
    assert spreader.since(ring, deltas[0].target) == Deltas(tuple(deltas[1:]))
    assert spreader.known(deltas[0].base) is None and spreader.known(deltas[-1].base) == deltas[-1]
    spreader.moved(ring, None)
    assert spreader.since(ring, deltas[-1].base) == Whole(ring) == spreader.newest(ring)


def test_equal_rings_and_answers_end_the_exchange() -> None:
    _, ring, _, spreader = grown(1)
    same = Summary(ring.sequence, ring.fingerprint)
    assert spreader.answer(ring, same) == Summary(ring.sequence, ring.fingerprint, answer=True)
    assert spreader.answer(ring, Summary(ring.sequence, ring.fingerprint, answer=True)) is None
    ahead = Summary(ring.sequence + 1, b"x" * 32)
    assert spreader.answer(ring, ahead) == Summary(ring.sequence, ring.fingerprint, answer=True)
    assert spreader.answer(ring, Summary(ring.sequence + 1, b"x" * 32, answer=True)) is None


def test_a_round_comes_when_it_is_due_and_sooner_while_something_is_pending() -> None:
    ring, spreader = founders(5), Spreader("n1", (), 0)
    assert spreader.round(ring, RING_GOSSIP_MS - 1, False, (0.0, 0.0)) == ()
    assert spreader.round(ring, RING_GOSSIP_MS, False, (0.0, 0.0)) == ("n2",)
    assert spreader.round(ring, RING_GOSSIP_MS + RING_GOSSIP_PENDING_MS, False, (0.0, 0.0)) == ()
    assert spreader.round(ring, RING_GOSSIP_MS + RING_GOSSIP_PENDING_MS, True, (0.0, 0.0)) == ("n2",)


def test_draws_reach_every_other_member_and_never_oneself() -> None:
    ring = founders(5)
    for own in ring.present:
        found = [Spreader(own, (), 0).round(ring, 9999, False, (at / 4, 0.0))[0] for at in range(4)]
        assert sorted([*found, own]) == list(ring.present)
    outside = [Spreader("n0", (), 0).round(ring, 9999, False, (at / 5, 0.0))[0] for at in range(5)]
    assert outside == list(ring.present)
    assert Spreader("n1", (), 0).round(founders(1), 9999, False, (0.5, 0.5)) == ()
    with pytest.raises(AssertionError, match="below one"):
        Spreader("n1", (), 0).round(ring, 9999, False, (1.0, 0.0))


def test_a_seed_is_asked_besides_as_often_as_there_are_seeds_and_always_while_pending() -> None:
    ring, seeds = founders(10), ("n2", "n3")
    draws = [(0.9, at / 100) for at in range(100)]
    told = [Spreader("n1", seeds, 0).round(ring, 9999, False, draw) for draw in draws]
    assert sum(len(peers) == 2 for peers in told) == 20
    assert {peers[1] for peers in told if len(peers) == 2} == set(seeds)
    told = [Spreader("n1", seeds, 0).round(ring, 9999, True, draw) for draw in draws]
    assert all(len(peers) == 2 for peers in told) and {peers[1] for peers in told} == set(seeds)
    first_is_seed = Spreader("n1", ("n10",), 0).round(ring, 9999, True, (0.0, 0.0))
    assert first_is_seed == ("n10",)


def test_seeds_are_told_first_and_so_many_at_most() -> None:
    ring = founders(40)
    assert Spreader("n1", ("n1", "n2", "gone"), 0).told_first(ring) == ("n2",)
    assert len(Spreader("n1", ring.present, 0).told_first(ring)) == RING_SEEDS_TOLD_MAX


def test_laggards_are_those_that_have_not_said_that_they_have_it() -> None:
    _, ring, _, spreader = grown(1)
    assert spreader.laggards(ring) == ("n100", "n2", "n3")
    spreader.heard("n2", Summary(ring.sequence, ring.fingerprint), ring)
    spreader.heard("n3", Summary(ring.sequence - 1, b"x" * 32), ring)
    spreader.heard("stranger", Summary(ring.sequence, ring.fingerprint), ring)
    spreader.validate()
    assert spreader.laggards(ring) == ("n100", "n3")
    later = after(after(ring, change(Kind.LEAVE, 3)), change(Kind.LEAVE, 3, Step.FINISH))
    spreader.moved(later, None)
    assert spreader.laggards(later) == ("n100", "n2")
