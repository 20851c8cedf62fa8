"""Replicas for the tablets of a new table.

Invariant: no two replicas of a tablet on one node; each data centre has as many as its factor says, in as
many racks as there are, or one in each rack of its list. Racks take turns by the number of the tablet; in a
rack the node is taken that has least of this table for its capacity, then the one that has least of
everything, and of its shards likewise. So a new table is spread evenly also where others are not. Where there
are witnesses, who keeps the data is spread as evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.placement.tablets.load import Host, LoadStatistics, can_receive
from lockstep.placement.tablets.shards import Replica
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId


class NotPlaceable(msgspec.Struct, frozen=True):
    """Why a table's tablets cannot be placed."""

    reason: str


class _Seat:
    """A node while tablets are dealt out: `share` is its part of what all can hold, `handicap` is below 1."""

    __slots__ = ("dealt", "handicap", "host", "shards", "share")

    def __init__(self, host: Host, share: float, handicap: float, shards: list[float]) -> None:
        assert shards and 0 < share <= 1, "who is dealt tablets has shards and a share of the capacity"
        assert 0 <= handicap < 1, "what other tables have decides between equals, and no more"
        self.host = host
        self.share = share
        self.handicap = handicap
        self.dealt = 0
        #: For each shard what it had, below one tablet, and what it has been dealt.
        self.shards = shards

    def fullness(self) -> tuple[float, int]:
        return (self.dealt + self.handicap) / self.share, self.host.node

    def deal(self) -> Replica:
        shard = min(range(len(self.shards)), key=self.shards.__getitem__)
        self.shards[shard] += 1.0
        self.dealt += 1
        return self.host.node, shard


def allocate(
    count: int,
    replication: Replication,
    hosts: Sequence[Host],
    statistics: LoadStatistics,
    replicas_on: Mapping[NodeId, Mapping[int, int]],
    lists: Mapping[str, Sequence[str]],
) -> list[tuple[Replica, ...]] | NotPlaceable:
    """The replicas of each of `count` tablets. `replicas_on`: how many of other tables each shard of a node
    has; `lists`: for data centres that have one, the racks that are to have a replica each."""
    assert count >= 1, "a table has at least one tablet"
    usable = [host for host in hosts if can_receive(host, statistics)]
    seats = {dc: _seats(dc, usable, statistics, replicas_on) for dc, _ in replication.factors if dc}
    if any(not dc for dc, _ in replication.factors):
        return NotPlaceable("tablets are replicated by data centre: use NetworkTopologyStrategy")
    found: list[list[Replica]] = [[] for _ in range(count)]
    for dc, factor in replication.factors:
        if not factor:
            continue
        racks = seats[dc]
        wanted = list(lists.get(dc, ()))
        refusal = _refusal(dc, factor, racks, wanted)
        if refusal is not None:
            return NotPlaceable(refusal)
        names = wanted or sorted(racks)
        full = factor - replication.witnesses.get(dc, 0)
        keeping: dict[NodeId, float] = {}
        for number in range(count):
            dealt = _dealt(number, factor, names, racks)
            found[number] += dealt if full == factor else _with_roles(dealt, full, racks, keeping)
    total = replication.total
    assert all(len({node for node, _ in replicas}) == len(replicas) == total for replicas in found), (
        "a tablet has as many replicas as the factors say, on as many nodes"
    )
    return [tuple(replicas) for replicas in found]


def _with_roles(
    dealt: Sequence[Replica],
    full: int,
    racks: Mapping[str, Sequence[_Seat]],
    keeping: dict[NodeId, float],
) -> list[Replica]:
    """In such an order that those come first, and keep the data, who keep least of it for their capacity."""
    share = {seat.host.node: seat.share for seats in racks.values() for seat in seats}
    ordered = sorted(dealt, key=lambda replica: keeping.get(replica[0], 0.0))
    for node, _ in ordered[:full]:
        keeping[node] = keeping.get(node, 0.0) + 1 / share[node]
    return ordered


def _refusal(dc: str, factor: int, racks: Mapping[str, Sequence[_Seat]], wanted: Sequence[str]) -> str | None:
    if wanted:
        if len(wanted) != factor or len(set(wanted)) != factor:
            return f"the list of racks of {dc} has {len(wanted)} names, not {factor} different ones"
        missing = [rack for rack in wanted if rack not in racks]
        if missing:
            return f"no node of rack {missing[0]} of data centre {dc} can hold tablets"
        return None
    there = sum(len(seats) for seats in racks.values())
    if there < factor:
        return (
            f"data centre {dc} has {there} nodes that can hold tablets, of {factor} replicas that each needs"
        )
    return None


def _seats(
    dc: str,
    usable: Sequence[Host],
    statistics: LoadStatistics,
    replicas_on: Mapping[NodeId, Mapping[int, int]],
) -> dict[str, list[_Seat]]:
    there = sorted((host for host in usable if host.dc == dc), key=lambda host: host.node)
    if not there:
        return {}
    capacity = {host.node: statistics.nodes[host.node].capacity_bytes for host in there}
    total = sum(capacity.values())
    used = {host.node: _used_bytes(statistics, host.node) / capacity[host.node] for host in there}
    fullest = max(used.values())
    racks: dict[str, list[_Seat]] = {}
    for host in there:
        on = replicas_on.get(host.node, {})
        most = max([on.get(shard, 0) for shard in range(host.shards)])
        shards = [on.get(shard, 0) / (most + 1) for shard in range(host.shards)]
        # Below one tablet for the fullest node, so that what other tables have decides between equals.
        handicap = 0.9 * used[host.node] / fullest if fullest else 0.0
        racks.setdefault(host.rack, []).append(_Seat(host, capacity[host.node] / total, handicap, shards))
    return racks


def _used_bytes(statistics: LoadStatistics, node: NodeId) -> int:
    return sum(load.bytes for loads in statistics.nodes[node].tablets.values() for load in loads.values())


def _dealt(
    number: int, factor: int, names: Sequence[str], racks: Mapping[str, Sequence[_Seat]]
) -> list[Replica]:
    """The replicas of one tablet in a data centre: round by round one in each rack that has a node left, from
    another rack on for each tablet."""
    chosen: list[Replica] = []
    taken: dict[str, list[NodeId]] = {}
    while len(chosen) < factor:
        before = len(chosen)
        for at in range(len(names)):
            if len(chosen) == factor:
                break
            rack = names[(number + at) % len(names)]
            used = taken.setdefault(rack, [])
            left = [seat for seat in racks[rack] if seat.host.node not in used]
            if left:
                seat = min(left, key=_Seat.fullness)
                used.append(seat.host.node)
                chosen.append(seat.deal())
        assert len(chosen) > before, "there are as many nodes as replicas"
    return chosen
