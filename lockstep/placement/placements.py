"""Replica groups of every range, as one value precomputed when an entry is applied.

A placement group is what shares one placement: all keyspaces that are replicated alike, and today always a
ring. Invariant: the ranges of a ring are sorted, adjacent and cover FULL_RING exactly. The id of a group is
given once, and stays when its setting changes. A read replica is always a write replica of the same range.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import msgspec
from rpds import HashTrieMap

from lockstep.schema.model import Replication
from lockstep.values import codec
from lockstep.values.hash_tree import blake
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

#: Up to this many ranges a change that copies them all costs less than a millisecond.
_LARGE: Final = 4096
#: Equal parts of the token space: 327,680 tablets are 320 in each, which cost as much to hash as the digests
#: of the parts.
SECTORS: Final = 1024
_SECTOR_BITS: Final = 64 - 10


class ReplicaGroup(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Nodes that answer reads and nodes that must receive writes; `epoch` last changed either.

    Reads come in ring order, primary first; writes start with the reads, then the others (pending
    replicas while writes go to both sides, leaving ones after reads moved).
    """

    reads: tuple[NodeId, ...]
    writes: tuple[NodeId, ...]
    epoch: int

    @property
    def write_only(self) -> tuple[NodeId, ...]:
        """Write replicas that no read asks: each adds one to the acknowledgements a write needs."""
        if self.reads is self.writes:
            return ()
        return tuple(node for node in self.writes if node not in self.reads)


class PlacedRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    range: Range
    group: ReplicaGroup


class _Sector(msgspec.Struct, frozen=True, dict=True):
    """The ranges that end in one part of the token space, ascending."""

    ranges: tuple[PlacedRange, ...] = ()

    @cached_property
    def rights(self) -> list[int]:
        return [placed.range.right for placed in self.ranges]

    @cached_property
    def digest(self) -> bytes:
        return blake(codec.encode(self.ranges))

    def spliced(self, edits: Sequence[tuple[int, int, PlacedRange | None]]) -> _Sector:
        """Without the ranges that end behind the first token up to the second one, and with the one in their
        place if there is one, for each edit in ring order."""
        ranges: list[PlacedRange] = []
        at = 0
        for left, right, instead in edits:
            assert left < right, "an edit is of tokens"
            first = bisect_right(self.rights, left, at)
            ranges += self.ranges[at:first]
            if instead is not None:
                ranges.append(instead)
            at = bisect_right(self.rights, right, first)
        ranges += self.ranges[at:]
        return _Sector(tuple(ranges))


