"""What changes of the ring and of replications change in the placements, and which replicas that stay must be
filled.

Invariant: cutting and merging never change the replicas of any token; the normal form of a ring at rest has
no two adjacent ranges with equal groups. Once the gained replicas and these were filled, each write that was
acknowledged at QUORUM or LOCAL_QUORUM under the old setting is on as many replicas as a quorum of the new one
has, so that whatever follows (a read, a replacement of a dead node, another step) finds it. Where the quorum
shrinks together with the replicas that is so by itself; where a replica goes and the quorum stays, it may
have been one of them.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from lockstep.placement.circle import Circle, Owner
from lockstep.placement.placements import PlacedRange, ReplicaGroup, RingPlacement, ring_of_ranges
from lockstep.placement.quorums import DcOf, dc_factors, majority, sure_copies
from lockstep.placement.strategies import (
    NETWORK_TOPOLOGY,
    ReplicaList,
    Seats,
    Sight,
    placed,
    ring_of,
    seats,
    swept,
    walked,
)
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

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


def computed_ring(
    group: int, replication: Replication, owners: Circle | Sequence[Owner], epoch: int
) -> RingPlacement:
    """The ring at rest for these owners, in normal form, every group changed at `epoch`."""
    circle = owners if isinstance(owners, Circle) else Circle.of(owners)
    rights, lists = ring_of(circle, swept(replication, circle))
    last = [*map(operator.ne, lists, lists[1:]), True]
    rights, lists = list(itertools.compress(rights, last)), list(itertools.compress(lists, last))
    assert rights[-1] == TOKEN_MAX, "the last range ends where the ring does"
    ranges = map(Range, [TOKEN_MIN, *rights[:-1]], rights)
    groups = map(ReplicaGroup, lists, lists, itertools.repeat(epoch))
    return ring_of_ranges(group, replication, tuple(map(PlacedRange, ranges, groups)))


def changes(replication: Replication, before: Circle, after: Circle) -> tuple[Delta, ...]:
    """Ranges whose replicas differ between two circles, as `differences` of the two plans tells them.

    Costs the tokens that changed owner and the ranges that differ, unless racks or data centres come or go
    so that the rules of the choice change: then both rings are swept.
    """
    tokens = before.changed_tokens(after)
    if not tokens:
        return ()
    seated = seats(replication, before), seats(replication, after)
    if not before.tokens or not after.tokens or not seated[0].alike(seated[1]):
        return differences(plan_of(replication, before), plan_of(replication, after))
    pair = _Pair((before, after), seated, tokens[-1])
    # Backwards: a difference that reaches down to another changed token takes it along.
    reached = tokens[-1] + 1
    for token in reversed(tokens):
        if token < reached:
            reached = pair.follow(token)
    found: list[Delta] = []
    for delta in sorted(pair.found, key=lambda delta: delta.range):
        _append_joined(found, delta)
    assert all(one.range.right <= other.range.left for one, other in itertools.pairwise(found)), (
        "no token is told twice, and ranges are in order"
    )
    return tuple(found)


class _Pair:
    """Two circles swept backwards together, from tokens after which they have the same replicas, or not."""

    def __init__(self, circles: tuple[Circle, Circle], seated: tuple[Seats, Seats], highest: int) -> None:
        assert circles[0].tokens and circles[1].tokens, "who walks a circle meets somebody"
        self.found: list[Delta] = []
        #: The ranges looked at: what it cost.
        self.steps = 0
        self._circles = circles
        self._seated = seated
        self._highest = highest

    def follow(self, token: int) -> int:
        """Find what differs from `token` back to the first token where nothing does, and return that one."""
        one, two = self._circles
        at_one, at_two = bisect_right(one.tokens, token), bisect_right(two.tokens, token)
        found = walked(self._seated[0], one, at_one)
        # Behind any but the highest token the two were found to be equal.
        found_two = found if token < self._highest else walked(self._seated[1], two, at_two)
        sights = Sight(self._seated[0], found), Sight(self._seated[1], found_two)
        token, lowest = self._descend(token, at_one, at_two, sights, TOKEN_MIN - 1)
        if not lowest:
            return token
        # Tokens above the last one have the replicas of the first one; below them it goes on.
        top = max(one.tokens[-1], two.tokens[-1])
        self._differ(top, TOKEN_MAX, sights)
        self._descend(top, len(one.tokens), len(two.tokens), sights, self._highest)
        return token

    def _descend(
        self, token: int, at_one: int, at_two: int, sights: tuple[Sight, Sight], end: int
    ) -> tuple[int, bool]:
        """(the token at which it stopped, whether nothing is below it); goes no lower than above `end`."""
        (one, two), (sight_one, sight_two) = self._circles, sights
        while token > end:
            self.steps += 1
            if at_one and one.tokens[at_one - 1] == token:
                at_one -= 1
                sight_one.back(one.nodes[at_one])
            if at_two and two.tokens[at_two - 1] == token:
                at_two -= 1
                sight_two.back(two.nodes[at_two])
            if sight_one.replicas == sight_two.replicas:
                return token, False
            below = max(
                one.tokens[at_one - 1] if at_one else TOKEN_MIN,
                two.tokens[at_two - 1] if at_two else TOKEN_MIN,
            )
            assert below < token, "each step goes down the ring, so that it ends"
            self._differ(below, token, sights)
            if not at_one and not at_two:
                return token, True
            token = below
        return token, False

    def _differ(self, left: int, right: int, sights: tuple[Sight, Sight]) -> None:
        if left < right:
            self.found.append(Delta(Range(left, right), sights[0].replicas, sights[1].replicas))


def plan_of(replication: Replication, circle: Circle) -> Plan:
    """The replicas of the whole ring, cut at every token of the circle."""
    return placed(circle, swept(replication, circle))


def differences(before: Plan, after: Plan) -> tuple[Delta, ...]:
    """Ranges whose replicas differ, cut where either plan is cut, adjacent equal ones joined."""
    return tuple(one for one in paired(before, after) if one.old != one.new)


def paired(before: Plan, after: Plan) -> tuple[Delta, ...]:
    """The whole ring, cut where either plan is cut, adjacent ranges with equal replicas joined."""
    found: list[Delta] = []
    at_before = at_after = 0
    while at_before < len(before) and at_after < len(after):
        range_before, old = before[at_before]
        range_after, new = after[at_after]
        shared = range_before.intersection(range_after)
        assert shared is not None, "both plans cover the ring without gaps"
        _append_joined(found, Delta(shared, old, new))
        at_before += range_before.right == shared.right
        at_after += range_after.right == shared.right
    return tuple(found)


def _append_joined(found: list[Delta], delta: Delta) -> None:
    assert not found or found[-1].range.right <= delta.range.left, "pieces come in ring order"
    if found:
        last = found[-1]
        if last.range.right == delta.range.left and (last.old, last.new) == (delta.old, delta.new):
            found[-1] = Delta(Range(last.range.left, delta.range.right), delta.old, delta.new)
            return
    found.append(delta)


def cut(ring: RingPlacement, tokens: Iterable[int]) -> RingPlacement:
    """The same groups, with a range boundary at each token; the ring itself when all are there."""
    missing: dict[PlacedRange, list[int]] = {}
    for token in sorted(set(tokens)):
        if TOKEN_MIN < token < TOKEN_MAX:
            placed = ring.range_at(token)
            if placed.range.right != token:
                missing.setdefault(placed, []).append(token)
    return ring.replaced(
        [
            PlacedRange(Range(*pair), placed.group)
            for placed, cuts in missing.items()
            for pair in itertools.pairwise((placed.range.left, *cuts, placed.range.right))
        ]
    )


def with_groups(ring: RingPlacement, changes: Sequence[GroupChange], epoch: int) -> RingPlacement:
    """The ring with the groups of the given disjoint ranges replaced; equal groups keep their epoch."""
    assert all(change.writes[: len(change.reads)] == change.reads for change in changes), "readers get writes"
    ring = cut(ring, [bound for change in changes for bound in (change.range.left, change.range.right)])
    regrouped: list[PlacedRange] = []
    for change in sorted(changes, key=lambda change: change.range.right):
        group = ReplicaGroup(change.reads, change.writes, epoch)
        regrouped += [
            PlacedRange(placed.range, group)
            for placed in ring.inside(change.range)
            if not _same_replicas(placed.group, group)
        ]
    return ring.replaced(regrouped)


def merged(
    ring: RingPlacement, keep: Iterable[int] = (), within: Iterable[int] | None = None
) -> RingPlacement:
    """Adjacent ranges with equal replicas joined, except at tokens in `keep`; `within`: only at these tokens.

    A joined group takes the later epoch of the two: a reader of old plans is then told once too
    often, never once too seldom.
    """
    kept = frozenset(keep)
    pairs = itertools.pairwise(ring.ranges) if within is None else _pairs_at(ring, within)
    joined: list[PlacedRange] = []
    for one, two in pairs:
        token = one.range.right
        if token in kept or not _same_replicas(one.group, two.group):
            continue
        # What the range before was joined to goes on here when it ends here.
        assert one.range.right == two.range.left, "ranges adjoin"
        begun = joined.pop() if joined and joined[-1].range.right == token else one
        group = begun.group if begun.group.epoch >= two.group.epoch else two.group
        joined.append(PlacedRange(Range(begun.range.left, two.range.right), group))
    return ring.replaced(joined)


def _pairs_at(ring: RingPlacement, tokens: Iterable[int]) -> Iterator[tuple[PlacedRange, PlacedRange]]:
    """The ranges before and behind each of these tokens at which the ring is cut, ascending."""
    for token in sorted(set(tokens)):
        if TOKEN_MIN < token < TOKEN_MAX:
            placed = ring.range_at(token)
            if placed.range.right == token:
                behind = ring.range_at(token + 1)
                assert behind.range.left == token, "ranges of a ring meet"
                yield placed, behind


def _same_replicas(one: ReplicaGroup, other: ReplicaGroup) -> bool:
    return one.reads == other.reads and one.writes == other.writes


def same_placement(one: RingPlacement, other: RingPlacement) -> bool:
    """Equal replicas for every token, whatever the cuts and epochs."""
    left, right = merged(one), merged(other)
    return [(p.range, p.group.reads, p.group.writes) for p in left.ranges] == [
        (p.range, p.group.reads, p.group.writes) for p in right.ranges
    ]


class Passage(msgspec.Struct, frozen=True):
    """One range that goes from the replicas `old` under `before` to `new` under `after`."""

    old: Sequence[NodeId]
    new: Sequence[NodeId]
    before: Replication
    after: Replication


def refilled(passage: Passage, dc_of: DcOf) -> tuple[NodeId, ...]:
    """Replicas that stay and must be filled before the new counts hold, in ring order."""
    staying = [node for node in passage.new if node in passage.old]
    gained = [node for node in passage.new if node not in passage.old]
    chosen: dict[NodeId, None] = {}
    counted = dc_factors(passage.after)
    for dc, factor in (*(counted if len(counted) > 1 else ()), ("", passage.after.total)):
        local = [node for node in staying if dc in ("", dc_of(node))]
        full = sum(dc in ("", dc_of(node)) for node in gained)
        needed = sure_copies(len(local) + full, factor)
        if _promised(passage, dc, dc_of) + full >= needed:
            continue
        held = sum(node in chosen for node in local)
        others = [node for node in local if node not in chosen]
        chosen.update(dict.fromkeys(others[: max(0, needed - full - held)]))
    assert chosen.keys().isdisjoint(gained), "who is gained is filled anyway"
    return tuple(node for node in passage.new if node in chosen)


def _promised(passage: Passage, dc: str, dc_of: DcOf) -> int:
    """On how many staying replicas (of the data centre) an acknowledged write is for sure."""
    old = [node for node in passage.old if dc in ("", dc_of(node))]
    lost = sum(node not in passage.new for node in old)
    counted = dict(dc_factors(passage.before))
    if not dc:
        after = dict(dc_factors(passage.after))
        if len(counted) > 1 and any(name not in after for name in counted):
            # What LOCAL_QUORUM promised there is nowhere else for sure.
            return 0
        return sure_copies(len(old), passage.before.total) - lost
    factor = counted.get(dc, 0)
    if passage.before.strategy != NETWORK_TOPOLOGY and len(old) >= majority(passage.before.total):
        factor = passage.before.total
    # Without a factor nobody was promised anything here.
    return sure_copies(len(old), factor) - lost if factor else len(old)
