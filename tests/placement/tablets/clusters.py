"""Clusters that planners are tried on: hosts, tables that are allocated, sizes, and plans carried out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.placement.tablets.allocate import NotPlaceable, allocate
from lockstep.placement.tablets.balancer import Plan, Target, plan
from lockstep.placement.tablets.load import GIB, Host, LoadStatistics, NodeLoad, TabletLoad
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of
from lockstep.placement.tablets.moves import Move, Running
from lockstep.placement.tablets.shards import Replica
from lockstep.placement.tablets.target import BalancedTable, Cluster
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId

CAPACITY = 10_000 * GIB


def setting(**factors: int) -> Replication:
    return Replication("NetworkTopologyStrategy", tuple(sorted(factors.items())))


def hosts_of(*places: tuple[str, str, int]) -> list[Host]:
    """(data centre, rack, shards) of nodes 1, 2, ..."""
    return [Host(NodeId(at), dc, rack, shards) for at, (dc, rack, shards) in enumerate(places, 1)]


def measured(
    hosts: Sequence[Host],
    maps: Sequence[TabletMap] = (),
    sizes: Mapping[tuple[int, int], TabletLoad] | None = None,
    capacity: Mapping[int, int] | None = None,
    each: int = GIB,
    number: int = 1,
) -> LoadStatistics:
    """Statistics of nodes whose replicas weigh what `sizes` says by group and last token, else `each`."""
    tablets: dict[NodeId, dict[int, dict[int, TabletLoad]]] = {host.node: {} for host in hosts}
    usual = TabletLoad(each)
    for one in maps:
        for tablet in one.tablets():
            load = usual if sizes is None else sizes.get((one.id, tablet.right), usual)
            for node in tablet.nodes:
                if node in tablets:
                    tablets[node].setdefault(one.id, {})[tablet.right] = load
    nodes = {
        node: NodeLoad((capacity or {}).get(node, CAPACITY), 0.0, held) for node, held in tablets.items()
    }
    return LoadStatistics(number, nodes)


def new_table(
    group: int,
    count: int,
    replication: Replication,
    hosts: Sequence[Host],
    statistics: LoadStatistics,
    on: dict[NodeId, dict[int, int]] | None = None,
) -> TabletMap:
    """A table that is allocated. `on` counts the replicas of each shard, those of this table after it."""
    on = {} if on is None else on
    placed = allocate(count, replication, hosts, statistics, on, {})
    assert not isinstance(placed, NotPlaceable), placed
    for node, shard in (replica for replicas in placed for replica in replicas):
        shards = on.setdefault(node, {})
        shards[shard] = shards.get(shard, 0) + 1
    return map_of(group, replication, list(zip(even_rights(count), placed, strict=True)), 1)


def scattered(
    group: int, count: int, replication: Replication, hosts: Sequence[Host], rng: random.Random
) -> TabletMap:
    """A table whose replicas lie anywhere, in one rack each where there are racks enough."""
    tablets: list[tuple[int, tuple[Replica, ...]]] = []
    for right in even_rights(count):
        replicas: list[Replica] = []
        for dc, factor in replication.factors:
            racks = sorted({host.rack for host in hosts if host.dc == dc})
            rng.shuffle(racks)
            for number in range(factor):
                rack = racks[number % len(racks)]
                taken = [node for node, _ in replicas]
                free = [h for h in hosts if h.dc == dc and h.rack == rack and h.node not in taken]
                host = rng.choice(free or [h for h in hosts if h.dc == dc and h.node not in taken])
                replicas.append((host.node, rng.randrange(host.shards)))
        tablets.append((right, tuple(replicas)))
    return map_of(group, replication, tablets, 1)


def after(maps: Mapping[int, TabletMap], moves: Sequence[Move], epoch: int) -> dict[int, TabletMap]:
    """The maps once moves are done."""
    found = dict(maps)
    for move in moves:
        one = found[move.group]
        tablet = one.ending(move.right)
        assert tablet is not None and move.source in tablet.replicas
        found[move.group] = one.with_replicas({move.right: move.after(tablet.replicas)}, epoch)
    return found


class Carried:
    """A cluster in which plans are carried out until none is left; `slow`: how many plans a move takes."""

    def __init__(
        self,
        hosts: Sequence[Host],
        tables: Sequence[BalancedTable],
        statistics: LoadStatistics,
        slow: int = 1,
    ) -> None:
        self.hosts = hosts
        self.tables = {table.map.id: table for table in tables}
        self.statistics = statistics
        self.is_on = True
        self.moved: list[Move] = []
        self.plans: list[Plan] = []
        self._slow = slow
        self._target: Target | None = None
        self._running: list[tuple[int, Running]] = []

    @property
    def maps(self) -> dict[int, TabletMap]:
        return {group: table.map for group, table in self.tables.items()}

    def cluster(self) -> Cluster:
        running = [one for _, one in self._running]
        return Cluster(self.hosts, list(self.tables.values()), self.statistics, running, is_on=self.is_on)

    def step(self) -> Plan:
        """One plan; the moves that have run long enough are done after it."""
        found, self._target = plan(self.cluster(), self._target)
        self.plans.append(found)
        self._running += [(self._slow, Running(move)) for move in found.moves]
        self._running = [(left - 1, one) for left, one in self._running]
        done = [one.move for left, one in self._running if left == 0]
        self._running = [(left, one) for left, one in self._running if left > 0]
        for group, one in after(self.maps, done, len(self.plans) + 1).items():
            known = self.tables[group]
            self.tables[group] = msgspec.structs.replace(known, map=one)
        for move in done:
            if move.source[0] != move.target[0]:
                self.statistics = self.statistics.moved(
                    move.group, move.right, move.source[0], move.target[0]
                )
        self.moved += done
        return found

    def forget(self) -> None:
        """Another one plans from here on, and computes the target anew."""
        self._target = None

    def run(self) -> int:
        """Plans until one is empty and nothing runs; how many there were."""
        replicas = sum(len(tablet.replicas) for one in self.maps.values() for tablet in one.tablets())
        for number in range(1 + 10 * replicas):
            was_idle = not self._running
            if self.step().is_empty and was_idle:
                return number
        raise AssertionError("plans do not end")

    # What came of it

    def on_nodes(self, group: int | None = None) -> Counter[NodeId]:
        return Counter(node for node, _ in self.replicas(group))

    def on_shards(self, group: int | None = None) -> Counter[Replica]:
        return Counter(self.replicas(group))

    def replicas(self, group: int | None = None) -> list[Replica]:
        return [
            replica
            for one in self.maps.values()
            if group in (None, one.id)
            for tablet in one.tablets()
            for replica in tablet.replicas
        ]

    def bytes_on(self) -> dict[NodeId, int]:
        found = dict.fromkeys([host.node for host in self.hosts], 0)
        for one in self.maps.values():
            for tablet in one.tablets():
                for node in tablet.nodes:
                    load = self.statistics.of(node, one.id, tablet.right)
                    found[node] += load.bytes if load is not None else 0
        return found

    def check(self) -> None:
        shards = {host.node: host.shards for host in self.hosts}
        for one in self.maps.values():
            one.validate(shards.__getitem__)
