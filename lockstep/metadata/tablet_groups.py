"""Tablet groups come and go with their tables: how many tablets a new table has, and where they lie.

Invariant: what is decided here follows from the metadata alone, so every node decides the same; no statistics
are asked. A table in a keyspace with tablets has a group of its own, or that of the table it lies with.
Nothing is stored under a new group, so it needs no operation; the group of a dropped table goes with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Stage
from lockstep.metadata.tablets import TabletGroup, TabletGroupHead, Tablets, lies_with
from lockstep.metadata.transitions import Lone, Transitions
from lockstep.placement.placements import Placements
from lockstep.placement.tablets.allocate import NotPlaceable, allocate
from lockstep.placement.tablets.counts import CountedTable, CountSettings, Rack, counts, racks_of
from lockstep.placement.tablets.load import Host, LoadStatistics, NodeLoad
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of
from lockstep.schema.changes import CreateKeyspace
from lockstep.schema.model import Keyspace, Replication, Schema, Table
from lockstep.schema.replication_options import SIMPLE, refused
from lockstep.schema.table_options import option, option_map
from lockstep.schema.tablet_options import TabletHints, keyspace_tablets, tablet_hints
from lockstep.values.errors import Rejected
from lockstep.values.hash_tree import changed
from lockstep.values.ids import NodeId

#: Capacities are equal where no statistics are asked.
_ALIKE = NodeLoad(1)
_CONFIGURATION = 0x2300


def hosts_of(cluster: ClusterMetadata) -> list[Host]:
    """The nodes that tablets of new tables are given to: normal ones with tokens that are not shut out."""
    return [
        Host(node.id, node.dc, node.rack)
        for node in cluster.directory.in_state(NodeState.NORMAL)
        if node.tokens and node.id not in cluster.not_served
    ]


def hints_of(table: Table) -> TabletHints:
    return tablet_hints(option_map(option(table.options, "tablets")))


def shards_by_rack(hosts: list[Host]) -> dict[Rack, int]:
    found: dict[Rack, int] = {}
    for host in hosts:
        found[host.dc, host.rack] = found.get((host.dc, host.rack), 0) + host.shards
    return found


def replica_counts(placements: Placements, tablets: Tablets) -> dict[NodeId, dict[int, int]]:
    """How many tablet replicas each shard of a node has; costs as many as there are tablets."""
    found: dict[NodeId, dict[int, int]] = {}
    for group in tablets.groups:
        for tablet in group.map(placements).tablets():
            for node, shard in tablet.replicas:
                on = found.setdefault(node, {})
                on[shard] = on.get(shard, 0) + 1
    return found


def with_tablet_groups(
    cluster: ClusterMetadata, schema: Schema, placements: Placements, epoch: int
) -> tuple[Schema, Placements, Tablets]:
    """The schema in which each table of a keyspace with tablets has its group, and the placements and tablets
    with exactly those groups. Rejected when there are too few nodes for a table."""
    tablets, placements = cluster.tablets, _relisted(cluster, schema, placements, epoch)
    new: list[Table] = []
    gone: dict[int, None] = {}
    for _, before, now in changed(cluster.schema.table_tree, schema.table_tree):
        if before is not None and before.group:
            gone[before.group] = None
        if now is not None and not now.group and schema.by_name[now.keyspace].tablets is not None:
            new.append(now)
    for table in sorted(new, key=lambda one: one.id):
        base = lies_with(table, schema)
        if base is not None:
            assert base.group, f"{base.name} is placed before what lies with it"
            schema = schema.with_table(msgspec.structs.replace(table, group=base.group))
            continue
        keyspace, group = schema.by_name[table.keyspace], placements.next_id
        made = _new_map(cluster, keyspace, table, group, replica_counts(placements, tablets), epoch)
        placements = placements.with_rings((made.ring,))
        head = TabletGroupHead(group, keyspace.name, table.name)
        tablets = tablets.with_groups((TabletGroup(head, made.shards),))
        schema = schema.with_table(msgspec.structs.replace(table, group=group))
    if gone:
        spaces = [
            schema.by_name[name]
            for name in sorted({one.head.keyspace for one in tablets.groups} & set(schema.by_name))
        ]
        left = {group for space in spaces for group in space.groups}
        dropped = sorted(group for group in gone if group not in left)
        assert all(group in tablets.by_group for group in dropped), "a group goes with its table, once"
        placements, tablets = placements.without(dropped), tablets.without(dropped)
    return schema, placements, tablets


def _relisted(cluster: ClusterMetadata, schema: Schema, placements: Placements, epoch: int) -> Placements:
    """With the replication that keyspaces with tablets have from now on, where tablets lie so already."""
    for before, now in cluster.schema.keyspaces_changed_in(schema):
        if before is None or now is None or now.tablets is None or before.replication == now.replication:
            continue
        rings = [placements.ring(group) for group in sorted(before.groups) if group in placements.by_id]
        placements = placements.with_rings([ring.recounted(now.replication, epoch) for ring in rings])
    return placements


def refuse_lists(cluster: ClusterMetadata, keyspace: str, replication: Replication) -> None:
    """Raises Rejected where a rack that is to have a replica has no node that could have it."""
    there = {(host.dc, host.rack) for host in hosts_of(cluster)}
    for dc, racks in replication.racks:
        for rack in racks:
            if (dc, rack) not in there:
                known = sorted(name for of, name in there if of == dc)
                raise Rejected(
                    f"no node of rack {rack} of data centre {dc} can hold tablets",
                    cql_code=_CONFIGURATION,
                    keyspace=keyspace,
                    hint=f"data centre {dc} has {', '.join(known) or 'no rack'}",
                )


def racks_missed(cluster: ClusterMetadata, keyspace: Keyspace, dc: str, racks: Sequence[str]) -> int:
    """How many of these racks have no replica of a tablet of the keyspace, of that which misses most, and of
    one on its way before and after. Costs as many as it has tablets."""
    rack_of = {node.id: node.rack for node in cluster.directory.nodes if node.dc == dc}
    wanted, most = frozenset(racks), 0
    for group in keyspace.groups:
        for placed in cluster.placements.ring(group).ranges:
            moving = cluster.transitions.count and cluster.transitions.at(group, placed.range.right)
            sides = [moving.old, moving.new] if moving else [placed.group.reads]
            for nodes in sides:
                most = max(most, len(wanted - {rack_of[node] for node in nodes if node in rack_of}))
    return most


def lies_by(cluster: ClusterMetadata, keyspace: Keyspace, replication: Replication) -> bool:
    """Whether another replication of a keyspace with tablets moves none of them: factors are the same, and
    every tablet has a replica in each rack of a list."""
    return keyspace.replication.factors == replication.factors and not any(
        racks_missed(cluster, keyspace, dc, racks) for dc, racks in replication.racks
    )


def transitions_after(
    cluster: ClusterMetadata, schema: Schema, placements: Placements, epoch: int
) -> Transitions:
    """What is on its way once the schema has changed: nothing of a table that is dropped; and where a group
    has other tables than before, one that is emptied included, what is streamed of it begins anew, so that
    every node streams the same tables.

    Costs as many as tables changed, and where groups with tablets are among them, what is on its way.
    """
    transitions = cluster.transitions
    if transitions.owned and cluster.placements is not placements:
        transitions = transitions.without_groups(
            {one for one in cluster.tablets.by_group if one not in placements.by_id}
        )
    if not transitions.lone_count:
        return transitions
    others: dict[int, None] = {}
    for _, before, now in changed(cluster.schema.table_tree, schema.table_tree):
        if before is None or now is None or before.id != now.id:
            others.update((one.group, None) for one in (before, now) if one is not None and one.group)
    ended, again = [], []
    for one in transitions.listed() if others else ():
        if one.position is None or one.group not in others:
            continue
        if one.group not in placements.by_id:
            ended.append(one)
        elif one.position.stage is Stage.STREAMING:
            session = f"{Lone(one).session_prefix}{epoch}"
            position = msgspec.structs.replace(
                one.position, stage_epoch=epoch, session_id=session, former=Stage.STREAMING
            )
            again.append(msgspec.structs.replace(one, position=position))
    return transitions.moved(again, ended) if again or ended else transitions


def _new_map(
    cluster: ClusterMetadata,
    keyspace: Keyspace,
    table: Table,
    group: int,
    replicas_on: Mapping[NodeId, Mapping[int, int]],
    epoch: int,
) -> TabletMap:
    hosts = hosts_of(cluster)
    racks = shards_by_rack(hosts)
    factors, lists = keyspace.replication.factors, keyspace.replication.lists
    assert keyspace.tablets is not None, "the keyspace has tablets"
    counted = CountedTable(
        group, racks_of(factors, racks, lists), (hints_of(table),), keyspace.tablets.initial
    )
    count = counts([counted], racks, CountSettings())[group].count
    statistics = LoadStatistics(nodes={host.node: _ALIKE for host in hosts})
    found = allocate(count, keyspace.replication, hosts, statistics, replicas_on, lists)
    if isinstance(found, NotPlaceable):
        raise Rejected(
            f"table {keyspace.name}.{table.name} cannot be spread: {found.reason}",
            cql_code=_CONFIGURATION,
            keyspace=keyspace.name,
            hint="let more nodes join first (`lockstep cluster add`), or use a smaller replication factor",
        )
    assert len(found) == count, "each tablet has its replicas"
    assert all(len(replicas) == keyspace.replication.total for replicas in found), (
        "as many as the factors say"
    )
    pairs = list(zip(even_rights(count), found, strict=True))
    return map_of(group, keyspace.replication, pairs, epoch)


def spread(change: CreateKeyspace, mode: str) -> CreateKeyspace:
    """The change with what the setting for new keyspaces (disabled, enabled, enforced) makes of it."""
    is_simple = dict(change.replication).get("class", "").endswith(SIMPLE)
    if mode == "enforced":
        given = keyspace_tablets(dict(change.tablets or ()), change.keyspace)
        if is_simple or given is None:
            raise refused(f"every keyspace of this cluster has tablets, {change.keyspace} would have none")
    elif mode == "disabled" or is_simple or (change.replication_type and change.tablets is None):
        # Whoever says how a keyspace is replicated, and nothing of tablets, gets what that is of.
        return change
    return msgspec.structs.replace(change, tablets=change.tablets or ())
