"""`system_views`: the metadata, its log and the running operations as tables.

Invariant: views of the metadata value and of live counters; none is a copy that could drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lockstep.schema.types import parse_uuid
from lockstep.server.log_text import entry_summary, kind_name
from lockstep.server.virtual import VirtualTable, define
from lockstep.server.virtual_rows import VirtualRow

if TYPE_CHECKING:
    from lockstep.node.node import Node


class Client(Protocol):
    """A connection as the clients view shows it."""

    peer: tuple[str, int]
    options: dict[str, str]
    requests_served: int

    @property
    def session(self) -> Any: ...

    @property
    def version(self) -> int: ...


class ViewTables:
    """`clients` gives the open connections."""

    def __init__(self, node: Node, clients: Callable[[], Sequence[Client]]) -> None:
        self._node = node
        self._clients = clients

    def tables(self) -> list[VirtualTable]:
        return [*self._metadata_tables(), *self._live_tables()]

    def _metadata_tables(self) -> list[VirtualTable]:
        return [
            _view(
                "cluster_metadata_log",
                "cluster text; epoch bigint; entry_id uuid; kind text; actor text; committed_at timestamp; "
                "term bigint; previous_hash blob; hash blob; summary text",
                ("cluster",),
                ("epoch",),
                self._log,
                "The metadata log as far as this node keeps it, one entry an epoch",
            ),
            _view(
                "cluster_metadata_snapshots",
                "cluster text; epoch bigint; taken_at timestamp; size_bytes bigint; digest blob; hash blob",
                ("cluster",),
                ("epoch",),
                self._snapshots,
                "Snapshots of the metadata that this node keeps",
            ),
            _view(
                "cluster_metadata_directory",
                "node_id int; host_id uuid; address inet; internode_port int; cql_port int; admin_port int; "
                "data_center text; rack text; state text; tokens frozen<list<text>>; version text; "
                "epoch bigint; is_voter boolean; is_alive boolean; acknowledged_epoch bigint",
                ("node_id",),
                (),
                self._directory,
                "Every node this cluster ever had",
            ),
            _view(
                "cluster_metadata_locks",
                "operation_id int; replication text; start_token bigint; end_token bigint",
                ("operation_id",),
                ("replication", "start_token"),
                self._locks,
                "Token ranges held by running operations",
            ),
            _view(
                "placements",
                "keyspace_name text; start_token bigint; end_token bigint; read_replicas frozen<list<int>>; "
                "write_replicas frozen<list<int>>; epoch bigint",
                ("keyspace_name",),
                ("start_token",),
                self._placements,
                "Who holds each token range (start exclusive, end inclusive)",
            ),
            _view(
                "topology_requests",
                "id int; kind text; node_id int; state text; stage text; stage_epoch bigint; session text; "
                "ranges int; cancel_reason text; fragments bigint; bytes bigint",
                ("id",),
                (),
                self._requests,
                "Topology operations that run",
            ),
        ]

    def _live_tables(self) -> list[VirtualTable]:
        return [
            _view(
                "barriers",
                "operation_id int; node_id int; reason text; since timestamp",
                ("operation_id",),
                ("node_id", "reason"),
                self._barriers,
                "Whom operations wait for, as the metadata leader sees it",
            ),
            _view(
                "sessions",
                "id text; operation_id int; stage text; opened_epoch bigint",
                ("id",),
                (),
                self._sessions,
                "Sessions under which streaming and cleanup may have effects",
            ),
            _view(
                "cms_members",
                "node_id int; host_id uuid; address inet; is_leader boolean; is_alive boolean; "
                "acknowledged_epoch bigint",
                ("node_id",),
                (),
                self._cms,
                "Voters of the metadata group",
            ),
            _view("settings", "name text; value text", ("name",), (), self._settings, "This node's settings"),
            _view(
                "clients",
                "address inet; port int; connection_stage text; driver_name text; driver_version text; "
                "keyspace_name text; protocol_version int; request_count bigint",
                ("address",),
                ("port",),
                self._client_rows,
                "CQL connections of this node",
            ),
        ]

    def _log(self) -> Iterator[VirtualRow]:
        name = self._node.cluster.identity.cluster_name
        for entry in tuple(self._node.state.entries):
            yield {
                "cluster": name,
                "epoch": entry.epoch,
                "entry_id": entry.entry_id,
                "kind": kind_name(entry.kind),
                "actor": entry.actor,
                "committed_at": entry.commit_time_us // 1000,
                "term": entry.term,
                "previous_hash": entry.previous_hash,
                "hash": entry.hash,
                "summary": entry_summary(self._node.registry, entry),
            }

    def _snapshots(self) -> Iterator[VirtualRow]:
        name = self._node.cluster.identity.cluster_name
        for info in tuple(self._node.state.store.infos.values()):
            yield {
                "cluster": name,
                "epoch": info.epoch,
                "taken_at": info.entry.commit_time_us // 1000,
                "size_bytes": info.size_bytes,
                "digest": info.digest,
                "hash": info.entry.hash,
            }

    def _directory(self) -> Iterator[VirtualRow]:
        node = self._node
        for info in node.cluster.directory.nodes:
            yield {
                "node_id": info.id,
                "host_id": parse_uuid(info.host_id),
                "address": info.address,
                "internode_port": info.internode_port,
                "cql_port": info.cql_port,
                "admin_port": info.admin_port,
                "data_center": info.dc,
                "rack": info.rack,
                "state": info.state.value,
                "tokens": [str(token) for token in info.tokens],
                "version": info.version,
                "epoch": info.epoch,
                "is_voter": info.id in node.cluster.voters,
                "is_alive": node.liveness.alive(info.id),
                "acknowledged_epoch": seen_epoch(node, info.id),
            }

    def _locks(self) -> Iterator[VirtualRow]:
        for lock in self._node.cluster.locks:
            for replication, held in lock.ranges:
                yield {
                    "operation_id": lock.operation_id,
                    "replication": f"{replication.strategy} {dict(replication.factors)}",
                    "start_token": held.left,
                    "end_token": held.right,
                }

    def _placements(self) -> Iterator[VirtualRow]:
        cluster = self._node.cluster
        for keyspace in cluster.schema.keyspaces:
            for placed in cluster.placements.ring(keyspace.replication).ranges:
                yield {
                    "keyspace_name": keyspace.name,
                    "start_token": placed.range.left,
                    "end_token": placed.range.right,
                    "read_replicas": list(placed.group.reads),
                    "write_replicas": list(placed.group.writes),
                    "epoch": placed.group.epoch,
                }

    def _requests(self) -> Iterator[VirtualRow]:
        progress = self._node.topology.progress
        for operation in self._node.cluster.operations:
            done = progress.get(operation.id)
            yield {
                "id": operation.id,
                "kind": operation.kind.value,
                "node_id": operation.node,
                "state": "cancelling" if operation.cancel_reason else "running",
                "stage": operation.stage.value,
                "stage_epoch": operation.stage_epoch,
                "session": operation.session_id,
                "ranges": len(operation.transitions),
                "cancel_reason": operation.cancel_reason,
                "fragments": done.moved_fragments if done is not None else None,
                "bytes": done.moved_bytes if done is not None else None,
            }

    def _barriers(self) -> Iterator[VirtualRow]:
        for blocking in self._node.topology.blocking:
            yield {
                "operation_id": blocking.operation_id,
                "node_id": blocking.node,
                "reason": blocking.reason,
                "since": blocking.since_us // 1000,
            }

    def _sessions(self) -> Iterator[VirtualRow]:
        for session in self._node.cluster.sessions:
            yield {
                "id": session.id,
                "operation_id": session.operation_id,
                "stage": session.stage.value,
                "opened_epoch": session.opened_epoch,
            }

    def _cms(self) -> Iterator[VirtualRow]:
        node = self._node
        for voter in node.cluster.voters:
            info = node.cluster.directory.by_id[voter]
            yield {
                "node_id": voter,
                "host_id": parse_uuid(info.host_id),
                "address": info.address,
                "is_leader": voter == node.leader_id,
                "is_alive": node.liveness.alive(voter),
                "acknowledged_epoch": seen_epoch(node, voter),
            }

    def _settings(self) -> Iterator[VirtualRow]:
        sections: dict[str, dict[str, Any]] = msgspec.to_builtins(self._node.configuration)
        for section, keys in sections.items():
            for key, value in keys.items():
                text = ", ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
                yield {"name": f"{section}.{key}", "value": text}

    def _client_rows(self) -> Iterator[VirtualRow]:
        for client in self._clients():
            session = client.session
            yield {
                "address": client.peer[0],
                "port": client.peer[1],
                "connection_stage": "ready" if session is not None else "initial",
                "driver_name": client.options.get("DRIVER_NAME"),
                "driver_version": client.options.get("DRIVER_VERSION"),
                "keyspace_name": session.keyspace if session is not None else None,
                "protocol_version": client.version,
                "request_count": client.requests_served,
            }


def seen_epoch(node: Node, other: int) -> int:
    """The newest epoch that a node is known to have applied."""
    return node.cluster.epoch if other == node.node_id else node.topology.acknowledged(other)


def _view(
    name: str,
    columns: str,
    partition: Sequence[str],
    clustering: Sequence[str],
    rows: Callable[[], Iterator[VirtualRow]],
    comment: str,
) -> VirtualTable:
    return define("system_views", name, columns, partition, clustering, rows, comment=comment)
