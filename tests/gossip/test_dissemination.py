from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.gossip.pulling import FAN_OUT, Tree, ping_rounds, pinged, receivers
from lockstep.values.limits import ANNOUNCEMENTS_MAX, PINGED_MAX

IDS = st.lists(st.integers(1, 5000), min_size=1, max_size=400, unique=True).map(sorted)


def told(ids: list[int], epoch: int, leader: int, dead: frozenset[int] = frozenset()) -> dict[int, int]:
    """Everybody who hears of the epoch when no message is lost, with how many messages each sent."""
    tree = Tree(ids, epoch)
    sent: dict[int, int] = {}
    waiting = [leader]
    while waiting:
        node = waiting.pop()
        if node in sent or node in dead:
            continue
        chosen = receivers(tree, node, leads=node == leader, alive=lambda other: other not in dead)
        assert node not in chosen and len(set(chosen)) == len(chosen)
        sent[node] = len(chosen)
        waiting.extend(chosen)
    return sent


@settings(max_examples=60, deadline=None)
@given(IDS, st.integers(1, 10**9), st.data())
def test_everyone_is_told_and_nobody_sends_much(ids: list[int], epoch: int, data: st.DataObject) -> None:
    leader = data.draw(st.sampled_from(ids))
    sent = told(ids, epoch, leader)
    assert sorted(sent) == ids
    assert sent[leader] <= 2 * FAN_OUT
    assert all(count <= FAN_OUT for node, count in sent.items() if node != leader)


@settings(max_examples=60, deadline=None)
@given(IDS, st.integers(1, 10**9), st.data())
def test_a_leader_that_is_no_member_tells_everyone_too(
    ids: list[int], epoch: int, data: st.DataObject
) -> None:
    stranger = data.draw(st.integers(1, 5001).filter(lambda node: node not in ids))
    assert sorted(told(ids, epoch, stranger)) == sorted([*ids, stranger])


@settings(max_examples=60, deadline=None)
@given(IDS, st.integers(1, 10**9), st.data())
def test_nobody_sends_more_than_the_limit_whoever_is_dead(
    ids: list[int], epoch: int, data: st.DataObject
) -> None:
    leader = data.draw(st.sampled_from(ids))
    dead = frozenset(data.draw(st.lists(st.sampled_from(ids), unique=True))) - {leader}
    assert all(count <= ANNOUNCEMENTS_MAX for count in told(ids, epoch, leader, dead).values())


def test_a_dead_member_hides_the_news_from_nobody() -> None:
    ids = list(range(1, 301))
    for epoch in range(1, 60):
        dead = frozenset({(epoch * 37) % 300 + 1, (epoch * 11) % 300 + 1}) - {1}
        assert sorted(told(ids, epoch, 1, dead)) == [node for node in ids if node not in dead]


def tellers(tree: Tree) -> set[int]:
    return {tree.at(place) for place in range(1000) if tree.below(place)}


def test_those_who_pass_news_on_differ_from_epoch_to_epoch() -> None:
    ids = list(range(1, 1001))
    busy: Counter[int] = Counter()
    for epoch in range(1, 201):
        inner, after = tellers(Tree(ids, epoch)), tellers(Tree(ids, epoch + 1))
        assert len(inner & after) <= 2
        busy.update(inner)
    assert max(busy.values()) <= 2 * min(busy.values())


def test_three_nodes_are_told_by_the_leader_alone() -> None:
    tree = Tree([1, 2, 3], 7)
    assert set(receivers(tree, 2, leads=True, alive=lambda _: True)) == {1, 3}
    assert receivers(tree, 1, leads=False, alive=lambda _: True) == ()


@settings(max_examples=40, deadline=None)
@given(IDS, st.data())
def test_over_the_rounds_every_other_node_is_asked_evenly(ids: list[int], data: st.DataObject) -> None:
    own = data.draw(st.sampled_from(ids))
    others = [node for node in ids if node != own]
    start = data.draw(st.integers(0, 1000))
    asked: Counter[int] = Counter()
    for round_number in range(start, start + ping_rounds(len(ids))):
        chosen = pinged(ids, own, round_number)
        assert len(set(chosen)) == len(chosen) == min(len(others), PINGED_MAX)
        asked.update(chosen)
    missed = [node for node in others if not asked[node]]
    # A rotation that starts anywhere may come round one step early once.
    assert set(asked) <= set(others) and len(missed) < PINGED_MAX


def test_each_node_is_asked_by_as_many_as_it_asks() -> None:
    ids = list(range(10, 1010))
    asked = Counter(target for own in ids for target in pinged(ids, own, 5))
    assert set(asked.values()) == {PINGED_MAX} and sorted(asked) == ids


def test_a_small_cluster_is_asked_whole_and_a_stranger_asks_too() -> None:
    ids = [1, 4, 9]
    assert sorted(pinged(ids, 4, 3)) == [1, 9]
    assert sorted(pinged(ids, 5, 3)) == ids
    assert pinged([], 5, 0) == pinged([5], 5, 0) == ()
