"""Whom to ask for what is missing."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.gossip.pulling import (
    ANSWER_MS_MAX,
    ANSWER_MS_MIN,
    REFUSED_MS,
    Offer,
    Puller,
    Request,
)
from lockstep.values.limits import FETCH_SOURCES_MAX

OFFER = Offer(100, b"h", b"d", 10)


def asked(puller: Puller[str], have: int, now_ms: int) -> Request[str]:
    request = puller.next(have, now_ms)
    assert request is not None
    return request


def test_requests_for_one_gap_are_one_request() -> None:
    puller: Puller[str] = Puller()
    for peer in ("a", "b", "c"):
        puller.heard(peer, 9, 0)
    first = asked(puller, 3, 0)
    assert first.after == 3 and first.peer == "c"
    puller.heard("a", 12, 1)
    assert puller.next(3, 1) is None and puller.wanted(3) == 12
    puller.answered(first, 9, True, 5)
    following = asked(puller, 9, 5)
    assert (following.peer, following.after) == ("a", 9)


def test_another_peer_is_asked_when_the_answer_is_late_and_a_late_answer_changes_nothing() -> None:
    puller: Puller[str] = Puller()
    puller.heard("a", 5, 0)
    puller.heard("b", 5, 0)
    first = asked(puller, 0, 0)
    assert puller.wake_ms() == ANSWER_MS_MIN
    assert puller.next(0, ANSWER_MS_MIN - 1) is None
    second = asked(puller, 0, ANSWER_MS_MIN)
    assert {first.peer, second.peer} == {"a", "b"}
    puller.answered(first, 5, True, ANSWER_MS_MIN + 10)
    assert puller.is_current(second) and not puller.is_current(first)
    # What is here now need not be fetched any more.
    puller.answered(second, 5, False, ANSWER_MS_MIN + 20)
    assert puller.next(5, ANSWER_MS_MIN + 20) is None and puller.wake_ms() is None


def test_patience_follows_how_long_answers_take() -> None:
    puller: Puller[str] = Puller()
    for _ in range(20):
        puller.heard("a", 10**6, 0)
        request = asked(puller, 0, 0)
        puller.answered(request, 10**6, True, 300)
    puller.heard("a", 10**6, 0)
    asked(puller, 0, 0)
    assert puller.wake_ms() == 1200 <= ANSWER_MS_MAX


def test_the_only_peer_is_asked_again_after_a_growing_rest() -> None:
    puller: Puller[str] = Puller()
    puller.heard("a", 5, 0)
    rests, now_ms = [], 0
    for _ in range(5):
        puller.failed(asked(puller, 0, now_ms), now_ms)
        wake_ms = puller.wake_ms()
        assert wake_ms is not None and puller.next(0, wake_ms - 1) is None
        rests.append(wake_ms - now_ms)
        now_ms = wake_ms
    assert rests == sorted(set(rests))


def test_a_peer_with_no_more_than_we_have_is_no_source_unless_it_was_heard_of_again() -> None:
    puller: Puller[str] = Puller()
    puller.heard("a", 5, 0)
    request = asked(puller, 3, 0)
    puller.answered(request, 3, False, 1)
    assert puller.next(3, 1) is None and puller.wake_ms() is None
    puller.heard("a", 5, 2)
    request = asked(puller, 3, 2)
    puller.heard("a", 6, 3)
    puller.answered(request, 3, False, 4)
    assert asked(puller, 3, 4).peer == "a"


def test_a_peer_that_has_more_and_does_not_give_it_is_asked_last() -> None:
    puller: Puller[str] = Puller()
    puller.heard("b", 5, 0)
    puller.heard("a", 9, 0)
    request = asked(puller, 3, 0)
    assert request.peer == "a"
    puller.answered(request, 9, False, 1)
    assert asked(puller, 3, 1).peer == "b"


def test_an_epoch_that_a_peer_speaks_of_and_never_gives_is_not_to_be_had() -> None:
    puller: Puller[str] = Puller()
    now_ms = 0
    for count in range(5):
        puller.heard("liar", 10**12, now_ms)
        assert puller.to_be_had(3) == (10**12 if count < 3 else 3)
        puller.answered(asked(puller, 3, now_ms), 10**12, False, now_ms)
        now_ms += 10_000
    puller.heard("good", 7, now_ms)
    assert puller.to_be_had(3) == 7 and puller.wanted(3) == 10**12


def test_a_refused_peer_is_not_asked_for_long_whatever_it_says() -> None:
    puller: Puller[str] = Puller()
    puller.heard("a", 5, 0)
    asked(puller, 0, 0)
    puller.refuse("a", 1)
    puller.heard("a", 50, 2)
    assert puller.next(0, 2) is None and puller.next(0, REFUSED_MS) is None
    puller.heard("a", 50, REFUSED_MS + 1)
    assert asked(puller, 0, REFUSED_MS + 1).peer == "a"


def test_refusing_one_peer_leaves_what_another_was_asked_under_way() -> None:
    puller: Puller[str] = Puller()
    puller.heard("a", 5, 0)
    puller.heard("b", 5, 0)
    request = asked(puller, 0, 0)
    other = "a" if request.peer == "b" else "b"
    puller.refuse(other, 1)
    assert puller.is_current(request) and puller.next(0, 1) is None
    puller.refuse(request.peer, 2)
    assert not puller.is_current(request)


def test_nothing_is_asked_while_held() -> None:
    puller: Puller[str] = Puller()
    puller.heard("a", 5, 0)
    puller.hold(True)
    assert puller.next(0, 0) is None and puller.wake_ms() is None
    puller.hold(False)
    assert asked(puller, 0, 0).peer == "a"


def test_a_snapshot_goes_on_where_it_stopped_at_another_peer() -> None:
    puller: Puller[str] = Puller()
    for peer in ("b", "a"):
        puller.heard(peer, 120, 0)
    puller.began(OFFER, "a")
    first = asked(puller, 0, 0)
    assert (first.peer, first.offer, first.offset) == ("a", OFFER, 0)
    puller.arrived(first, 6, 1)
    second = asked(puller, 0, 1)
    assert (second.peer, second.offset) == ("a", 6)
    puller.failed(second, 2)
    third = asked(puller, 0, 2)
    assert (third.peer, third.offset) == ("b", 6)
    puller.began(OFFER, "a")
    puller.arrived(third, 4, 3)
    assert puller.complete and puller.next(0, 3) is None
    puller.installed()
    following = asked(puller, 100, 4)
    assert following.offer is None and following.after == 100


def test_a_snapshot_that_nobody_has_any_more_is_given_up_and_asked_for_anew() -> None:
    puller: Puller[str] = Puller()
    for peer in ("b", "a"):
        puller.heard(peer, 120, 0)
    puller.began(OFFER, "a")
    puller.arrived(asked(puller, 0, 0), 6, 1)
    puller.lacking(asked(puller, 0, 1))
    puller.lacking(asked(puller, 0, 2))
    again = asked(puller, 0, 3)
    assert again.offer is None and puller.offer is None
    puller.began(OFFER, "a")
    puller.failed(again, 4)
    assert asked(puller, 0, 100).offset == 0


def test_who_offers_what_nobody_gives_is_asked_last() -> None:
    puller: Puller[str] = Puller()
    for peer in ("good", "liar"):
        puller.heard(peer, 120, 0)
    first = asked(puller, 0, 0)
    assert first.peer == "liar"
    puller.answered(first, 120, True, 1)
    puller.began(OFFER, "liar")
    now_ms = 1000
    for _ in range(2):
        puller.lacking(asked(puller, 0, now_ms))
    following = asked(puller, 0, now_ms)
    assert (following.peer, following.offer) == ("good", None)


def test_nothing_wakes_for_a_peer_that_lacks_the_snapshot_while_the_other_rests() -> None:
    puller: Puller[str] = Puller()
    for peer in ("b", "a"):
        puller.heard(peer, 120, 0)
    puller.began(OFFER, "a")
    puller.lacking(asked(puller, 0, 0))
    puller.failed(asked(puller, 0, 10), 10)
    assert puller.next(0, 11) is None
    wake_ms = puller.wake_ms()
    assert wake_ms is not None and wake_ms > 11


def fetch(puller: Puller[str], liar: str, now_ms: int, heard_last: list[str]) -> tuple[bool, int]:
    """Fetch the offer byte by byte; whether every byte was good, and when that ended."""
    good = True
    while not puller.complete:
        puller.heard(heard_last[now_ms % len(heard_last)], 120, now_ms)
        request = puller.next(0, now_ms)
        now_ms += 10
        if request is None:
            continue
        if request.offer is None:
            puller.answered(request, 120, True, now_ms)
            puller.began(OFFER, request.peer)
        else:
            good = good and request.peer != liar
            last = request.peer
            puller.arrived(request, 1, now_ms)
        puller.validate()
    if not good:
        puller.damaged(last, now_ms)
    return good, now_ms


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=3, max_size=30), st.sampled_from(["a", "b", "c"]))
def test_one_peer_whose_bytes_are_wrong_cannot_spoil_every_transfer(heard: list[str], liar: str) -> None:
    puller: Puller[str] = Puller()
    now_ms = 0
    for peer in ("a", "b", "c"):
        puller.heard(peer, 120, now_ms)
    for _ in range(5):
        good, now_ms = fetch(puller, liar, now_ms, heard)
        if good:
            return
    raise AssertionError("five transfers were spoilt")


def test_who_gives_a_snapshot_alone_is_not_forgotten_however_many_speak() -> None:
    puller: Puller[str] = Puller()
    for peer in ("b", "a"):
        puller.heard(peer, 120, 0)
    puller.began(OFFER, "a")
    puller.arrived(asked(puller, 0, 0), 6, 0)
    puller.failed(asked(puller, 0, 0), 0)
    puller.arrived(asked(puller, 0, 0), 4, 0)
    puller.damaged("b", 0)
    alone = asked(puller, 0, 10_000)
    puller.answered(alone, 120, True, 10_000)
    puller.began(OFFER, alone.peer)
    puller.failed(asked(puller, 0, 10_000), 10_000)
    for number in range(3 * FETCH_SOURCES_MAX):
        puller.heard(f"peer-{number}", 120, 10_000)
        puller.validate()
    again = asked(puller, 0, 20_000)
    assert (again.peer, again.offer) == (alone.peer, OFFER)


def test_a_peer_alone_that_stops_answering_is_given_up() -> None:
    puller: Puller[str] = Puller()
    for peer in ("b", "a"):
        puller.heard(peer, 120, 0)
    puller.began(OFFER, "a")
    puller.arrived(asked(puller, 0, 0), 6, 0)
    puller.failed(asked(puller, 0, 0), 0)
    puller.arrived(asked(puller, 0, 0), 4, 0)
    puller.damaged("b", 0)
    offered = asked(puller, 0, 10_000)
    puller.answered(offered, 120, True, 10_000)
    puller.began(OFFER, offered.peer)
    now_ms, peers = 10_000, []
    while puller.offer is not None:
        now_ms += 10_000
        request = puller.next(0, now_ms)
        if request is not None and request.offer is not None:
            peers.append(request.peer)
            puller.failed(request, now_ms)
    assert set(peers) == {offered.peer} and len(peers) == 4


def test_a_snapshot_that_was_overtaken_is_given_up() -> None:
    puller: Puller[str] = Puller()
    puller.heard("a", 120, 0)
    puller.began(OFFER, "a")
    puller.arrived(asked(puller, 0, 0), 6, 1)
    assert asked(puller, 100, 2).offer is None


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_is_lost_everything_is_fetched_once_a_peer_answers(seed: int) -> None:
    """Peers are silent, lie about what they have, or answer late; one of them is whole."""
    rng = random.Random(seed)
    puller: Puller[int] = Puller()
    epochs = {peer: rng.randrange(1, 200) for peer in range(1, 30)}
    epochs[0] = 200
    have, now_ms, under_way = 0, 0, 0
    late: list[tuple[int, Request[int]]] = []
    for _ in range(4000):
        now_ms += rng.randrange(1, 60)
        for peer in rng.sample(sorted(epochs), 3):
            puller.heard(peer, epochs[peer], now_ms)
        for due, request in [pair for pair in late if pair[0] <= now_ms]:
            late.remove((due, request))
            newest = min(epochs[request.peer], request.after + 16) if rng.random() < 0.9 else 0
            took = newest > have
            have = max(have, newest) if request.after <= have else have
            under_way -= puller.is_current(request)
            puller.answered(request, epochs[request.peer], took, now_ms)
        request = puller.next(have, now_ms)
        puller.validate()
        assert len(puller._sources) <= FETCH_SOURCES_MAX
        if request is not None:
            assert request.after == have < epochs[request.peer]
            if request.peer == 0 or rng.random() < 0.5:
                late.append((now_ms + rng.randrange(0, 400), request))
        if have == 200:
            return
    raise AssertionError(f"stopped at {have}")


def test_a_late_answer_that_a_peer_lacks_the_snapshot_says_nothing_of_the_one_that_is_asked_now() -> None:
    puller: Puller[str] = Puller()
    for peer in ("a", "b"):
        puller.heard(peer, 200, 0)
    puller.began(OFFER, "a")
    late = asked(puller, 0, 0)
    now_ms = ANSWER_MS_MIN
    other = asked(puller, 0, now_ms)
    puller.lacking(late)
    assert puller.is_current(other)
    puller.failed(other, now_ms)
    assert asked(puller, 0, now_ms + REFUSED_MS).peer in ("a", "b")


def test_an_answer_counts_also_when_its_peer_made_room_for_others_meanwhile() -> None:
    puller: Puller[str] = Puller()
    puller.heard("a", 5, 0)
    first = asked(puller, 0, 0)
    for number in range(FETCH_SOURCES_MAX):
        puller.heard(f"b{number}", 9, 1)
    assert "a" not in puller._sources and puller.is_current(first)
    puller.answered(first, 5, True, 2)
    following = asked(puller, 5, 2)
    assert following.peer.startswith("b") and following.after == 5
