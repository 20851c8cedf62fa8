"""The part that says which ranges are on their way, by itself and at the size of many tablets."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from lockstep.metadata.log.apply import diff
from lockstep.metadata.transitions import (
    NO_TRANSITIONS,
    TRANSITIONS,
    Transition,
    Transitions,
    key_of,
    transitions_of,
)
from lockstep.placement.placements import PlacedRange, ReplicaGroup, ring_of_ranges
from lockstep.values import hash_tree
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.metadata.histories import simple, started
from tests.metadata.stored import from_stored, stored

A, B, C = NodeId(1), NodeId(2), NodeId(3)


def even(count: int) -> list[Range]:
    """The ring in so many equal parts, whose bounds share their low bits."""
    width = (TOKEN_MAX - TOKEN_MIN + 1) // count
    bounds = [TOKEN_MIN + at * width for at in range(count)] + [TOKEN_MAX]
    return [Range(*pair) for pair in itertools.pairwise(bounds)]


def transition(group: int, range_: Range, operation_id: int) -> Transition:
    return Transition(group, range_, (A,), (B,), simple(1), operation_id=operation_id)


def many(groups: int, tablets: int, operation_id: int = 1) -> list[Transition]:
    ranges = even(tablets)
    return [transition(group, range_, operation_id) for group in range(1, groups + 1) for range_ in ranges]


@pytest.mark.parametrize(("groups", "tablets"), [(1, 1 << 16), (1024, 64), (256, 256)])
def test_keys_differ_and_spread_over_the_tree_however_the_ring_is_cut(groups: int, tablets: int) -> None:
    keys = {key_of(one.group, one.range.right) for one in many(groups, tablets)}
    assert len(keys) == groups * tablets and min(keys) >= 0
    buckets = [0] * 4096
    for key in keys:
        buckets[key % 4096] += 1
    assert max(buckets) <= 4 * groups * tablets / 4096


def test_a_change_of_one_costs_two_nodes_and_a_bucket() -> None:
    before = NO_TRANSITIONS.begun(1, many(16, 2048)).begun(2, [transition(17, Range(0, 5), 2)])
    digest = before.tree.digest
    after = before.begun(2, [msgspec.structs.replace(before.of(2)[0], new=(C,))])
    (place,) = [at for at in range(64) if after.tree.branches[at] is not before.tree.branches[at]]
    children = zip(before.tree.branches[place].children, after.tree.branches[place].children, strict=True)
    assert sum(one is not other for one, other in children) == 1
    assert after.tree.digest != digest
    assert [one[1:] for one in hash_tree.changed(before.tree, after.tree)] == [
        (before.of(2)[0], after.of(2)[0])
    ]
    assert after.of(1) is before.of(1)


def test_what_an_operation_holds_is_found_until_it_ends() -> None:
    rng = random.Random(1)
    ranges = even(64)
    value, held = NO_TRANSITIONS, dict[int, list[Transition]]()
    free = [(group, range_) for group in (1, 2) for range_ in ranges]
    for _ in range(200):
        operation_id = rng.randint(1, 6)
        if rng.random() < 0.4:
            free.extend((one.group, one.range) for one in held.pop(operation_id, []))
            value = value.ended(operation_id)
        else:
            free.extend((one.group, one.range) for one in held.pop(operation_id, []))
            wanted = rng.sample(free, rng.randint(0, min(9, len(free))))
            free = [one for one in free if one not in wanted]
            listed = [transition(*one, operation_id) for one in sorted(wanted)]
            value = value.begun(operation_id, listed)
            if listed:
                held[operation_id] = listed
        value.validate()
        everyone = [one for listed in held.values() for one in listed]
        assert value == transitions_of(everyone) and value.count == len(everyone)
        assert value.listed() == sorted(everyone, key=lambda one: (one.group, one.range))
        assert all(list(value.of(number)) == held.get(number, []) for number in range(1, 7))
        assert all(value.at(one.group, one.range.right) is one for one in everyone)


def test_what_is_wanted_is_looked_up_through_the_ring() -> None:
    ranges = even(16)
    placed = [PlacedRange(range_, ReplicaGroup((A,), (A,), 1)) for range_ in ranges]
    ring = ring_of_ranges(7, simple(1), placed)
    moving = [transition(7, ranges[at], 1) for at in (2, 3, 9)]
    value = NO_TRANSITIONS.begun(1, [transition(6, ranges[4], 1), *moving])
    for left, right in itertools.combinations(range(16), 2):
        wanted = Range(ranges[left].left + 1, ranges[right].right - 1)
        assert list(value.held(ring, wanted)) == [one for one in moving if one.range.intersects(wanted)]
    for at, range_ in enumerate(ranges):
        expected = next((one for one in moving if one.range == range_), None)
        for token in (range_.left + 1, range_.right):
            assert value.holder_at(ring, token) is expected, at
    assert list(NO_TRANSITIONS.held(ring, ranges[2])) == []


def test_a_transition_is_one_piece_of_a_snapshot_and_one_line_of_a_difference() -> None:
    value = started([(0,), (100,)], ("k", simple(1))).now
    group = value.placements.rings[0].id
    moving = Transitions().begun(1, [transition(group, Range(0, 100), 1)])
    moved = value.changed(TRANSITIONS.set(moving))
    assert list(TRANSITIONS.items(moving)) == [(0, moving.of(1)[0])]
    (begun,) = diff(value, moved)
    assert begun.path == f"transitions[{group} (0, 100]]" and begun.before == "-"
    further = moving.begun(1, [msgspec.structs.replace(moving.of(1)[0], new=(C,))])
    (line,) = diff(moved, value.changed(TRANSITIONS.set(further)))
    assert (line.path, line.before, line.after) == (f"transitions[{group} (0, 100]].new", "[2]", "[3]")
    assert from_stored(stored(value)).transitions == NO_TRANSITIONS
