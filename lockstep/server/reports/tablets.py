"""Tablets as documents: which tables have them, where those of one table lie, and what they weigh.

Invariant: made from one metadata value; sizes are asked of the nodes that hold the tablets, and what no node
says is unknown, not empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lockstep.documents.tablets import HeldTablets, Replica, Tablet, TabletMap, TabletTable, TabletTables
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.tablets import TabletGroup
from lockstep.metadata.transitions import Position, Transition
from lockstep.node.services import NodeServices
from lockstep.schema.model import Table
from lockstep.topology.tablets.stages import goes_back
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId
from lockstep.values.limits import SIZE_RANGES_ASKED_MAX
from lockstep.values.tokens import Range


def tablet_tables(cluster: ClusterMetadata, keyspace: str = "") -> TabletTables:
    """ConfigurationError when there is no such keyspace."""
    if keyspace and keyspace not in cluster.schema.by_name:
        raise ConfigurationError(f"there is no keyspace {keyspace}")
    groups = [one for one in cluster.tablets.groups if keyspace in ("", one.head.keyspace)]
    return TabletTables(
        epoch=cluster.epoch,
        is_balanced=cluster.tablets.is_balanced,
        tables=tuple(_table(cluster, group) for group in groups),
        nodes=_held(cluster, groups),
    )


def _table(cluster: ClusterMetadata, group: TabletGroup) -> TabletTable:
    head = group.head
    listed = cluster.schema.by_name[head.keyspace].groups[group.id]
    return TabletTable(
        keyspace=head.keyspace,
        table=head.table,
        group=group.id,
        tablets=cluster.placements.ring(group.id).count,
        moving=sum(1 for _ in _moving(cluster, group)),
        is_balanced=head.is_balanced and cluster.tablets.is_balanced,
        with_it=tuple(table.name for table in listed if table.name != head.table),
        nodes=_held(cluster, (group,)),
        resize=head.resizing.resize.kind.name.lower(),
        resize_number=head.resizing.resize.sequence,
        resize_phase=head.resizing.phase.value,
        is_by_hand=head.resizing.resize.by_hand,
        kept=head.resizing.kept,
    )


def _held(cluster: ClusterMetadata, groups: Iterable[TabletGroup]) -> tuple[HeldTablets, ...]:
    counts: dict[NodeId, list[int]] = {node: [0, 0, 0] for node in cluster.directory.present_ids}
    for group in groups:
        for placed in cluster.placements.ring(group.id).ranges:
            for node in placed.group.reads:
                counts.setdefault(node, [0, 0, 0])[0] += 1
        for one in _moving(cluster, group):
            is_forward = not _goes_back(cluster, one)
            readers = cluster.placements.ring(group.id).group_for(one.range.right).reads
            for node in one.gained if is_forward else ():
                counts.setdefault(node, [0, 0, 0])[1] += node not in readers
            for node in one.lost if is_forward else one.gained:
                counts.setdefault(node, [0, 0, 0])[2] += 1
    by_id = cluster.directory.by_id
    return tuple(
        HeldTablets(int(node), by_id[node].dc, by_id[node].rack, *counts[node]) for node in sorted(counts)
    )


def _moving(cluster: ClusterMetadata, group: TabletGroup) -> Iterator[Transition]:
    """Its tablets on their way, in the order of tokens."""
    if cluster.transitions.count:
        for placed in cluster.placements.ring(group.id).ranges:
            one = cluster.transitions.at(group.id, placed.range.right)
            if one is not None:
                yield one


def _mover(cluster: ClusterMetadata, one: Transition) -> Position | Operation:
    """Whose kind and stage it has: its own, or those of an operation."""
    return one.position or cluster.operations_by_id[one.operation_id]


def _goes_back(cluster: ClusterMetadata, one: Transition) -> bool:
    return goes_back(one) or _mover(cluster, one).stage is Stage.ROLLBACK_TO_NORMAL


def table_named(cluster: ClusterMetadata, keyspace: str, table: str) -> tuple[Table, TabletGroup]:
    """ConfigurationError when there is no such table, or none with tablets."""
    found = cluster.schema.table(keyspace, table)
    if found is None:
        raise ConfigurationError(f"there is no table {keyspace}.{table}")
    group = cluster.tablets.by_group.get(found.group)
    if group is None:
        raise ConfigurationError(
            f"table {keyspace}.{table} has no tablets: its keyspace lies on the ring",
            hint=f"`lockstep ring {keyspace}` shows its ranges",
        )
    return found, group


async def tablet_map(node: NodeServices, keyspace: str, table: str) -> TabletMap:
    """ConfigurationError when there is no such table, or none with tablets."""
    cluster = node.log.cluster
    _, group = table_named(cluster, keyspace, table)
    sizes = await _sizes(node, cluster, group)
    moving = {one.range.right: one for one in _moving(cluster, group)}
    tablets = (
        Tablet(
            number=number,
            start=tablet.range.left,
            end=tablet.range.right,
            replicas=tuple(Replica(int(one), shard) for one, shard in tablet.replicas),
            epoch=tablet.epoch,
            bytes=sizes.get(tablet.right),
            **_told(cluster, moving.get(tablet.right), tablet.replicas),
        )
        for number, tablet in enumerate(group.map(cluster.placements).tablets())
    )
    return TabletMap(
        epoch=cluster.epoch,
        keyspace=keyspace,
        table=table,
        nodes=_held(cluster, (group,)),
        tablets=tuple(tablets),
    )


def _told(
    cluster: ClusterMetadata, one: Transition | None, replicas: tuple[tuple[NodeId, int], ...]
) -> dict[str, Any]:
    """Of its transition, if it has one."""
    if one is None:
        return {}
    at, mover = dict(replicas), _mover(cluster, one)
    if one.position is not None and one.position.target is not None:
        at.update((one.position.target,))
    side = one.old if _goes_back(cluster, one) else one.new
    next_ = tuple(Replica(int(node), at.get(node, 0)) for node in side)
    return {"kind": mover.kind, "stage": mover.stage.value, "next": next_}


#: (group, last token, node) -> bytes.
Held = dict[tuple[int, int, NodeId], int]


async def sizes_held(node: NodeServices, cluster: ClusterMetadata) -> Held:
    """What each replica of each tablet holds, of as many on each node as one question may ask about."""
    asked: dict[NodeId, list[tuple[int, Range]]] = {}
    for group in cluster.tablets.groups:
        for placed in cluster.placements.ring(group.id).ranges:
            for one in placed.group.reads:
                wanted = asked.setdefault(one, [])
                if one in cluster.directory.present_ids and len(wanted) < SIZE_RANGES_ASKED_MAX:
                    wanted.append((group.id, placed.range))
    told = await node.work.sizes.ask(asked)
    return {
        (group, range_.right, one): size
        for one, sizes in told.items()
        for (group, range_), size in zip(asked[one], sizes.bytes, strict=False)
    }


async def _sizes(node: NodeServices, cluster: ClusterMetadata, group: TabletGroup) -> dict[int, int]:
    """By last token, what the largest replica holds; of as many tablets as one question may ask about."""
    asked: dict[NodeId, list[tuple[int, Range]]] = {}
    for placed in cluster.placements.ring(group.id).ranges[:SIZE_RANGES_ASKED_MAX]:
        for one in placed.group.reads:
            if one in cluster.directory.present_ids:
                asked.setdefault(one, []).append((group.id, placed.range))
    found: dict[int, int] = {}
    told = await node.work.sizes.ask(asked)
    for one, sizes in told.items():
        for (_, range_), size in zip(asked[one], sizes.bytes, strict=False):
            found[range_.right] = max(size, found.get(range_.right, 0))
    return found
