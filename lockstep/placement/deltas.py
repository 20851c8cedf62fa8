"""How one placement becomes another: cut ranges, find what changes, put new groups in, merge again.

Invariant: cutting and merging never change the replicas of any token; the normal form of a ring at
rest has no two adjacent ranges with equal groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from lockstep.placement.placements import PlacedRange, ReplicaGroup, RingPlacement
from lockstep.placement.strategies import Owner, compute
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

ReplicaList = tuple[NodeId, ...]
#: (range, replicas) of a whole ring, sorted and adjacent: what a strategy computes.
Plan = Sequence[tuple[Range, ReplicaList]]


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """One range whose replicas differ between two plans."""

    range: Range
    old: ReplicaList
    new: ReplicaList


class GroupChange(msgspec.Struct, frozen=True, array_like=True):
    """The group one range is to have; writes list the reads first."""

    range: Range
    reads: ReplicaList
    writes: ReplicaList


def computed_ring(replication: Replication, owners: Sequence[Owner], epoch: int) -> RingPlacement:
    """The ring at rest for these owners, in normal form, every group changed at `epoch`."""
    ranges = tuple(
        PlacedRange(range_, ReplicaGroup(replicas, replicas, epoch))
        for range_, replicas in compute(replication, owners)
    )
    return merged(RingPlacement(replication, ranges))


def differences(before: Plan, after: Plan) -> tuple[Delta, ...]:
    """Ranges whose replicas differ, cut where either plan is cut, adjacent equal ones joined."""
    found: list[Delta] = []
    at_before = at_after = 0
    while at_before < len(before) and at_after < len(after):
        range_before, old = before[at_before]
        range_after, new = after[at_after]
        shared = range_before.intersection(range_after)
        assert shared is not None, "both plans cover the ring without gaps"
        if old != new:
            _append_joined(found, Delta(shared, old, new))
        at_before += range_before.right == shared.right
        at_after += range_after.right == shared.right
    return tuple(found)


def _append_joined(found: list[Delta], delta: Delta) -> None:
    if found:
        last = found[-1]
        if last.range.right == delta.range.left and (last.old, last.new) == (delta.old, delta.new):
            found[-1] = Delta(Range(last.range.left, delta.range.right), delta.old, delta.new)
            return
    found.append(delta)


def cut(ring: RingPlacement, tokens: Iterable[int]) -> RingPlacement:
    """The same groups, with a range boundary at each token; the ring itself when all are there."""
    present = set(ring.rights)
    missing = sorted({token for token in tokens if token not in present and _cuts(ring, token)})
    if not missing:
        return ring
    ranges: list[PlacedRange] = []
    at = 0
    for placed in ring.ranges:
        left = placed.range.left
        while at < len(missing) and missing[at] < placed.range.right:
            ranges.append(PlacedRange(Range(left, missing[at]), placed.group))
            left = missing[at]
            at += 1
        ranges.append(PlacedRange(Range(left, placed.range.right), placed.group))
    return RingPlacement(ring.replication, tuple(ranges))


def _cuts(ring: RingPlacement, token: int) -> bool:
    return ring.ranges[0].range.left < token < ring.ranges[-1].range.right


def with_groups(ring: RingPlacement, changes: Sequence[GroupChange], epoch: int) -> RingPlacement:
    """The ring with the groups of the given disjoint ranges replaced; equal groups keep their epoch."""
    if not changes:
        return ring
    wanted = sorted(changes, key=lambda change: change.range)
    ring = cut(ring, [bound for change in wanted for bound in (change.range.left, change.range.right)])
    ranges: list[PlacedRange] = []
    at = 0
    for placed in ring.ranges:
        while at < len(wanted) and wanted[at].range.right <= placed.range.left:
            at += 1
        if at < len(wanted) and wanted[at].range.intersects(placed.range):
            ranges.append(PlacedRange(placed.range, _changed(placed.group, wanted[at], epoch)))
        else:
            ranges.append(placed)
    return RingPlacement(ring.replication, tuple(ranges))


def _changed(group: ReplicaGroup, change: GroupChange, epoch: int) -> ReplicaGroup:
    if group.reads == change.reads and group.writes == change.writes:
        return group
    return ReplicaGroup(change.reads, change.writes, epoch)


def merged(ring: RingPlacement, keep: Iterable[int] = ()) -> RingPlacement:
    """Adjacent ranges with equal replicas joined, except at tokens in `keep`.

    A joined group takes the later epoch of the two: a reader of old plans is then told once too
    often, never once too seldom.
    """
    kept = frozenset(keep)
    ranges: list[PlacedRange] = []
    for placed in ring.ranges:
        if ranges and placed.range.left not in kept and _same_replicas(ranges[-1].group, placed.group):
            last = ranges[-1]
            group = last.group if last.group.epoch >= placed.group.epoch else placed.group
            ranges[-1] = PlacedRange(Range(last.range.left, placed.range.right), group)
        else:
            ranges.append(placed)
    return ring if len(ranges) == len(ring.ranges) else RingPlacement(ring.replication, tuple(ranges))


def _same_replicas(one: ReplicaGroup, other: ReplicaGroup) -> bool:
    return one.reads == other.reads and one.writes == other.writes


def same_placement(one: RingPlacement, other: RingPlacement) -> bool:
    """Equal replicas for every token, whatever the cuts and epochs."""
    left, right = merged(one), merged(other)
    return [(p.range, p.group.reads, p.group.writes) for p in left.ranges] == [
        (p.range, p.group.reads, p.group.writes) for p in right.ranges
    ]
