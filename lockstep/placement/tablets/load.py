"""What the planner knows of nodes and of what tablets weigh: values that somebody else has collected.

Invariant: a statistic that is missing is never guessed for a node: a live node without statistics is neither
source nor target. Between two rounds of collecting, the statistics follow the changes that were made: a move
takes its bytes along, halves share them, a pair adds them up. From round to round a number stays as it is
known until what is said differs from it by more than its band; so what only varies begins no move.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.values.ids import NodeId

GIB: Final = 1 << 30
#: Tablets below this share of the target count as if they had it, so that empty tables spread, too.
SMALLEST_SHARE: Final = 100
#: By how much what a node says differs from what is known before that is news, as a share of what is known:
#: disks are shared with logs and snapshots; estimates of bytes come and go with compaction; requests of a few
#: seconds by chance.
CAPACITY_BAND: Final = 0.05
BYTES_BAND: Final = 0.1
RATE_BAND: Final = 0.25
#: Requests a second of a tablet that are no news, whatever share they are.
RATE_BAND_MIN: Final = 50.0
COST_BAND: Final = 0.25
#: What a node's requests cost in so many rounds, of which the middle one counts: what takes less than half of
#: them (a compaction, a repair, a stream) is no cost of requests.
COST_ROUNDS: Final = 5
#: Requests a second below which a node's work says nothing of what requests cost there.
COST_RATE_MIN: Final = 500.0
#: What requests cost at a node beside the average at the most: what else is at work on a machine is not of
#: its tablets.
COST_MAX: Final = 2.0


class Drain(enum.IntEnum):
    """What a node's tablets are to leave it for."""

    NONE = 0
    #: It goes by itself, and streams what it has.
    LEAVE = 1
    #: It is gone, and what it had is built anew from other replicas.
    REMOVE = 2


class Host(msgspec.Struct, frozen=True):
    """A node that may hold tablets. `is_up` is an opinion; an excluded node is shut out by an operator."""

    node: NodeId
    dc: str
    rack: str
    shards: int = 1
    drain: Drain = Drain.NONE
    is_up: bool = True
    is_excluded: bool = False


