"""Replication strategies: from token owners to the replicas of every range.

Invariant: pure functions of the owners and the replication setting, equal to the walk that Cassandra
and its drivers do, on ranges that do not wrap. A range has min(factor, eligible nodes) replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range, ranges_between

SIMPLE = "SimpleStrategy"
NETWORK_TOPOLOGY = "NetworkTopologyStrategy"


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """A node that owns tokens, and where it stands."""

    node: NodeId
    dc: str
    rack: str
    tokens: tuple[int, ...]


class _Ring:
    """Owners by token, ascending; walks start at the first token >= a range's right bound."""

    def __init__(self, owners: Sequence[Owner]) -> None:
        by_token = sorted((token, at) for at, owner in enumerate(owners) for token in owner.tokens)
        self.owners = tuple(owners)
        self.tokens = [token for token, _ in by_token]
        self.sequence = [owners[at] for _, at in by_token]
        self.eligible: dict[str, int] = {}
        racks: dict[str, dict[str, None]] = {}
        for owner in owners:
            if owner.tokens:
                self.eligible[owner.dc] = self.eligible.get(owner.dc, 0) + 1
                racks.setdefault(owner.dc, {})[owner.rack] = None
        self.racks = {dc: len(names) for dc, names in racks.items()}

    def walk(self, start: int) -> Iterator[Owner]:
        size = len(self.sequence)
        for step in range(size):
            yield self.sequence[(start + step) % size]


def compute(
    replication: Replication, owners: Sequence[Owner]
) -> tuple[tuple[Range, tuple[NodeId, ...]], ...]:
    """(range, replicas primary first) for the ring cut at every owner's token; covers the ring.

    Without owners the whole ring has no replicas.
    """
    ring = _Ring(owners)
    ranges = ranges_between(ring.tokens)
    size = len(ring.tokens)
    if not size:
        return tuple((range_, ()) for range_ in ranges)
    replicas = [_replicas(replication, ring, start) for start in range(size)]
    placed: list[tuple[Range, tuple[NodeId, ...]]] = []
    start = 0
    for range_ in ranges:
        while start < size and ring.tokens[start] < range_.right:
            start += 1
        placed.append((range_, replicas[start % size]))
    return tuple(placed)


def _replicas(replication: Replication, ring: _Ring, start: int) -> tuple[NodeId, ...]:
    if replication.strategy == SIMPLE:
        return _simple(replication.total, ring, start)
    assert replication.strategy == NETWORK_TOPOLOGY, f"unknown strategy {replication.strategy}"
    return _network_topology(replication, ring, start)


def _simple(factor: int, ring: _Ring, start: int) -> tuple[NodeId, ...]:
    chosen: dict[NodeId, None] = {}
    for owner in ring.walk(start):
        if len(chosen) == factor:
            break
        chosen[owner.node] = None
    return tuple(chosen)


class _DataCenter:
    """Choice within one data centre: distinct racks first, as many repeats as the racks force."""

    __slots__ = ("chosen", "racks_seen", "repeats_left", "wanted")

    def __init__(self, factor: int, eligible: int, racks: int) -> None:
        self.wanted = min(factor, eligible)
        self.repeats_left = factor - racks
        self.chosen = 0
        self.racks_seen: set[str] = set()

    def accepts(self, rack: str) -> bool:
        if self.chosen == self.wanted:
            return False
        if rack in self.racks_seen:
            if self.repeats_left <= 0:
                return False
            self.repeats_left -= 1
        self.racks_seen.add(rack)
        self.chosen += 1
        return True


def _network_topology(replication: Replication, ring: _Ring, start: int) -> tuple[NodeId, ...]:
    centers = {
        dc: _DataCenter(factor, ring.eligible[dc], ring.racks[dc])
        for dc, factor in replication.factors
        if factor > 0 and dc in ring.eligible
    }
    open_centers = len(centers)
    chosen: dict[NodeId, None] = {}
    for owner in ring.walk(start):
        if not open_centers:
            break
        center = centers.get(owner.dc)
        if center is None or owner.node in chosen:
            continue
        if center.accepts(owner.rack):
            chosen[owner.node] = None
            open_centers -= center.chosen == center.wanted
    return tuple(chosen)
