"""Placement groups by id, against a plain dictionary: what comes, changes and goes, and what that costs."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement.placements import (
    NO_PLACEMENTS,
    PlacedRange,
    Placements,
    ReplicaGroup,
    RingPlacement,
    ring_of_ranges,
    shared,
)
from lockstep.schema.model import Replication
from lockstep.values import codec
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range


def ring(group: int, factor: int = 1, *cuts: int, epoch: int = 1) -> RingPlacement:
    nodes = tuple(NodeId(number + 1) for number in range(factor))
    bounds = [TOKEN_MIN, *sorted(cuts), TOKEN_MAX]
    placed = [
        PlacedRange(Range(*ends), ReplicaGroup(nodes, nodes, epoch)) for ends in itertools.pairwise(bounds)
    ]
    return ring_of_ranges(group, Replication("SimpleStrategy", (("", factor),)), placed)


#: (what is done: put a new group, change one that is there, take one away; which one; its factor)
STEPS = st.lists(
    st.tuples(st.sampled_from(("new", "change", "drop")), st.integers(0, 9), st.integers(1, 4)), max_size=30
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_groups_come_change_and_go_as_in_a_dictionary(steps: list[tuple[str, int, int]]) -> None:
    placements, model, given_ids = NO_PLACEMENTS, dict[int, RingPlacement](), 0
    for what, which, factor in steps:
        known = sorted(model)
        if what == "new":
            given_ids += 1
            model[given_ids] = ring(given_ids, factor)
            placements = placements.with_rings((model[given_ids],))
        elif known and what == "change":
            group = known[which % len(known)]
            model[group] = ring(group, factor, which)
            placements = placements.with_rings((model[group],))
        elif known:
            group = known[which % len(known)]
            del model[group]
            placements = placements.without((group,))
        placements.validate()
        assert placements.rings == tuple(model[group] for group in sorted(model))
        assert all(placements.ring(group) is model[group] for group in model)
        fresh = Placements(placements.by_id, placements.next_id)
        assert placements.next_id == given_ids + 1 and fresh.digest == placements.digest


def test_an_id_is_given_once() -> None:
    gone = NO_PLACEMENTS.with_rings((ring(1), ring(2))).without((2,))
    with pytest.raises(AssertionError, match="group 2 is gone"):
        gone.with_rings((ring(2),))
    with pytest.raises(AssertionError, match="group 7 is gone, or not the next one"):
        gone.with_rings((ring(7),))
    with pytest.raises(KeyError):
        gone.ring(2)
    assert gone.without(()) is gone and gone.with_rings(()) is gone


def test_equal_placements_of_two_groups_have_two_digests() -> None:
    one = ring(1, 3)
    other = one.with_id(2)
    assert one.ranges is other.ranges and one.digest != other.digest
    both = NO_PLACEMENTS.with_rings((one, other))
    assert both.digest != both.without((2,)).digest != NO_PLACEMENTS.digest
    assert both.without((1, 2)).digest != NO_PLACEMENTS.digest, "which ids were given is part of the value"


def test_a_group_keeps_its_id_and_replicas_when_its_setting_changes() -> None:
    before = ring(4, 2, -5, 70)
    after = before.recounted(Replication("SimpleStrategy", (("", 3),)), 9)
    assert after.id == 4 and after.replication.total == 3
    assert [(one.range, one.group.reads, one.group.epoch) for one in after.ranges] == [
        (one.range, one.group.reads, 9) for one in before.ranges
    ]


@pytest.mark.parametrize(
    ("by_id", "next_id"), [({2: ring(1)}, 3), ({1: ring(1)}, 1), ({0: ring(0)}, 1), ({5: ring(5)}, 5)]
)
def test_a_group_under_another_id_or_one_not_given_does_not_validate(
    by_id: dict[int, RingPlacement], next_id: int
) -> None:
    known = NO_PLACEMENTS.by_id
    for group, placed in by_id.items():
        known = known.insert(group, placed)
    with pytest.raises(AssertionError, match="has an id of its own"):
        Placements(known, next_id).validate()


def test_ranges_that_were_read_share_equal_groups_and_nothing_else() -> None:
    placed = ring(1, 2, 0, 10).ranges
    other = PlacedRange(placed[-1].range, ReplicaGroup(placed[0].group.reads, (NodeId(2), NodeId(1)), 1))
    given = codec.decoder(list[PlacedRange]).decode(codec.encode([*placed[:-1], other]))
    assert given[0].group is not given[1].group, "each range was read with a group of its own"
    found = shared(given, known := {})
    assert found == given and len(known) == 2
    assert found[0].group is found[1].group and found[0].group.reads is found[0].group.writes
    assert found[2].group is not found[0].group and found[2].group.writes == (2, 1)