class RingPlacement(msgspec.Struct, frozen=True, dict=True):
    """A placement group: its id, its replication setting, and all its replica groups.

    The ranges lie in sectors by their right bounds: one sector, or SECTORS of them in a large ring. Which
    follows from how many ranges there are, so equal rings have equal sectors. A change makes the sectors anew
    that it touches, and keeps the others with their digests. Made by `ring_of_ranges`.
    """

    id: int
    replication: Replication
    sectors: tuple[_Sector, ...]

    @cached_property
    def ranges(self) -> tuple[PlacedRange, ...]:
        """All of them, in ring order; for those who walk the whole ring."""
        if len(self.sectors) == 1:
            return self.sectors[0].ranges
        return tuple(itertools.chain.from_iterable(sector.ranges for sector in self.sectors))

    @property
    def count(self) -> int:
        return sum(len(sector.ranges) for sector in self.sectors)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes; costs what changed, and 32 bytes of each other sector."""
        sectors = b"".join([sector.digest for sector in self.sectors])
        return blake(codec.encode((self.id, self.replication, sectors)))

    def range_at(self, token: int) -> PlacedRange:
        """The range that holds `token`, in O(log ranges)."""
        sectors = self.sectors
        if len(sectors) == 1:
            sector = sectors[0]
            return sector.ranges[bisect_left(sector.rights, token)]
        number = _sector_of(token)
        sector = sectors[number]
        at = bisect_left(sector.rights, token)
        while at == len(sector.ranges):
            number, at = number + 1, 0
            sector = sectors[number]
        return sector.ranges[at]

    def group_for(self, token: int) -> ReplicaGroup:
        """The replica group of `token`."""
        return self.range_at(token).group

    def overlapping(self, wanted: Range) -> tuple[PlacedRange, ...]:
        """Placed ranges that share a token with `wanted`, in ring order."""
        assert wanted.left < wanted.right, "a range has tokens"
        if len(self.sectors) == 1:
            ranges, rights = self.sectors[0].ranges, self.sectors[0].rights
            first = bisect_right(rights, wanted.left)
            return ranges[first : bisect_left(rights, wanted.right, first) + 1]
        found = [self.range_at(wanted.left + 1)]
        while found[-1].range.right < wanted.right:
            found.append(self.range_at(found[-1].range.right + 1))
        return tuple(found)

    def inside(self, wanted: Range) -> tuple[PlacedRange, ...]:
        """The ranges that make up `wanted`, at whose bounds the ring must be cut."""
        found = self.overlapping(wanted)
        assert found[0].range.left == wanted.left, f"no cut at {wanted.left}"
        assert found[-1].range.right == wanted.right, f"no cut at {wanted.right}"
        return found

    def replaced(self, placed: Sequence[PlacedRange]) -> RingPlacement:
        """The ring with these ranges, which are disjoint and in ring order, in place of all that end in them.
        Together they cover whole ranges of the ring. The ring itself when there are none."""
        if not placed:
            return self
        pairs = itertools.pairwise(placed)
        assert all(one.range.right <= two.range.left for one, two in pairs), "disjoint and in ring order"
        is_one = len(self.sectors) == 1
        edits: dict[int, list[tuple[int, int, PlacedRange | None]]] = {}
        for one in placed:
            left, right = one.range.left, one.range.right
            last = 0 if is_one else _sector_of(right)
            for number in range(0 if is_one else _sector_of(left + 1), last):
                edits.setdefault(number, []).append((left, right, None))
            edits.setdefault(last, []).append((left, right, one))
        sectors = list(self.sectors)
        for number, wanted in edits.items():
            sectors[number] = sectors[number].spliced(wanted)
        assert len(sectors) == len(self.sectors), "a change keeps the sectors"
        made = RingPlacement(self.id, self.replication, tuple(sectors))
        return made if is_one == (made.count <= _LARGE) else self.with_ranges(made.ranges)

    def with_id(self, group: int) -> RingPlacement:
        """The same placement as a group of its own."""
        return RingPlacement(group, self.replication, self.sectors)

    def with_ranges(self, ranges: Sequence[PlacedRange]) -> RingPlacement:
        """The group with these ranges, which are sorted, in place of all of its own."""
        assert ranges, "a ring has at least one range"
        return RingPlacement(self.id, self.replication, _sectors(ranges))

    def recounted(self, replication: Replication, epoch: int) -> RingPlacement:
        """The group under another setting, every range changed at `epoch`."""
        ranges = [
            PlacedRange(placed.range, ReplicaGroup(placed.group.reads, placed.group.writes, epoch))
            for placed in self.ranges
        ]
        return RingPlacement(self.id, replication, _sectors(ranges))

    def validate(self) -> None:
        """Assert coverage, order and that readers receive writes."""
        assert self.ranges, "a ring has at least one range"
        assert self.sectors == _sectors(self.ranges), "ranges lie in their sectors"
        left = TOKEN_MIN
        for placed in self.ranges:
            assert placed.range.left == left, f"gap or overlap at token {left}"
            assert placed.range.left < placed.range.right
            group = placed.group
            assert len(set(group.reads)) == len(group.reads), f"duplicate reader in {placed}"
            assert len(set(group.writes)) == len(group.writes), f"duplicate writer in {placed}"
            assert set(group.reads) <= set(group.writes), f"a reader gets no writes in {placed}"
            left = placed.range.right
        assert left == TOKEN_MAX, f"tokens above {left} have no replicas"


def ring_of_ranges(group: int, replication: Replication, ranges: Sequence[PlacedRange]) -> RingPlacement:
    """The ring of these ranges, which are sorted."""
    assert ranges, "a ring has at least one range"
    return RingPlacement(group, replication, _sectors(ranges))


def shared(ranges: Iterable[PlacedRange], known: dict[ReplicaGroup, ReplicaGroup]) -> list[PlacedRange]:
    """The ranges with equal groups as one object, which `known` collects: what was decoded has one for each
    range, and there are many ranges and few groups."""
    found: list[PlacedRange] = []
    for placed in ranges:
        group = known.get(placed.group)
        if group is None:
            group = placed.group
            if group.reads == group.writes:
                group = ReplicaGroup(group.reads, group.reads, group.epoch)
            known[group] = group
        found.append(PlacedRange(placed.range, group))
    return found


def _sectors(ranges: Sequence[PlacedRange]) -> tuple[_Sector, ...]:
    if len(ranges) <= _LARGE:
        return (_Sector(tuple(ranges)),)
    found: list[list[PlacedRange]] = [[] for _ in range(SECTORS)]
    for placed in ranges:
        found[_sector_of(placed.range.right)].append(placed)
    assert sum(map(len, found)) == len(ranges), "each range is in a sector"
    return tuple(_Sector(tuple(sector)) for sector in found)


def _sector_of(token: int) -> int:
    return (token - TOKEN_MIN) >> _SECTOR_BITS


NO_GROUPS: Final[HashTrieMap[int, RingPlacement]] = HashTrieMap()


class Placements(msgspec.Struct, frozen=True, dict=True):
    """Every placement group, by id; `next_id` is that of the next one."""

    by_id: HashTrieMap[int, RingPlacement] = NO_GROUPS
    next_id: int = 1

    @cached_property
    def rings(self) -> tuple[RingPlacement, ...]:
        """All of them, by id."""
        return tuple(self.by_id[group] for group in sorted(self.by_id))

    @cached_property
    def digest(self) -> bytes:
        """32 bytes; costs what changed, and 32 bytes of each other group."""
        return blake(codec.encode((self.next_id, b"".join([ring.digest for ring in self.rings]))))

    def ring(self, group: int) -> RingPlacement:
        """Raises KeyError for a group that is not there."""
        return self.by_id[group]

    def group_for(self, group: int, token: int) -> ReplicaGroup:
        return self.by_id[group].group_for(token)

    def with_rings(self, changed: Iterable[RingPlacement]) -> Placements:
        """This value with the given groups put in or replaced; the others keep their identity. A group that
        was not there has the next id."""
        by_id, next_id = self.by_id, self.next_id
        for ring in changed:
            assert ring.id in by_id or ring.id == next_id, f"group {ring.id} is gone, or not the next one"
            by_id = by_id.insert(ring.id, ring)
            next_id = max(next_id, ring.id + 1)
        return self if by_id is self.by_id else Placements(by_id, next_id)

    def without(self, gone: Iterable[int]) -> Placements:
        """This value without these groups; itself when there are none."""
        by_id = self.by_id
        for group in gone:
            assert 0 < group < self.next_id, f"group {group} was never given"
            by_id = by_id.remove(group)
        assert len(by_id) <= len(self.by_id), "groups only go"
        return self if by_id is self.by_id else Placements(by_id, self.next_id)

    def validate(self) -> None:
        for group, ring in self.by_id.items():
            assert 0 < group == ring.id < self.next_id, f"group {group} has an id of its own that was given"
            ring.validate()


NO_PLACEMENTS: Final = Placements()