class TabletLoad(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Of one replica of a tablet."""

    bytes: int
    reads_per_s: float = 0.0
    writes_per_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.reads_per_s + self.writes_per_s


NO_LOAD: Final = TabletLoad(0)


class NodeLoad(msgspec.Struct, frozen=True):
    """What one node told of itself: bytes that it can hold, how many processors are at work for it, and by
    group and last token what its replicas weigh. `cost`: processors at work for a request a second there,
    by `costs_said`, what they were lately, the newest last; 0 where nothing is known."""

    capacity_bytes: int
    cpu: float = 0.0
    tablets: Mapping[int, Mapping[int, TabletLoad]] = {}
    cost: float = 0.0
    costs_said: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        return sum([load.rate for loads in self.tablets.values() for load in loads.values()])


class LoadStatistics(msgspec.Struct, frozen=True):
    """By node, of the round of collecting with this number. `costs`: of a request at a node, beside others,
    as that round found them; they stay while the statistics follow moves."""

    round: int = 0
    nodes: Mapping[NodeId, NodeLoad] = {}
    costs: Mapping[NodeId, float] = {}

    def refreshed(self, said: Mapping[NodeId, NodeLoad]) -> LoadStatistics:
        """Of the next round, in which nodes said this."""
        nodes = steadied(self.nodes, said)
        assert nodes.keys() == said.keys(), "of who said nothing nothing is known"
        return LoadStatistics(self.round + 1, nodes, costs(nodes))

    def of(self, node: NodeId, group: int, right: int) -> TabletLoad | None:
        known = self.nodes.get(node)
        return None if known is None else known.tablets.get(group, {}).get(right)

    def tablet(self, group: int, right: int, nodes: Sequence[NodeId]) -> TabletLoad:
        """What a replica weighs by what any of these nodes say: the largest, nothing where nobody knows."""
        found = [load for node in nodes if (load := self.of(node, group, right)) is not None]
        return max(found, key=lambda load: load.bytes, default=NO_LOAD)

    def moved(self, group: int, right: int, source: NodeId, target: NodeId) -> LoadStatistics:
        """After a replica has moved, or was built anew from another."""
        assert source != target, "a replica moves to another node"
        load = self.of(source, group, right) or NO_LOAD
        return self._with({source: {group: {right: None}}, target: {group: {right: load}}})

    def _with(self, edits: Mapping[NodeId, Mapping[int, Mapping[int, TabletLoad | None]]]) -> LoadStatistics:
        nodes = dict(self.nodes)
        for node, groups in edits.items():
            known = nodes.get(node)
            if known is None:
                continue
            tablets = dict(known.tablets)
            for group, loads in groups.items():
                of_group = {**tablets.get(group, {}), **loads}
                tablets[group] = {right: load for right, load in of_group.items() if load is not None}
            nodes[node] = msgspec.structs.replace(known, tablets=tablets)
        assert nodes.keys() == self.nodes.keys(), "a node is known by what it says alone"
        return msgspec.structs.replace(self, nodes=nodes)


def steadied(known: Mapping[NodeId, NodeLoad], said: Mapping[NodeId, NodeLoad]) -> dict[NodeId, NodeLoad]:
    """What nodes say, with the number that is known wherever the difference is within its band. Costs as many
    as there are replicas."""
    found: dict[NodeId, NodeLoad] = {}
    for node, now in said.items():
        was = known.get(node)
        if was is None:
            found[node] = _with_cost(now, NodeLoad(0), now)
            continue
        tablets = {
            group: _steadied_loads(was.tablets.get(group, {}), loads) for group, loads in now.tablets.items()
        }
        is_kept = abs(now.capacity_bytes - was.capacity_bytes) <= CAPACITY_BAND * was.capacity_bytes
        capacity = was.capacity_bytes if is_kept else now.capacity_bytes
        found[node] = _with_cost(NodeLoad(capacity, now.cpu, tablets), was, now)
    assert found.keys() == said.keys(), "who says nothing is not known"
    return found


def _steadied_loads(known: Mapping[int, TabletLoad], said: Mapping[int, TabletLoad]) -> dict[int, TabletLoad]:
    found: dict[int, TabletLoad] = {}
    for right, now in said.items():
        was = known.get(right)
        if was is None or was == now:
            found[right] = now
            continue
        size = was.bytes if abs(now.bytes - was.bytes) <= BYTES_BAND * was.bytes else now.bytes
        found[right] = TabletLoad(
            size,
            _steady_rate(was.reads_per_s, now.reads_per_s),
            _steady_rate(was.writes_per_s, now.writes_per_s),
        )
    assert found.keys() == said.keys(), "what a node does not say any more is gone"
    return found


def _steady_rate(was: float, now: float) -> float:
    return was if abs(now - was) <= max(RATE_BAND_MIN, RATE_BAND * was) else now


def _with_cost(load: NodeLoad, was: NodeLoad, now: NodeLoad) -> NodeLoad:
    """With what requests cost by what was known, and what the node says now."""
    said, rate = was.costs_said, now.rate
    if now.cpu and rate >= COST_RATE_MIN:
        said = (*said, now.cpu / rate)[-COST_ROUNDS:]
    middle = sorted(said)[len(said) // 2] if said else 0.0
    cost = was.cost if abs(middle - was.cost) <= COST_BAND * was.cost else middle
    assert len(said) <= COST_ROUNDS and cost >= 0, "the newest rounds tell what a request costs"
    return msgspec.structs.replace(load, cost=cost, costs_said=said)


def costs(nodes: Mapping[NodeId, NodeLoad]) -> dict[NodeId, float]:
    """What a request costs at each node of its processors, beside what it costs at all of them: 1.0 where
    nothing is known, and where the difference is no news."""
    served = {node: (load.cost, load.rate) for node, load in nodes.items() if load.cost}
    found = dict.fromkeys(nodes, 1.0)
    everything = sum([rate for _, rate in served.values()])
    if not everything:
        return found
    usual = sum([cost * rate for cost, rate in served.values()]) / everything
    for node, (cost, _) in served.items():
        if abs(cost - usual) > COST_BAND * usual:
            found[node] = min(COST_MAX, max(1 / COST_MAX, cost / usual))
    assert all(1 / COST_MAX <= cost <= COST_MAX for cost in found.values()), "others are at work, too"
    return found


def is_measured(host: Host, statistics: LoadStatistics) -> bool:
    """Whether the planner knows what a node can hold."""
    known = statistics.nodes.get(host.node)
    return known is not None and known.capacity_bytes > 0


def can_receive(host: Host, statistics: LoadStatistics) -> bool:
    """Whether tablets may be moved to a node."""
    return host.is_up and not host.is_excluded and host.drain is Drain.NONE and is_measured(host, statistics)
