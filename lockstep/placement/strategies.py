"""Replication strategies: from token owners to the replicas of every range.

Invariant: pure functions of the owners and the replication setting, equal to the walk that Cassandra
and its drivers do, on ranges that do not wrap. A range has min(factor, eligible nodes) replicas.

The replicas at one token differ little from those at the next: its owner comes first, and at most one other
node falls out. So a whole ring is one sweep backwards (`Sight`) from a single walk, and where two circles
give equal replicas at a token, they do at all tokens before it down to the next one whose owner differs.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.placement.circle import Circle
from lockstep.placement.circle import Owner as Owner
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

SIMPLE = "SimpleStrategy"
NETWORK_TOPOLOGY = "NetworkTopologyStrategy"

ReplicaList = tuple[NodeId, ...]
#: (data centre, rack) of a node as a strategy sees it.
_Seat = tuple[str, str | NodeId]


class Center(msgspec.Struct, frozen=True):
    """What a data centre is to hold: `factor` replicas, of which `repeats` in a rack that has one already."""

    factor: int
    repeats: int


class Seats(msgspec.Struct, frozen=True):
    """Data centres that hold replicas, the seats of all nodes that can be one, and their number by centre."""

    centers: dict[str, Center]
    of: dict[NodeId, _Seat]
    eligible: dict[str, int]

    def alike(self, other: Seats) -> bool:
        """Whether the nodes that both seat are chosen by the same rules."""
        return self.centers == other.centers and all(
            seat == other.of.get(node, seat) for node, seat in self.of.items()
        )


def seats(replication: Replication, circle: Circle) -> Seats:
    """SimpleStrategy is one data centre in which every node has a rack of its own."""
    if not replication.total:
        return Seats({}, {}, {})
    if replication.strategy == SIMPLE:
        of: dict[NodeId, _Seat] = {node: ("", node) for node in circle.owners}
        return Seats({"": Center(replication.total, 0)}, of, {"": len(of)})
    assert replication.strategy == NETWORK_TOPOLOGY, f"unknown strategy {replication.strategy}"
    centers = {
        dc: Center(factor, max(0, factor - len(circle.racks[dc])))
        for dc, factor in replication.factors
        if factor > 0 and dc in circle.racks
    }
    eligible = {dc: sum(circle.racks[dc].values()) for dc in centers}
    return Seats(centers, {n: (o.dc, o.rack) for n, o in circle.owners.items() if o.dc in centers}, eligible)


class _Choice:
    """Choice within one data centre: distinct racks first, as many repeats as the racks force."""

    __slots__ = ("chosen", "racks_seen", "repeats_left", "wanted")

    def __init__(self, center: Center, eligible: int) -> None:
        self.wanted = min(center.factor, eligible)
        self.repeats_left = center.repeats
        self.chosen = 0
        self.racks_seen: set[str | NodeId] = set()

    def accepts(self, rack: str | NodeId) -> bool:
        if self.chosen == self.wanted:
            return False
        if rack in self.racks_seen:
            if self.repeats_left <= 0:
                return False
            self.repeats_left -= 1
        self.racks_seen.add(rack)
        self.chosen += 1
        return True


def walked(seated: Seats, circle: Circle, start: int) -> ReplicaList:
    """The replicas of the range that ends at token number `start` of the circle, by walking on from it."""
    size = len(circle.nodes)
    choices = {dc: _Choice(center, seated.eligible[dc]) for dc, center in seated.centers.items()}
    missing = sum(choice.wanted for choice in choices.values())
    chosen: dict[NodeId, None] = {}
    step = 0
    while missing and step < size:
        node = circle.nodes[(start + step) % size]
        step += 1
        seat = seated.of.get(node)
        if seat is not None and node not in chosen and choices[seat[0]].accepts(seat[1]):
            chosen[node] = None
            missing -= 1
    assert not missing, "there are as many replicas as factors and nodes allow"
    return tuple(chosen)


class Sight:
    """The replicas at one token of a circle; `back` moves on to the token before it.

    `replicas` stays the same object while they stay the same. It alone says what comes of further moves.
    """

    __slots__ = ("_centers", "_counts", "_firsts", "_order", "_seats", "replicas")

    def __init__(self, seated: Seats, replicas: ReplicaList) -> None:
        self._seats = seated.of
        self._centers = seated.centers
        self.replicas = replicas
        self._order = list(replicas)
        #: The first node of each rack, and how many replicas each data centre has.
        self._firsts: dict[_Seat, NodeId] = {}
        self._counts = dict.fromkeys(seated.centers, 0)
        assert len(set(replicas)) == len(replicas), "replicas are distinct"
        for node in replicas:
            seat = self._seats[node]
            self._firsts.setdefault(seat, node)
            self._counts[seat[0]] += 1

    def back(self, node: NodeId) -> ReplicaList:
        """The replicas at the token before, which `node` owns."""
        seat = self._seats.get(node)
        order = self._order
        if seat is None or (order and order[0] == node):
            return self.replicas
        firsts = self._firsts
        first = firsts.get(seat)
        firsts[seat] = node
        if first == node:
            order.remove(node)
        else:
            dc = seat[0]
            center = self._centers[dc]
            if first is not None and not center.repeats:
                order.remove(first)
            elif node in order:
                order.remove(node)
            else:
                # With fewer replicas than the factor everyone is one, and nobody is new.
                assert self._counts[dc] == center.factor, "a data centre has as many replicas as its factor"
                if first is None:
                    self._drop_rack(dc)
                else:
                    self._drop_repeat(dc)
        assert node not in order, "a node is a replica once"
        order.insert(0, node)
        self.replicas = replicas = tuple(order)
        return replicas

    def _drop_rack(self, dc: str) -> None:
        """The rack that is met last makes room for a new one."""
        node = next(n for n in reversed(self._order) if self._seats[n][0] == dc)
        assert self._firsts[self._seats[node]] == node, "no rack has a second replica while another has none"
        self._order.remove(node)
        del self._firsts[self._seats[node]]

    def _drop_repeat(self, dc: str) -> None:
        """Of those that are not the first of their rack, the one that is met last falls out."""
        seated, firsts = self._seats, self._firsts
        last = next(n for n in reversed(self._order) if seated[n][0] == dc and firsts[seated[n]] != n)
        assert last in self.replicas, "it was a replica until now"
        self._order.remove(last)


def swept(replication: Replication, circle: Circle) -> list[ReplicaList]:
    """The replicas at each token of the circle, in its order."""
    size = len(circle.nodes)
    seated = seats(replication, circle)
    sight = Sight(seated, walked(seated, circle, 0))
    found = list(map(sight.back, reversed(circle.nodes)))
    assert size == 0 or found[-1] == walked(seated, circle, 0), "the sweep has come round"
    found.reverse()
    return found


def compute(replication: Replication, owners: Sequence[Owner]) -> tuple[tuple[Range, ReplicaList], ...]:
    """(range, replicas primary first) for the ring cut at every owner's token; covers the ring.

    Without owners the whole ring has no replicas.
    """
    circle = Circle.of(owners)
    return placed(circle, swept(replication, circle))


def placed(circle: Circle, replicas: list[ReplicaList]) -> tuple[tuple[Range, ReplicaList], ...]:
    """The ranges of a circle with what was found for each of its tokens."""
    rights, lists = ring_of(circle, replicas)
    return tuple(zip(map(Range, [TOKEN_MIN, *rights[:-1]], rights), lists, strict=True))


def ring_of(circle: Circle, replicas: list[ReplicaList]) -> tuple[list[int], list[ReplicaList]]:
    """Right bounds and replicas of the ranges that do not wrap: tokens above the last belong to the first."""
    assert len(circle.tokens) == len(replicas), "every token has its replicas"
    rights, lists = circle.tokens.tolist(), replicas
    if not rights:
        return [TOKEN_MAX], [()]
    if rights[-1] != TOKEN_MAX:
        rights, lists = [*rights, TOKEN_MAX], [*lists, lists[0]]
    if rights[0] == TOKEN_MIN:
        rights, lists = rights[1:], lists[1:]
    return rights, lists
