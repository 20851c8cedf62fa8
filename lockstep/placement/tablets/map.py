"""A tablet map: the placement group of one table, or of tables that lie together, with shards of replicas.

A map is a `RingPlacement` with shards beside it: a tablet is one placed range, named by its last token. So
reads, writes, proofs, barriers and repairs, which ask a group for a token, need not know that it is a map.
Invariant: the tablets cover the whole token space, any number of them with any bounds; no node holds two
replicas of a tablet; a shard stands beside a replica only. A change makes anew what it touches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from lockstep.placement.placements import PlacedRange, ReplicaGroup, RingPlacement, ring_of_ranges
from lockstep.placement.tablets.shards import NO_SHARDS, Replica, Shards, shards_of
from lockstep.schema.model import Replication
from lockstep.values import codec
from lockstep.values.hash_tree import blake
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

_RING: Final = 1 << 64


class Tablet(msgspec.Struct, frozen=True):
    """The tokens of `range` and who has them; `replicas` answer reads."""

    range: Range
    replicas: tuple[Replica, ...]
    epoch: int

    @property
    def right(self) -> int:
        return self.range.right

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(node for node, _ in self.replicas)


class TabletMap(msgspec.Struct, frozen=True, dict=True):
    """`ring` is what the placements have under the group's id; made by `map_of`."""

    ring: RingPlacement
    shards: Shards = NO_SHARDS

    @property
    def id(self) -> int:
        return self.ring.id

    @property
    def replication(self) -> Replication:
        return self.ring.replication

    @property
    def count(self) -> int:
        return self.ring.count

    @property
    def merges(self) -> bool:
        """Whether pairs are joined: two on the same nodes may have another witness each."""
        return not self.replication.has_witnesses

    @cached_property
    def digest(self) -> bytes:
        """32 bytes; costs what changed."""
        return blake(codec.encode((self.ring.digest, self.shards.digest)))

    def at(self, token: int) -> Tablet:
        """The tablet that holds a token: one shift and a binary search among its neighbours."""
        return self._tablet(self.ring.range_at(token))

    def ending(self, right: int) -> Tablet | None:
        """The tablet with exactly this last token."""
        placed = self.ring.range_at(right)
        return self._tablet(placed) if placed.range.right == right else None

    def tablets(self) -> Iterator[Tablet]:
        """All of them, in the order of tokens."""
        placed_elsewhere = self.shards.everything()
        for placed in self.ring.ranges:
            reads = placed.group.reads
            others = placed_elsewhere.get(placed.range.right)
            if others is None:
                yield Tablet(placed.range, tuple([(node, 0) for node in reads]), placed.group.epoch)
            else:
                at = dict(others)
                replicas = tuple([(node, at.get(node, 0)) for node in reads])
                yield Tablet(placed.range, replicas, placed.group.epoch)

    def shard_of(self, right: int, node: NodeId) -> int:
        return self.shards.of(right).get(node, 0)

    def _tablet(self, placed: PlacedRange) -> Tablet:
        at = self.shards.of(placed.range.right)
        replicas = tuple([(node, at.get(node, 0)) for node in placed.group.reads])
        return Tablet(placed.range, replicas, placed.group.epoch)

    # What changes

    def with_replicas(self, changes: Mapping[int, Sequence[Replica]], epoch: int) -> TabletMap:
        """With other replicas, of reads and writes, for the tablets with these last tokens."""
        placed: list[PlacedRange] = []
        for right in sorted(changes):
            known = self.ring.range_at(right)
            assert known.range.right == right, f"no tablet ends at {right}"
            placed.append(PlacedRange(known.range, _group(changes[right], epoch)))
        return TabletMap(self.ring.replaced(placed), self.shards.changed(changes))

    def split(self, rights: Iterable[int], epoch: int) -> TabletMap:
        """The tablets with these last tokens, each cut in its middle; both halves have its replicas."""
        placed: list[PlacedRange] = []
        halves: dict[int, tuple[Replica, ...]] = {}
        for right in sorted(rights):
            tablet = self.ending(right)
            assert tablet is not None, f"no tablet ends at {right}"
            middle = midpoint(tablet.range)
            assert middle is not None, f"the tablet that ends at {right} has one token"
            group = _group(tablet.replicas, epoch)
            assert tablet.range.left < middle < right, "both halves have tokens"
            placed.append(PlacedRange(Range(tablet.range.left, middle), group))
            placed.append(PlacedRange(Range(middle, right), group))
            halves[middle] = tablet.replicas
        return TabletMap(self.ring.replaced(placed), self.shards.changed(halves))

    def split_all(self, epoch: int) -> TabletMap:
        """Twice as many tablets; one with a single token stays."""
        rights = [one.range.right for one in self.ring.ranges if midpoint(one.range) is not None]
        return self.split(rights, epoch)

    def merge(self, rights: Iterable[int], epoch: int) -> TabletMap:
        """Each tablet with one of these last tokens together with the one behind it, which keeps its last
        token. Pairs are disjoint, and `merge_refusal` has nothing against them."""
        placed: list[PlacedRange] = []
        gone: dict[int, tuple[Replica, ...]] = {}
        for right in sorted(rights):
            refusal = self.merge_refusal(right)
            assert refusal is None, refusal
            left, behind = self.ring.range_at(right), self.ring.range_at(right + 1)
            assert left.range.right == behind.range.left, "tablets of a pair touch"
            group = ReplicaGroup(behind.group.reads, behind.group.writes, epoch)
            placed.append(PlacedRange(Range(left.range.left, behind.range.right), group))
            gone[right] = ()
        return TabletMap(self.ring.replaced(placed), self.shards.changed(gone))

    def merge_refusal(self, right: int) -> str | None:
        """Why a tablet cannot be merged with the one behind it as they are; None when it can."""
        one = self.ending(right)
        if one is None:
            return f"no tablet ends at {right}"
        if right == TOKEN_MAX:
            return "the last tablet has none behind it"
        two = self.at(right + 1)
        if sorted(one.replicas) != sorted(two.replicas):
            return f"the tablets that end at {right} and {two.right} have not the same replicas"
        return None

    def siblings(self, isolated: int | None = None) -> list[tuple[int, int]]:
        """(last token, last token) of the pairs that a merge of the whole map makes one, in order. With an
        odd count one is left alone: that which ends at `isolated`, an even number before it, or the last."""
        rights = [one.range.right for one in self.ring.ranges]
        if len(rights) % 2:
            alone = len(rights) - 1 if isolated is None else rights.index(isolated)
            assert alone % 2 == 0, "an even number of tablets on either side of the one left alone"
            del rights[alone]
        return list(zip(rights[::2], rights[1::2], strict=True))

    def validate(self, shards_of_node: Callable[[NodeId], int] | None = None) -> None:
        """Assert coverage, one replica of a tablet on a node, shards of replicas only, and, where it is known
        how many shards a node has, that they are there."""
        self.ring.validate()
        rights = {placed.range.right: placed.group for placed in self.ring.ranges}
        for right, placed in self.shards.everything().items():
            assert right in rights, f"shards of a tablet that ends at {right}, which is not there"
            assert placed == tuple(sorted(placed)), f"shards in order for tablet {right}"
            for node, shard in placed:
                assert node in rights[right].writes, f"node {node} has a shard and no replica of {right}"
                assert shard > 0, "shard 0 is not stored"
                if shards_of_node is not None:
                    assert shard < shards_of_node(node), f"node {node} has no shard {shard}"


