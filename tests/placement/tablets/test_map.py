"""Tablet maps against a plain list of tablets: look-up, replicas, splits, merges, shards, digests."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement import placements
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of, midpoint
from lockstep.placement.tablets.shards import Replica, shards_of, shards_of_items
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .twins import Listed, found_in_list, merged_list, split_list

SETTING = Replication("NetworkTopologyStrategy", (("dc1", 2),))


def replicas(rng: random.Random) -> tuple[Replica, ...]:
    return tuple((NodeId(node), rng.choice((0, 0, 1, 7))) for node in rng.sample(range(1, 9), 2))


def listed(rng: random.Random, count: int) -> Listed:
    shape = rng.randrange(3)
    if shape == 0:
        rights = even_rights(count)
    else:
        width = 1 << 64 if shape == 1 else 20 * count
        first = TOKEN_MIN + 1 if shape == 1 else rng.randrange(TOKEN_MIN + 1, TOKEN_MAX - width)
        chosen = {min(first + rng.randrange(width - 1), TOKEN_MAX - 1) for _ in range(count - 1)}
        rights = [*sorted(chosen), TOKEN_MAX]
    return [(right, replicas(rng)) for right in rights]


def assert_same(found: TabletMap, wanted: Listed, rng: random.Random) -> None:
    found.validate(lambda node: 8)
    assert [(one.right, one.replicas) for one in found.tablets()] == wanted
    assert found.count == len(wanted)
    rights = [right for right, _ in wanted]
    for token in (
        *rng.sample(rights, min(5, len(rights))),
        *(rng.randrange(TOKEN_MIN, TOKEN_MAX) for _ in range(5)),
    ):
        for near in (max(token - 1, TOKEN_MIN + 1), token, min(token + 1, TOKEN_MAX)):
            tablet = found.at(near)
            assert (tablet.right, tablet.replicas) == found_in_list(wanted, near)
            assert tablet.range.contains(near) or near == TOKEN_MIN


def fresh(found: TabletMap) -> TabletMap:
    """The same map made at once instead of by changes."""
    ring = found.ring.with_ranges(found.ring.ranges)
    return TabletMap(ring, shards_of([(one.right, one.replicas) for one in found.tablets()]))


@pytest.mark.parametrize("seed", range(60))
def test_a_map_changes_as_a_list_of_tablets_does(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "_LARGE", 12)
    rng = random.Random(seed)
    wanted = listed(rng, rng.choice((1, 2, 5, 13, 40)))
    found = map_of(7, SETTING, wanted, 1)
    for epoch in range(2, 12):
        assert_same(found, wanted, rng)
        assert fresh(found).digest == found.digest and fresh(found) == found
        what, rights = rng.randrange(3), [right for right, _ in wanted]
        if what == 0:
            changes = {right: replicas(rng) for right in rng.sample(rights, min(3, len(rights)))}
            found = found.with_replicas(changes, epoch)
            wanted = [(right, changes.get(right, known)) for right, known in wanted]
        elif what == 1:
            some = [one.right for one in found.tablets() if midpoint(one.range) is not None]
            some = rng.sample(some, min(2, len(some)))
            found, wanted = found.split(some, epoch), split_list(wanted, some)
        else:
            alike = [right for right in rights if found.merge_refusal(right) is None][::2]
            pairs = [right for right in alike if rights.index(right) % 2 == 0]
            found, wanted = found.merge(pairs, epoch), merged_list(wanted, pairs)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 400))
def test_even_tablets_cover_the_ring_and_stay_even_when_split(count: int) -> None:
    rights = even_rights(count)
    assert rights[-1] == TOKEN_MAX and rights == sorted(set(rights))
    before = map_of(1, SETTING, [(right, ((NodeId(1), 0), (NodeId(2), 3))) for right in rights], 1)
    after = before.split_all(2)
    assert after.count == 2 * count
    for one in before.tablets():
        pair = (after.at(one.range.left + 1), after.at(one.right))
        assert pair[0].range.left == one.range.left and pair[1].range.right == one.right
        assert pair[0].replicas == pair[1].replicas == one.replicas
    if count & (count - 1) == 0:
        assert [one.right for one in after.tablets()] == even_rights(2 * count)
    merged = after.merge([left for left, _ in after.siblings()], 3)
    assert [(one.right, one.replicas) for one in merged.tablets()] == [
        (one.right, one.replicas) for one in before.tablets()
    ]


def test_an_odd_count_leaves_one_tablet_alone() -> None:
    rights = even_rights(5)
    one = map_of(1, SETTING, [(right, ((NodeId(1), 0),)) for right in rights], 1)
    assert one.siblings() == [(rights[0], rights[1]), (rights[2], rights[3])]
    assert one.siblings(rights[2]) == [(rights[0], rights[1]), (rights[3], rights[4])]
    with pytest.raises(AssertionError, match="even number of tablets"):
        one.siblings(rights[1])


def test_tablets_with_other_replicas_are_not_merged() -> None:
    rights = even_rights(3)
    two = ((NodeId(1), 0), (NodeId(2), 1))
    found = map_of(
        1,
        SETTING,
        [(rights[0], two), (rights[1], two[::-1]), (rights[2], ((NodeId(1), 0), (NodeId(2), 2)))],
        1,
    )
    assert found.merge_refusal(rights[0]) is None, "the order of replicas does not matter"
    assert "not the same replicas" in str(found.merge_refusal(rights[1])), "another shard is another place"
    assert "none behind" in str(found.merge_refusal(rights[2]))
    assert "no tablet ends" in str(found.merge_refusal(5))
    with pytest.raises(AssertionError, match="not the same replicas"):
        found.merge([rights[1]], 2)


def test_a_tablet_of_one_token_is_not_split() -> None:
    found = map_of(
        1, SETTING, [(7, ((NodeId(1), 0),)), (8, ((NodeId(1), 0),)), (TOKEN_MAX, ((NodeId(1), 0),))], 1
    )
    assert [one.right for one in found.split_all(2).tablets()][-4:-2] == [7, 8]
    with pytest.raises(AssertionError, match="has one token"):
        found.split([8], 2)
    with pytest.raises(AssertionError, match="no tablet ends"):
        found.split([9], 2)


@pytest.mark.parametrize(
    ("replicas_of_last", "shards", "message"),
    [
        (((NodeId(1), 0), (NodeId(1), 1)), 8, "two replicas of a tablet on one node"),
        (((NodeId(1), 9),), 8, "node 1 has no shard 9"),
    ],
)
def test_a_map_that_cannot_be_is_found(
    replicas_of_last: tuple[Replica, ...], shards: int, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        map_of(1, SETTING, [(TOKEN_MAX, replicas_of_last)], 1).validate(lambda node: shards)


def test_a_map_with_a_gap_or_shards_of_nobody_is_found() -> None:
    with pytest.raises(AssertionError, match="have no tablet"):
        map_of(1, SETTING, [(5, ((NodeId(1), 0),))], 1)
    good = map_of(1, SETTING, [(5, ((NodeId(1), 2),)), (TOKEN_MAX, ((NodeId(1), 0),))], 1)
    with pytest.raises(AssertionError, match="has a shard and no replica"):
        TabletMap(good.ring, good.shards.changed({5: ((NodeId(4), 2),)})).validate()
    with pytest.raises(AssertionError, match="which is not there"):
        TabletMap(good.ring, good.shards.changed({6: ((NodeId(1), 2),)})).validate()


def test_a_change_of_one_tablet_keeps_the_rest() -> None:
    rights = even_rights(9_000)
    found = map_of(1, SETTING, [(right, ((NodeId(1), 0), (NodeId(2), 3))) for right in rights], 1)
    after = found.with_replicas({rights[4_444]: ((NodeId(4), 5), (NodeId(2), 0))}, 2)
    same = [one is other for one, other in zip(found.ring.sectors, after.ring.sectors, strict=True)]
    assert same.count(False) == 1
    branches = zip(found.shards.tree.branches, after.shards.tree.branches, strict=True)
    assert [one is other for one, other in branches].count(False) == 1
    assert after.digest != found.digest


def test_equal_shards_have_one_normal_form() -> None:
    one = shards_of([(5, ((NodeId(2), 1), (NodeId(1), 3))), (9, ((NodeId(1), 0),))])
    assert shards_of_items(one.items()) == one
    assert one.changed({5: ()}) == shards_of([]) and one.changed({9: ((NodeId(1), 0),)}) is one
    with pytest.raises(ValueError, match="normal form"):
        shards_of_items([b"\x91\x92\x05\x90"])
