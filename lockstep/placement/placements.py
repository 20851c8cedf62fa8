"""Replica groups of every range, as one value precomputed when an entry is applied.

Invariant: the ranges of a ring are sorted, adjacent and cover FULL_RING exactly; rings are sorted by
replication, one per setting in use (keyspaces with equal settings share one). A read replica is
always a write replica of the same range.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import msgspec

from lockstep.schema.model import Replication
from lockstep.values import codec
from lockstep.values.hash_tree import blake
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

#: Up to this many ranges a change that copies them all costs less than a millisecond.
_LARGE: Final = 8192
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
            first = bisect_right(self.rights, left, at)
            ranges += self.ranges[at:first]
            if instead is not None:
                ranges.append(instead)
            at = bisect_right(self.rights, right, first)
        ranges += self.ranges[at:]
        return _Sector(tuple(ranges))


class RingPlacement(msgspec.Struct, frozen=True, dict=True):
    """All replica groups of one replication setting.

    The ranges lie in sectors by their right bounds: one sector, or SECTORS of them in a large ring. Which
    follows from how many ranges there are, so equal rings have equal sectors. A change makes the sectors anew
    that it touches, and keeps the others with their digests. Made by `ring_of_ranges`.
    """

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
        return blake(codec.encode((self.replication, sectors)))

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
        made = RingPlacement(self.replication, tuple(sectors))
        return made if is_one == (made.count <= _LARGE) else ring_of_ranges(self.replication, made.ranges)

    def named(self, replication: Replication) -> RingPlacement:
        """The same ranges under another setting."""
        return RingPlacement(replication, self.sectors)

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


def ring_of_ranges(replication: Replication, ranges: Sequence[PlacedRange]) -> RingPlacement:
    """The ring of these ranges, which are sorted."""
    assert ranges, "a ring has at least one range"
    return RingPlacement(replication, _sectors(ranges))


def _sectors(ranges: Sequence[PlacedRange]) -> tuple[_Sector, ...]:
    if len(ranges) <= _LARGE:
        return (_Sector(tuple(ranges)),)
    found: list[list[PlacedRange]] = [[] for _ in range(SECTORS)]
    for placed in ranges:
        found[_sector_of(placed.range.right)].append(placed)
    return tuple(_Sector(tuple(sector)) for sector in found)


def _sector_of(token: int) -> int:
    return (token - TOKEN_MIN) >> _SECTOR_BITS


class Placements(msgspec.Struct, frozen=True, dict=True):
    """Every ring, sorted by replication."""

    rings: tuple[RingPlacement, ...] = ()

    @cached_property
    def by_replication(self) -> dict[Replication, RingPlacement]:
        return {ring.replication: ring for ring in self.rings}

    def ring(self, replication: Replication) -> RingPlacement:
        """Raises KeyError for a replication no keyspace uses."""
        return self.by_replication[replication]

    def group_for(self, replication: Replication, token: int) -> ReplicaGroup:
        return self.by_replication[replication].group_for(token)

    def with_rings(self, changed: tuple[RingPlacement, ...]) -> Placements:
        """This value with the given rings put in or replaced; the others keep their identity."""
        if not changed:
            return self
        rings = dict(self.by_replication)
        rings.update({ring.replication: ring for ring in changed})
        return Placements(tuple(rings[replication] for replication in sorted(rings)))

    def validate(self) -> None:
        replications = [ring.replication for ring in self.rings]
        assert replications == sorted(set(replications)), "rings are sorted and unique"
        for ring in self.rings:
            ring.validate()


NO_PLACEMENTS = Placements()
