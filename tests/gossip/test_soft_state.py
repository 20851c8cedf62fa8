"""Soft state spreads to everybody, the newest wins, and messages stay few and small."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.gossip.soft_state import (
    Ack,
    Digest,
    SoftState,
    SoftStates,
    Syn,
    Told,
    Version,
    partners,
)
from lockstep.values.codec import encode
from lockstep.values.conditions import CONDITIONS_TOLD_MAX, Condition
from lockstep.values.limits import (
    GOSSIP_BUILDING_MAX,
    GOSSIP_DIGESTS_MAX,
    GOSSIP_PARTNERS_MAX,
    GOSSIP_REFRESH_ROUNDS,
    GOSSIP_STATES_MAX,
)


def states(own: int, members: int = 3, generation: int = 1) -> SoftStates:
    made = SoftStates(own, generation)
    made.keep(range(1, members + 1))
    return made


def exchange(asker: SoftStates, asked: SoftStates, lost: int = 3) -> int:
    """One exchange, of whose messages those from `lost` on do not arrive; how many were sent."""
    syn = asker.syn()
    assert len(syn.digests) <= GOSSIP_DIGESTS_MAX
    if lost == 0:
        return 1
    ack = asked.answer(syn)
    assert len(ack.told) <= GOSSIP_STATES_MAX and len(ack.wanted) <= GOSSIP_STATES_MAX
    if lost == 1:
        return 2
    back = asker.acknowledged(ack, 0.0)
    if back is None:
        return 2
    assert len(back.told) <= GOSSIP_STATES_MAX
    if lost > 2:
        asked.told(back.told, 0.0)
    return 3


def state_of(holder: SoftStates, node: int) -> SoftState | None:
    known = holder[node]
    return known.state if known is not None else None


def test_an_exchange_brings_both_sides_what_they_lack() -> None:
    one, two = states(1), states(2)
    one.begin_round(SoftState(load_bytes=1), 0.0)
    two.begin_round(SoftState(load_bytes=2), 0.0)
    exchange(one, two)
    assert [state_of(one, 2), state_of(two, 1)] == [SoftState(load_bytes=2), SoftState(load_bytes=1)]
    one.begin_round(SoftState(load_bytes=10), 1.0)
    exchange(two, one)
    assert state_of(two, 1) == SoftState(load_bytes=10)


def test_nothing_new_is_nothing_sent() -> None:
    one, two = states(1), states(2)
    for made in (one, two):
        made.begin_round(SoftState(), 0.0)
    exchange(one, two)
    assert two.answer(one.syn()) == Ack(()) and exchange(one, two) == 2


def test_a_state_is_published_anew_when_it_changed_or_is_old() -> None:
    one = states(1)
    versions = []
    for number in range(2 * GOSSIP_REFRESH_ROUNDS + 1):
        one.begin_round(SoftState(epoch=1 if number < 3 else 2), float(number))
        found = one[1]
        assert found is not None
        versions.append(found.version.version)
    assert versions[:4] == [1, 1, 1, 2] and versions[-1] == 3
    assert versions.index(3) == 3 + GOSSIP_REFRESH_ROUNDS


def test_a_restarted_node_replaces_what_its_former_life_said() -> None:
    one, two = states(1), states(2)
    for number in range(5):
        one.begin_round(SoftState(epoch=number), 0.0)
    exchange(one, two)
    reborn = states(1, generation=2)
    reborn.begin_round(SoftState(epoch=9, ready=False), 0.0)
    exchange(reborn, two)
    assert state_of(two, 1) == SoftState(epoch=9)
    exchange(one, two)
    assert state_of(two, 1) == SoftState(epoch=9), "what the former life still says is older"


def test_a_node_goes_beyond_what_it_forgot_to_have_said() -> None:
    one, two = states(1, generation=5), states(2)
    two.told((Told(1, Version(7, 3), SoftState(epoch=99)),), 0.0)
    one.begin_round(SoftState(epoch=1), 0.0)
    exchange(one, two)
    one.begin_round(SoftState(epoch=1), 1.0)
    exchange(one, two)
    assert state_of(two, 1) == SoftState(epoch=1) and state_of(one, 1) == SoftState(epoch=1)
    one.validate()


def test_a_node_that_left_is_forgotten_and_is_not_told_of_again() -> None:
    one, two = states(1), states(2)
    for made in (one, two):
        made.begin_round(SoftState(), 0.0)
    three = states(3)
    three.begin_round(SoftState(), 0.0)
    for made in (one, two):
        exchange(three, made)
    one.keep((1, 2))
    exchange(one, two)
    exchange(two, one)
    assert one[3] is None and two[3] is not None
    one.validate()


def test_messages_are_bounded_whatever_arrives() -> None:
    one = states(1, members=5000)
    one.begin_round(SoftState(), 0.0)
    flood = tuple(Told(node, Version(1, 1), SoftState()) for node in range(2, 5000))
    one.told(flood, 0.0)
    assert len(list(one.items())) == 1 + GOSSIP_STATES_MAX
    for at in range(0, len(flood), GOSSIP_STATES_MAX):
        one.told(flood[at : at + GOSSIP_STATES_MAX], 0.0)
    named: Counter[int] = Counter()
    for _ in range(2 * 5000 // (GOSSIP_DIGESTS_MAX // 2)):
        syn = one.syn()
        assert len(syn.digests) == GOSSIP_DIGESTS_MAX and len(encode(syn)) < 5000
        named.update(digest.node for digest in syn.digests)
        one.begin_round(SoftState(), 0.0)
    assert len(named) == 4999, "those that are no news take turns"
    asked = one.answer(Syn(tuple(Digest(node, Version(9, 9)) for node in range(2, 4000))))
    assert len(asked.wanted) == GOSSIP_STATES_MAX


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12))
def test_whatever_is_lost_nobody_goes_back_and_all_agree_in_the_end(seed: int, count: int) -> None:
    rng = random.Random(seed)
    all_ = {number: states(number, count) for number in range(1, count + 1)}
    seen: dict[tuple[int, int], Version] = {}
    for step in range(60):
        own = rng.randint(1, count)
        all_[own].begin_round(SoftState(epoch=step), float(step))
        other = rng.randint(1, count)
        if other != own:
            exchange(all_[own], all_[other], rng.randint(0, 3))
        for holder in all_.values():
            holder.validate()
            for node, known in holder.items():
                assert seen.get((holder.own, node), Version(0, 0)) <= known.version
                seen[holder.own, node] = known.version
    for number in range(2 * count):
        for own, holder in all_.items():
            for other in partners(range(1, count + 1), own, number):
                exchange(holder, all_[other])
    assert (
        len({tuple(sorted((n, k.version, k.state.epoch) for n, k in h.items())) for h in all_.values()}) == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 100, 1000])
def test_the_messages_of_a_node_do_not_grow_with_the_cluster(count: int) -> None:
    ids, rounds = range(1, count + 1), 20
    asked: Counter[int] = Counter()
    for number in range(rounds):
        for own in ids:
            chosen = partners(ids, own, number)
            assert own not in chosen and 1 <= len(chosen) <= GOSSIP_PARTNERS_MAX
            asked.update(chosen)
    # A syn sent and one received are at most three messages each.
    assert max(asked.values()) <= GOSSIP_PARTNERS_MAX * rounds + 1
    assert min(asked.values()) >= rounds // 2


@pytest.mark.parametrize("count", [10, 100, 250, 1000])
def test_news_reaches_everybody_in_a_logarithmic_number_of_rounds(count: int) -> None:
    """In lockstep, so that nobody passes on in a round what it learned in the same one."""
    ids, knowing, rounds = range(1, count + 1), {1}, 0
    while len(knowing) < count:
        pairs = [(own, other) for own in ids for other in partners(ids, own, rounds)]
        told = {other for own, other in pairs if own in knowing}
        asked = {own for own, other in pairs if other in knowing}
        knowing, rounds = knowing | told | asked, rounds + 1
        assert rounds <= math.ceil(math.log2(count)), f"{len(knowing)} of {count} know"


def test_what_arrives_late_changes_nothing() -> None:
    one, two = states(1), states(2)
    late = []
    for epoch in (1, 2, 3):
        two.begin_round(SoftState(epoch=epoch), 0.0)
        late.append(two.answer(Syn(())).told)
    for told in (late[1], late[2], late[0], late[1]):
        one.told(told, 0.0)
    assert state_of(one, 2) == SoftState(epoch=3)


def test_with_a_dead_half_the_living_still_hear_of_each_other() -> None:
    living = list(range(1, 101, 2))
    all_ = {number: states(number, 100) for number in living}
    all_[1].begin_round(SoftState(epoch=7), 0.0)
    for number in range(10):
        for own in living:
            # They do not know yet who is dead, and choose among all.
            for other in partners(range(1, 101), own, number):
                if other in all_:
                    exchange(all_[own], all_[other])
    assert all(state_of(holder, 1) is not None for holder in all_.values())


@pytest.mark.parametrize(
    ("version", "state"),
    [
        (Version(2**64 - 1, 1), SoftState()),
        (Version(1, 2**64 - 1), SoftState()),
        (Version(2**63, 2**64 - 1), SoftState()),
        (Version(2, -1), SoftState()),
        (Version(2, 1), SoftState(release="x" * 1000)),
        (Version(2, 1), SoftState(schema_version=b"x" * 1000)),
        (Version(2, 1), SoftState(started_us=-1)),
        (Version(2, 1), SoftState(conditions=(Condition("A"),) * (CONDITIONS_TOLD_MAX + 1))),
        (Version(2, 1), SoftState(conditions=(Condition("A", detail="x" * 1000),))),
    ],
)
def test_what_no_node_can_have_said_is_not_kept_and_nobody_is_silenced_by_it(
    version: Version, state: SoftState
) -> None:
    made = states(1, members=2)
    made.begin_round(SoftState(ready=True), 0.0)
    made.told((Told(1, version, state), Told(2, version, state)), 1.0)
    made.begin_round(SoftState(ready=False), 2.0)
    made.validate()
    assert made[2] is None and len(encode(made.answer(Syn(())))) < 200
    made.told((Told(2, Version(3, 1), SoftState(ready=True)),), 3.0)
    known = made[2]
    assert known is not None and known.state.ready


def test_a_view_counts_as_built_only_where_it_was_known_and_had_room_to_be_named() -> None:
    said = SoftState(epoch=7, building=(3, 5))
    assert [said.may_lack(view, 7) for view in (2, 3, 4, 5, 6)] == [False, True, False, True, False]
    assert said.may_lack(6, 8), "it knew of no such view"
    full = SoftState(epoch=7, building=tuple(range(10, 10 + GOSSIP_BUILDING_MAX)))
    last = full.building[-1]
    assert [full.may_lack(view, 7) for view in (9, 10, last, last + 1)] == [False, True, True, True]


@pytest.mark.parametrize(("generation", "version"), [(5, 7), (3, 9), (8, 2)])
def test_what_others_hold_of_a_start_that_was_forgotten_is_outranked(generation: int, version: int) -> None:
    """Of this very start, as after a copy of the directory, of an older and of a later one."""
    one = states(1, generation=5)
    held = Version(generation, version)
    one.told([Told(1, held, SoftState(epoch=9))], 0.0)
    one.begin_round(SoftState(epoch=1), 0.0)
    known = one[1]
    assert known is not None and known.version > held and known.state.epoch == 1
    one.validate()
