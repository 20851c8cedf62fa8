"""`system_views`: the metadata, its log and the running operations as tables.

Invariant: views of the metadata value and of live counters; none is a copy that could drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from lockstep.metadata.directory import NodeInfo
from lockstep.metadata.requests import Request, RequestState
from lockstep.node.services import NodeServices
from lockstep.schema.types import parse_uuid
from lockstep.server.reports.leader_views import TOPOLOGY_REQUESTS, leaders_rows
from lockstep.server.reports.stories import entry_summary, kind_name
from lockstep.server.reports.tablet_progress import left_of
from lockstep.server.views.live_views import Client, GossipTable, LiveTables, seen_epoch, view
from lockstep.server.views.topology_view import CdcTables
from lockstep.server.views.virtual import EVERYTHING, AskedRows, Between, KeyedRows, VirtualRow, VirtualTable
from lockstep.topology.requests import why
from lockstep.topology.tablets.left import UNKNOWN


class ViewTables:
    """`clients` gives the open connections."""

    def __init__(self, node: NodeServices, clients: Callable[[], Sequence[Client]]) -> None:
        self._node = node
        self._live = LiveTables(node, clients)

    def tables(self) -> list[VirtualTable]:
        return [
            *self._metadata_tables(),
            *self._live.tables(),
            *CdcTables(lambda: self._node.log.cluster, self._node.context.runtime.clock.wall_us).tables(),
            GossipTable(self._node).table(),
        ]

    def _metadata_tables(self) -> list[VirtualTable]:
        return [
            view(
                "cluster_metadata_log",
                "cluster text; epoch bigint; entry_id uuid; entry_time timestamp; kind text; "
                "transformation text; actor text; term bigint; previous_hash blob; hash blob",
                ("cluster",),
                ("epoch",),
                KeyedRows(self._log, self._log_of),
                "The metadata log as far as this node keeps it, one entry an epoch",
            ),
            view(
                "cluster_metadata_snapshots",
                "cluster text; epoch bigint; base_epoch bigint; taken_at timestamp; size_bytes bigint; "
                "digest blob; hash blob",
                ("cluster",),
                ("epoch",),
                self._snapshots,
                "Snapshots of the metadata that this node keeps",
            ),
            view(
                "cluster_metadata_directory",
                "node_id int; host_id uuid; state text; cassandra_version text; serialization_version int; "
                "dc text; rack text; broadcast_address inet; broadcast_port int; native_address inet; "
                "native_port int; admin_port int; tokens frozen<list<text>>; multi_step_operation text; "
                "epoch bigint; is_voter boolean; is_alive boolean; acknowledged_epoch bigint",
                ("node_id",),
                (),
                KeyedRows(self._directory, self._node_of),
                "Every node this cluster ever had",
            ),
            view(
                "cluster_metadata_locks",
                "operation_id int; replication text; start_token bigint; end_token bigint; kind text; "
                "node_id int; stage text",
                ("operation_id",),
                ("replication", "start_token"),
                self._locks,
                "Token ranges held by running operations",
            ),
            view(
                "placements",
                "keyspace_name text; start_token bigint; table_name text; end_token bigint; "
                "read_replicas frozen<list<int>>; write_replicas frozen<list<int>>; epoch bigint",
                ("keyspace_name",),
                ("start_token", "table_name"),
                KeyedRows(self._placements, self._placements_of),
                "Who holds each token range (start exclusive, end inclusive), of a keyspace (table_name is "
                "empty) or of each of its tables that have tablets",
            ),
            view(
                "topology_requests",
                "id int; kind text; node_id int; replaced_node_id int; state text; policy text; actor text; "
                "operation_id int; requested_epoch bigint; began_epoch bigint; ended_epoch bigint; "
                "outcome text; waits_for text; stage text; stage_epoch bigint; session text; "
                "ranges int; cancel_reason text; fragments bigint; bytes bigint; "
                "tablets_left int; tablets_total int; bytes_left bigint; seconds_left int",
                ("id",),
                (),
                AskedRows(lambda: leaders_rows(self._node, TOPOLOGY_REQUESTS, request_rows)),
                "Requests for topology operations: queued, running, and those that ended lately",
            ),
        ]

    def _log(self) -> Iterator[VirtualRow]:
        yield from self._log_of(self._node.log.cluster.identity.cluster_name, EVERYTHING)

    def _log_of(self, cluster: object, epochs: Between) -> Iterator[VirtualRow]:
        node = self._node
        if cluster != node.log.cluster.identity.cluster_name:
            return
        first, last = max(epochs.low, 1), min(epochs.high, node.log.state.epoch)
        for entry in node.log.state.retained(first, last):
            yield {
                "cluster": cluster,
                "epoch": entry.epoch,
                "entry_id": entry.entry_id,
                "entry_time": entry.commit_time_us // 1000,
                "kind": kind_name(entry.kind),
                "transformation": entry_summary(node.log.registry, entry),
                "actor": entry.actor,
                "term": entry.term,
                "previous_hash": entry.previous_hash,
                "hash": entry.hash,
            }

    def _snapshots(self) -> Iterator[VirtualRow]:
        name = self._node.log.cluster.identity.cluster_name
        for info in tuple(self._node.log.state.store.infos.values()):
            yield {
                "cluster": name,
                "epoch": info.epoch,
                "base_epoch": info.epoch - 1,
                "taken_at": info.entry.commit_time_us // 1000,
                "size_bytes": info.size_bytes,
                "digest": info.digest,
                "hash": info.entry.hash,
            }

    def _directory(self) -> Iterator[VirtualRow]:
        for info in self._node.log.cluster.directory.nodes:
            yield self._node_row(info)

    def _node_of(self, node_id: Any, _all: Between) -> Iterator[VirtualRow]:
        info = self._node.log.cluster.directory.by_id.get(node_id)
        if info is not None:
            yield self._node_row(info)

    def _node_row(self, info: NodeInfo) -> VirtualRow:
        node = self._node
        running = [one for one in node.log.cluster.operations if one.node == info.id]
        return {
            "node_id": info.id,
            "host_id": parse_uuid(info.host_id),
            "state": info.state.value,
            "cassandra_version": info.version,
            "serialization_version": info.log_version,
            "dc": info.dc,
            "rack": info.rack,
            "broadcast_address": info.address,
            "broadcast_port": info.internode_port,
            "native_address": info.address,
            "native_port": info.cql_port,
            "admin_port": info.admin_port,
            "tokens": [str(token) for token in info.tokens],
            "multi_step_operation": f"{running[0].kind} {running[0].stage.value}" if running else None,
            "epoch": info.epoch,
            "is_voter": info.id in node.log.cluster.voters,
            "is_alive": node.membership.liveness.alive(info.id),
            "acknowledged_epoch": seen_epoch(node, info.id),
        }

    def _locks(self) -> Iterator[VirtualRow]:
        cluster = self._node.log.cluster
        for holder in cluster.operations:
            for held in cluster.transitions.of(holder.id):
                replication = cluster.placements.ring(held.group).replication
                yield {
                    "operation_id": holder.id,
                    "replication": f"{replication.strategy} {dict(replication.factors)}",
                    "start_token": held.range.left,
                    "end_token": held.range.right,
                    "kind": holder.kind,
                    "node_id": holder.node,
                    "stage": holder.stage.value,
                }

    def _placements(self) -> Iterator[VirtualRow]:
        for keyspace in self._node.log.cluster.schema.keyspaces:
            yield from self._placements_of(keyspace.name, EVERYTHING)

    def _placements_of(self, name: Any, tokens: Between) -> Iterator[VirtualRow]:
        cluster = self._node.log.cluster
        keyspace = cluster.schema.by_name.get(name)
        if keyspace is None:
            return
        rings = {"": keyspace.group}
        if keyspace.tablets is not None:
            rings = {table.name: table.group for table in keyspace.tables}
        for table, group in rings.items():
            for placed in cluster.placements.ring(group).ranges:
                if tokens.low <= placed.range.left <= tokens.high:
                    yield {
                        "keyspace_name": keyspace.name,
                        "table_name": table,
                        "start_token": placed.range.left,
                        "end_token": placed.range.right,
                        "read_replicas": list(placed.group.reads),
                        "write_replicas": list(placed.group.writes),
                        "epoch": placed.group.epoch,
                    }


def request_rows(node: NodeServices) -> Iterator[VirtualRow]:
    """Requests as this node knows them; what running operations moved, only the metadata leader does."""
    requests = node.log.cluster.requests
    for request in (*requests.live, *requests.ended):
        waiting = why(node.log.cluster, request) if request.state is RequestState.QUEUED else None
        yield {
            "id": request.id,
            "kind": request.kind,
            "node_id": request.node,
            "replaced_node_id": request.about.replaced or None,
            "state": request.state.value,
            "policy": request.policy.value,
            "actor": request.actor,
            "operation_id": request.operation_id or None,
            "requested_epoch": request.requested_epoch,
            "began_epoch": request.began_epoch or None,
            "ended_epoch": request.ended_epoch or None,
            "outcome": request.outcome or None,
            "waits_for": waiting.reason if waiting is not None else None,
            **_operation_of(node, request),
            **_left_of(node, request),
        }


def _left_of(node: NodeServices, request: Request) -> VirtualRow:
    """What it has still to do with tablets."""
    left = left_of(node, request)
    if left is None:
        return {}
    return {
        "tablets_left": left.tablets,
        "tablets_total": left.tablets_total or None,
        "bytes_left": left.bytes if left.bytes != UNKNOWN else None,
        "seconds_left": left.seconds if left.seconds != UNKNOWN else None,
    }


def _operation_of(node: NodeServices, request: Request) -> VirtualRow:
    """What the operation of a request moved, and where it stands while it runs."""
    is_known = bool(request.operation_id or request.moved_bytes)
    moved: VirtualRow = {
        "fragments": request.moved_fragments if is_known else None,
        "bytes": request.moved_bytes if is_known else None,
    }
    operation = node.log.cluster.operations_by_id.get(request.operation_id)
    if operation is None:
        return moved
    return {
        **moved,
        "state": "cancelling" if operation.cancel_reason else "running",
        "stage": operation.stage.value,
        "stage_epoch": operation.stage_epoch,
        "session": operation.session_id,
        "ranges": len(node.log.cluster.transitions.of(operation.id)),
        "cancel_reason": operation.cancel_reason,
    }