def midpoint(range_: Range) -> int | None:
    """The last token of the first half; None for a single token."""
    middle = (range_.left + range_.right) // 2
    return middle if middle > range_.left else None


def even_rights(count: int) -> list[int]:
    """Last tokens of `count` tablets of equal width. Splitting 2^k of them gives 2^(k+1) of them."""
    assert count >= 1, "a map has at least one tablet"
    return [TOKEN_MIN - 1 + _RING * (number + 1) // count for number in range(count)]


def _group(replicas: Sequence[Replica], epoch: int) -> ReplicaGroup:
    nodes = tuple([node for node, _ in replicas])
    assert len(set(nodes)) == len(nodes), f"two replicas of a tablet on one node: {nodes}"
    return ReplicaGroup(nodes, nodes, epoch)


def map_of(
    group: int,
    replication: Replication,
    tablets: Sequence[tuple[int, Sequence[Replica]]],
    epoch: int,
) -> TabletMap:
    """The map of these tablets (last token, replicas), in the order of tokens. Equal sets of nodes are one
    object, for there are many tablets and few sets."""
    known: dict[tuple[NodeId, ...], ReplicaGroup] = {}
    placed: list[PlacedRange] = []
    left = TOKEN_MIN
    for right, replicas in tablets:
        nodes = tuple([node for node, _ in replicas])
        found = known.get(nodes)
        if found is None:
            found = known[nodes] = _group(replicas, epoch)
        placed.append(PlacedRange(Range(left, right), found))
        left = right
    made = TabletMap(ring_of_ranges(group, replication, placed), shards_of(tablets))
    assert left == TOKEN_MAX, f"tokens above {left} have no tablet"
    return made
