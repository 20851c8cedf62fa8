"""Replica groups of every range, as one value precomputed when an entry is applied.

Invariant: the ranges of a ring are sorted, adjacent and cover FULL_RING exactly; rings are sorted by
replication, one per setting in use (keyspaces with equal settings share one). A read replica is
always a write replica of the same range.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

#: From this many ranges on, a search that follows numbers all over the memory costs more than one in a packed
#: array, of which an equal part of the token space is looked up first (there are 4,096 parts).
_LARGE: Final = 8192
_SECTOR_BITS: Final = 64 - 12


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


class RingPlacement(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """All replica groups of one replication setting."""

    replication: Replication
    ranges: tuple[PlacedRange, ...]

    @cached_property
    def rights(self) -> Sequence[int]:
        """Right bound of each range, ascending; the search key of `group_for`."""
        return _packed([placed.range.right for placed in self.ranges])

    @cached_property
    def _sectors(self) -> Sequence[int]:
        """Of a large ring, the number of the first range that ends in each equal part of the token space, and
        how many ranges there are; empty of others."""
        if len(self.ranges) <= _LARGE:
            return ()
        width = 1 << _SECTOR_BITS
        starts = [bisect_left(self.rights, left) for left in range(TOKEN_MIN, TOKEN_MAX, width)]
        return array("q", [*starts, len(self.ranges)])

    def group_for(self, token: int) -> ReplicaGroup:
        """The replica group of `token`, in O(log ranges)."""
        sectors = self._sectors
        if not sectors:
            return self.ranges[bisect_left(self.rights, token)].group
        sector = (token - TOKEN_MIN) >> _SECTOR_BITS
        return self.ranges[bisect_left(self.rights, token, sectors[sector], sectors[sector + 1])].group

    def indices(self, wanted: Range) -> tuple[int, int]:
        """(first, behind the last) of the ranges that share a token with `wanted`."""
        first = bisect_left(self.rights, wanted.left + 1)
        return first, bisect_left(self.rights, wanted.right, first) + 1

    def numbers_in(self, wanted: Range) -> range:
        """Numbers of the ranges that make up `wanted`, at whose bounds the ring must be cut."""
        first, behind = self.indices(wanted)
        assert self.ranges[first].range.left == wanted.left, f"no cut at {wanted.left}"
        assert self.ranges[behind - 1].range.right == wanted.right, f"no cut at {wanted.right}"
        return range(first, behind)

    def overlapping(self, wanted: Range) -> tuple[PlacedRange, ...]:
        """Placed ranges that share a token with `wanted`, in ring order."""
        first, behind = self.indices(wanted)
        return self.ranges[first:behind]

    def spliced(self, pieces: Sequence[tuple[int, int, Sequence[PlacedRange]]]) -> RingPlacement:
        """The ring with ranges number `first` to before `behind` replaced, for each piece, in ring order.

        Each replacement covers the same tokens. All that is outside is copied in whole slices.
        """
        if not pieces:
            return self
        ranges: list[PlacedRange] = []
        rights: list[int] | array[int] = [] if isinstance(self.rights, list) else array("q")
        at = 0
        for first, behind, instead in pieces:
            ranges += self.ranges[at:first]
            rights.extend(self.rights[at:first])
            ranges += instead
            rights.extend([placed.range.right for placed in instead])
            at = behind
        ranges += self.ranges[at:]
        rights.extend(self.rights[at:])
        return ring_with_rights(self.replication, tuple(ranges), rights)

    def regrouped(self, groups: Mapping[int, ReplicaGroup]) -> RingPlacement:
        """The ring with other groups in the ranges of these numbers."""
        if not groups:
            return self
        ranges = list(self.ranges)
        for at, group in groups.items():
            ranges[at] = PlacedRange(ranges[at].range, group)
        return ring_with_rights(self.replication, tuple(ranges), self.rights)

    def validate(self) -> None:
        """Assert coverage, order and that readers receive writes."""
        assert self.ranges, "a ring has at least one range"
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


def ring_with_rights(
    replication: Replication, ranges: tuple[PlacedRange, ...], rights: Sequence[int]
) -> RingPlacement:
    """A ring whose right bounds are known already."""
    ring = RingPlacement(replication, ranges)
    ring.__dict__["rights"] = _packed(rights)
    return ring


def _packed(rights: Sequence[int]) -> Sequence[int]:
    """A list where that is fast, and packed where its numbers would be spread over too much memory."""
    if len(rights) <= _LARGE:
        return rights if isinstance(rights, list) else list(rights)
    return rights if isinstance(rights, array) else array("q", rights)


class Placements(msgspec.Struct, frozen=True, array_like=True, dict=True):
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
