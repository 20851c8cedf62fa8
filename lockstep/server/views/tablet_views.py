"""`system.tablets`, `tablet_sizes` and `load_per_node`: the tablets of every table, and what they and nodes
weigh, under the names of ScyllaDB.

Invariant: who holds what is computed from one metadata value when read; sizes are asked of the nodes that
hold the tablets, and null where no node says so. Columns that mean nothing here are null, and
NO_TABLET_VALUE says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.services import NodeServices
from lockstep.placement.tablets.load import NodeLoad
from lockstep.placement.tablets.map import Tablet
from lockstep.schema.model import Table
from lockstep.schema.types import parse_uuid, uuid_text
from lockstep.server.reports.tablets import sizes_held
from lockstep.server.views.virtual import (
    EVERYTHING,
    AskedRows,
    Between,
    KeyedRows,
    VirtualRow,
    VirtualTable,
    define,
)
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import SHARDS_PER_NODE

_REPLICAS: Final = "frozen<list<frozen<tuple<uuid, int>>>>"
_STATIC_COLUMNS: Final = (
    "tablet_count int; keyspace_name text; table_name text; resize_type text; resize_seq_number bigint; "
    "base_table uuid"
)
_COLUMNS: Final = (
    f"table_id uuid; last_token bigint; replicas {_REPLICAS}; new_replicas {_REPLICAS}; stage text; "
    f"transition text; session text; repair_time timestamp; {_STATIC_COLUMNS}"
)
#: Columns that are always null, and why.
NO_TABLET_VALUE: Final[Mapping[str, str]] = {
    "repair_time": "repairs are kept by ranges of tokens: system_views.repairs",
}


class TabletTables:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def tables(self) -> list[VirtualTable]:
        return [
            define(
                "system",
                "tablets",
                _COLUMNS,
                ("table_id",),
                ("last_token",),
                KeyedRows(self._every, self._of_table),
                static=[text.strip().partition(" ")[0] for text in _STATIC_COLUMNS.split(";")],
                comment="The tablets of tables that have them; base_table: with whose tablets they lie",
            ),
            define(
                "system",
                "tablet_sizes",
                "table_id uuid; last_token bigint; replicas frozen<map<uuid, bigint>>; "
                "missing_replicas frozen<set<uuid>>",
                ("table_id",),
                ("last_token",),
                AskedRows(self._sizes),
                comment="Bytes of each tablet by replica; missing_replicas did not say",
            ),
            define(
                "system",
                "load_per_node",
                "node uuid; node_id int; dc text; rack text; ip inet; up boolean; tablets_allocated bigint; "
                "tablets_allocated_per_shard double; storage_capacity bigint; storage_allocated_load bigint; "
                "storage_allocated_utilization double; storage_load bigint; storage_utilization double; "
                "reads_per_s double; writes_per_s double; cpu double",
                ("node",),
                (),
                AskedRows(self._loads),
                comment="Tablet replicas, bytes, requests and processors at work of each node, as it says",
            ),
        ]

    def _every(self) -> Iterator[VirtualRow]:
        for table in _tables(self._node.log.cluster):
            yield from self._of_table(parse_uuid(table.uuid), EVERYTHING)

    def _of_table(self, table_id: Any, tokens: Between) -> Iterator[VirtualRow]:
        cluster = self._node.log.cluster
        number = cluster.schema.table_ids.get(uuid_text(table_id))
        table = cluster.table(number) if number is not None else None
        if table is not None and table.group in cluster.tablets.by_group:
            yield from _rows(cluster, table, tokens)

    async def _sizes(self) -> list[VirtualRow]:
        cluster = self._node.log.cluster
        held = await sizes_held(self._node, cluster)
        hosts = _hosts(cluster)
        return [
            {
                "table_id": parse_uuid(table.uuid),
                "last_token": tablet.right,
                "replicas": {
                    hosts[node]: held[table.group, tablet.right, node]
                    for node in tablet.nodes
                    if (table.group, tablet.right, node) in held
                },
                "missing_replicas": [
                    hosts[node] for node in tablet.nodes if (table.group, tablet.right, node) not in held
                ],
            }
            for table in _own_tables(cluster)
            for tablet in cluster.tablets.by_group[table.group].map(cluster.placements).tablets()
        ]

    async def _loads(self) -> list[VirtualRow]:
        said = await self._node.work.balancer.loads()
        cluster = self._node.log.cluster
        return [self._load(cluster, node, said.get(node)) for node in sorted(cluster.directory.present_ids)]

    def _load(self, cluster: ClusterMetadata, node: NodeId, load: NodeLoad | None) -> VirtualRow:
        """What it holds as its tablets lie; null where it does not say so."""
        info = cluster.directory.by_id[node]
        own = [
            (group.id, placed.range.right)
            for group in cluster.tablets.groups
            for placed in cluster.placements.ring(group.id).ranges
            if node in placed.group.reads
        ]
        found: VirtualRow = {
            "node": parse_uuid(info.host_id),
            "node_id": node,
            "dc": info.dc,
            "rack": info.rack,
            "ip": info.address,
            "up": self._node.membership.liveness.alive(node),
            "tablets_allocated": len(own),
            "tablets_allocated_per_shard": len(own) / SHARDS_PER_NODE,
        }
        return found if load is None else {**found, **self._weighed(load, own)}

    def _weighed(self, load: NodeLoad, own: Sequence[tuple[int, int]]) -> VirtualRow:
        held = [load.tablets.get(group, {}).get(right) for group, right in own]
        known = [one for one in held if one is not None]
        target = self._node.context.configuration.tablets.target_size_bytes
        allocated, capacity = len(own) * target, load.capacity_bytes
        stored = sum([one.bytes for one in known]) if len(known) == len(held) else None
        return {
            "storage_capacity": capacity,
            "storage_allocated_load": allocated,
            "storage_allocated_utilization": allocated / capacity if capacity else None,
            "reads_per_s": sum([one.reads_per_s for one in known]),
            "writes_per_s": sum([one.writes_per_s for one in known]),
            "cpu": load.cpu,
            "storage_load": stored,
            "storage_utilization": stored / capacity if capacity and stored is not None else None,
        }


def _tables(cluster: ClusterMetadata) -> Iterator[Table]:
    for keyspace in cluster.schema.keyspaces:
        if keyspace.tablets is not None:
            yield from keyspace.tables


def _own_tables(cluster: ClusterMetadata) -> Iterator[Table]:
    """Without those that lie with another one."""
    for table in _tables(cluster):
        if cluster.tablets.by_group[table.group].head.table == table.name:
            yield table


def _hosts(cluster: ClusterMetadata) -> dict[NodeId, bytes]:
    return {info.id: parse_uuid(info.host_id) for info in cluster.directory.nodes}


def _rows(cluster: ClusterMetadata, table: Table, tokens: Between) -> Iterator[VirtualRow]:
    group = cluster.tablets.by_group[table.group]
    base = cluster.schema.table(table.keyspace, group.head.table)
    assert base is not None, "a tablet group has a table"
    placed = group.map(cluster.placements)
    hosts = _hosts(cluster)
    shared = {
        "table_id": parse_uuid(table.uuid),
        "tablet_count": placed.count,
        "keyspace_name": table.keyspace,
        "table_name": table.name,
        "resize_type": group.head.resizing.resize.kind.name.lower(),
        "resize_seq_number": group.head.resizing.resize.sequence,
        "base_table": parse_uuid(base.uuid) if base.id != table.id else None,
    }
    for tablet in placed.tablets():
        if tokens.low <= tablet.right <= tokens.high:
            yield {
                **shared,
                "last_token": tablet.right,
                "replicas": [(hosts[node], shard) for node, shard in tablet.replicas],
                **_transition(cluster, group.id, tablet, hosts),
            }


def _transition(
    cluster: ClusterMetadata, group: int, tablet: Tablet, hosts: Mapping[NodeId, bytes]
) -> VirtualRow:
    """What is on its way: by itself, or by an operation."""
    found = cluster.transitions.at(group, tablet.right)
    if found is None:
        return {}
    known = dict(tablet.replicas)
    mover = found.position or cluster.operations_by_id[found.operation_id]
    return {
        "new_replicas": [(hosts[node], known.get(node, 0)) for node in found.new],
        "stage": mover.stage.value,
        "transition": mover.kind,
        "session": mover.session_id or None,
    }
