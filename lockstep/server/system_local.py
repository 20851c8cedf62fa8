"""`system`: what drivers read to find the nodes, and the topology as operators know it.

Invariant: a node is listed exactly while it owns tokens and its clients' door is meant to be open; addresses
are those that events name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from lockstep.metadata.directory import NodeInfo
from lockstep.schema.types import parse_uuid
from lockstep.server.schema_watch import SchemaWatch
from lockstep.server.virtual import VirtualTable, define
from lockstep.server.virtual_rows import VirtualRow
from lockstep.values.compatibility import CASSANDRA_RELEASE

if TYPE_CHECKING:
    from lockstep.node.node import Node

#: The language version that clients are told.
CQL_VERSION: Final = "3.4.7"
PARTITIONER: Final = "org.apache.cassandra.dht.Murmur3Partitioner"

_LOCAL = (
    "key text; bootstrapped text; broadcast_address inet; broadcast_port int; cluster_name text; "
    "cql_version text; data_center text; gossip_generation int; host_id uuid; listen_address inet; "
    "listen_port int; native_protocol_version text; partitioner text; rack text; release_version text; "
    "rpc_address inet; rpc_port int; schema_version uuid; tokens set<text>; truncated_at map<uuid, blob>"
)
_PEERS = (
    "peer inet; data_center text; host_id uuid; preferred_ip inet; rack text; release_version text; "
    "rpc_address inet; schema_version uuid; tokens set<text>"
)
_PEERS_V2 = (
    "peer inet; peer_port int; data_center text; host_id uuid; native_address inet; native_port int; "
    "preferred_ip inet; preferred_port int; rack text; release_version text; schema_version uuid; "
    "tokens set<text>"
)
_TOPOLOGY = (
    "key text; host_id uuid; datacenter text; rack text; tokens set<text>; node_state text; "
    "release_version text; topology_request text; replaced_id uuid; rebuild_option text; num_tokens int; "
    "tokens_string text; shard_count int; ignore_msb int; cleanup_status text; "
    "supported_features set<text>; request_id bigint; intended_storage_mode text; "
    "ignore_nodes set<uuid>; new_cdc_generation_data_uuid uuid; version bigint; fence_version bigint; "
    "transition_state text; committed_cdc_generations set<text>; unpublished_cdc_generations set<text>; "
    "global_topology_request text; global_topology_request_id bigint; enabled_features set<text>; "
    "session text; tablet_balancing_enabled boolean; upgrade_state text; global_requests set<bigint>; "
    "paused_rf_change_requests set<bigint>; ongoing_rf_changes set<bigint>; "
    "ongoing_restore_requests set<bigint>"
)
_TOPOLOGY_STATIC = (
    "ignore_nodes", "new_cdc_generation_data_uuid", "version", "fence_version", "transition_state",
    "committed_cdc_generations", "unpublished_cdc_generations", "global_topology_request",
    "global_topology_request_id", "enabled_features", "session", "tablet_balancing_enabled",
    "upgrade_state", "global_requests", "paused_rf_change_requests", "ongoing_rf_changes",
    "ongoing_restore_requests",
)  # fmt: skip
_TOPOLOGY_REQUESTS = (
    "id bigint; initiating_host uuid; target_host uuid; request_type text; start_time timestamp; "
    "done boolean; error text; end_time timestamp; truncate_table_id uuid; "
    "new_keyspace_rf_change_ks_name text; new_keyspace_rf_change_data frozen<map<text, text>>; "
    "snapshot_table_ids set<uuid>; snapshot_tag text; snapshot_expiry timestamp; "
    "snapshot_skip_flush boolean; finalize_migration_ks_name text; restore_table_id uuid; "
    "restore_snapshot_name text"
)


class SystemTables:
    """Generators of the tables of `system` for one node."""

    def __init__(self, node: Node, watch: SchemaWatch) -> None:
        self._node = node
        self._watch = watch

    def tables(self) -> list[VirtualTable]:
        def system(
            name: str,
            columns: str,
            partition: Sequence[str],
            clustering: Sequence[str],
            rows: Callable[[], Iterator[VirtualRow]],
            static: Sequence[str] = (),
        ) -> VirtualTable:
            return define("system", name, columns, partition, clustering, rows, static=static)

        return [
            system("local", _LOCAL, ("key",), (), self._local),
            system("peers", _PEERS, ("peer",), (), self._peers),
            system("peers_v2", _PEERS_V2, ("peer",), ("peer_port",), self._peers_v2),
            system("topology", _TOPOLOGY, ("key",), ("host_id",), self._topology, _TOPOLOGY_STATIC),
            system("topology_requests", _TOPOLOGY_REQUESTS, ("id",), (), self._topology_requests),
            system(
                "IndexInfo",
                "table_name text; index_name text; value text",
                ("table_name",),
                ("index_name",),
                _nothing,
            ),
            system(
                "built_views",
                "keyspace_name text; view_name text; status_replicated boolean",
                ("keyspace_name",),
                ("view_name",),
                _nothing,
            ),
            system(
                "size_estimates",
                "keyspace_name text; table_name text; range_start text; range_end text; "
                "mean_partition_size bigint; partitions_count bigint",
                ("keyspace_name",),
                ("table_name", "range_start", "range_end"),
                _nothing,
            ),
        ]

    # -- nodes ------------------------------------------------------------------------------------

    def _local(self) -> Iterator[VirtualRow]:
        node = self._node
        info = node.info
        if info is None:
            return
        yield {
            **_place(info),
            "key": "local",
            "bootstrapped": "COMPLETED" if info.owns_tokens else "IN_PROGRESS",
            "broadcast_address": info.address,
            "broadcast_port": info.internode_port,
            "cluster_name": node.cluster.identity.cluster_name,
            "cql_version": CQL_VERSION,
            "gossip_generation": node.identity.value.generation,
            "listen_address": info.address,
            "listen_port": info.internode_port,
            "native_protocol_version": "5",
            "partitioner": PARTITIONER,
            "rpc_address": info.address,
            "rpc_port": info.cql_port,
            "schema_version": self._watch.version,
        }

    def _others(self) -> Iterator[NodeInfo]:
        own = self._node.node_id
        return (info for info in self._node.cluster.directory.nodes if info.id != own and info.owns_tokens)

    def _peers(self) -> Iterator[VirtualRow]:
        for info in self._others():
            yield {
                **_place(info),
                "peer": info.address,
                "preferred_ip": info.address,
                "rpc_address": info.address,
                "schema_version": self._watch.version_of(info.id),
            }

    def _peers_v2(self) -> Iterator[VirtualRow]:
        for info in self._others():
            yield {
                **_place(info),
                "peer": info.address,
                "peer_port": info.internode_port,
                "native_address": info.address,
                "native_port": info.cql_port,
                "preferred_ip": info.address,
                "preferred_port": info.internode_port,
                "schema_version": self._watch.version_of(info.id),
            }

    # -- topology ---------------------------------------------------------------------------------

    def _topology(self) -> Iterator[VirtualRow]:
        cluster = self._node.cluster
        operations = {operation.node: operation for operation in cluster.operations}
        first = cluster.operations[0] if cluster.operations else None
        shared: dict[str, Any] = {
            "key": "topology",
            "version": cluster.epoch,
            "fence_version": cluster.epoch,
            "transition_state": first.stage.value if first is not None else None,
            "session": first.session_id or None if first is not None else None,
            "tablet_balancing_enabled": False,
            "upgrade_state": "done",
            "enabled_features": [],
        }
        for info in cluster.directory.nodes:
            operation = operations.get(info.id)
            yield {
                **shared,
                "host_id": parse_uuid(info.host_id),
                "datacenter": info.dc,
                "rack": info.rack,
                "tokens": _tokens(info),
                "node_state": info.state.value,
                "release_version": CASSANDRA_RELEASE,
                "topology_request": operation.kind.value if operation is not None else None,
                "num_tokens": len(info.tokens),
                "shard_count": 1,
                "request_id": operation.id if operation is not None else None,
            }

    def _topology_requests(self) -> Iterator[VirtualRow]:
        cluster = self._node.cluster
        for request in (*cluster.requests.live, *cluster.requests.ended):
            target = cluster.directory.by_id[request.node]
            yield {
                "id": request.id,
                "target_host": parse_uuid(target.host_id),
                "request_type": request.kind.value,
                "done": not request.is_live,
                "error": request.outcome or None,
            }


def _nothing() -> Iterator[VirtualRow]:
    return iter(())


def _tokens(info: NodeInfo) -> list[str]:
    return [str(token) for token in info.tokens]


def _place(info: NodeInfo) -> dict[str, Any]:
    """What local and peers tell alike."""
    return {
        "data_center": info.dc,
        "host_id": parse_uuid(info.host_id),
        "rack": info.rack,
        "release_version": CASSANDRA_RELEASE,
        "tokens": _tokens(info),
    }
