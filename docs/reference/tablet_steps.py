"""The animation of docs/concepts/tablets.md: a table of sixteen tablets on three nodes, as two more come.

The moves are those of the planner, and drawn as `lockstep tablets map --animate` draws them.
"""

from __future__ import annotations

from lockstep.documents.tablets import HeldTablets, PlannedMove, Replica, Tablet, TabletMap
from lockstep.local import tablet_picture
from lockstep.placement.tablets import map as maps
from lockstep.placement.tablets.allocate import NotPlaceable, allocate
from lockstep.placement.tablets.load import Host, LoadStatistics, NodeLoad, TabletLoad
from lockstep.placement.tablets.target import BalancedTable, Cluster, goal_of
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId

TABLETS = 16
MIB = 1024 * 1024
#: As large as nodes' disks are taken to be.
CAPACITY = 1 << 40
REPLICATION = Replication("NetworkTopologyStrategy", (("dc1", 3),))


def animation() -> str:
    hosts = [Host(NodeId(node), "dc1", "rack1") for node in range(1, 6)]
    alike = LoadStatistics(nodes={host.node: NodeLoad(CAPACITY) for host in hosts})
    placed = allocate(TABLETS, REPLICATION, hosts[:3], alike, {}, {})
    assert not isinstance(placed, NotPlaceable), placed
    one = maps.map_of(1, REPLICATION, list(zip(maps.even_rights(TABLETS), placed, strict=True)), 1)
    bytes_of = {tablet.right: MIB * (3 + at * 5 % 8) for at, tablet in enumerate(one.tablets())}
    held: dict[NodeId, dict[int, TabletLoad]] = {host.node: {} for host in hosts}
    for tablet in one.tablets():
        for node in tablet.nodes:
            held[node][tablet.right] = TabletLoad(bytes_of[tablet.right])
    nodes = {node: NodeLoad(CAPACITY, tablets={1: loads}) for node, loads in held.items()}
    goal = goal_of(Cluster(hosts, [BalancedTable(one)], LoadStatistics(1, nodes)))
    moves = [
        PlannedMove("shop.orders", move.right, "migration", "balance", move.source[0], move.target[0])
        for move in goal.moves
    ]
    told = TabletMap(
        epoch=12,
        keyspace="shop",
        table="orders",
        nodes=tuple(HeldTablets(host.node, host.dc, host.rack, len(held[host.node])) for host in hosts),
        tablets=tuple(
            Tablet(
                at, tablet.range.left, tablet.range.right, tuple(Replica(node) for node in tablet.nodes),
                bytes=bytes_of[tablet.right],
            )
            for at, tablet in enumerate(one.tablets())
        ),
    )  # fmt: skip
    return tablet_picture.animated([tablet_picture.picture(at) for at in tablet_picture.steps(told, moves)])
