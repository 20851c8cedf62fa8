"""`system`: what drivers read to find the nodes, and the topology as operators know it.

Invariant: a node is listed exactly while it owns tokens and its clients' door is meant to be open; addresses
are those that events name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from lockstep.metadata.directory import NodeInfo
from lockstep.node.services import NodeServices
from lockstep.schema.types import parse_uuid
from lockstep.server.cql.schema_watch import SchemaWatch
from lockstep.server.views.size_estimates import SizeEstimates
from lockstep.server.views.topology_view import TopologyTables, committed_ms
from lockstep.server.views.view_build_rows import IN_PROGRESS_COLUMNS, built_rows, in_progress_rows
from lockstep.server.views.virtual import VirtualTable, define
from lockstep.server.views.virtual_rows import VirtualRow
from lockstep.values.compatibility import CASSANDRA_RELEASE

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


class SystemTables:
    """Generators of the tables of `system` for one node."""

    def __init__(self, node: NodeServices, watch: SchemaWatch) -> None:
        self._node = node
        self._watch = watch

    def tables(self) -> list[VirtualTable]:
        def system(
            name: str,
            columns: str,
            partition: Sequence[str],
            clustering: Sequence[str],
            rows: Callable[[], Iterator[VirtualRow]],
        ) -> VirtualTable:
            return define("system", name, columns, partition, clustering, rows)

        return [
            system("local", _LOCAL, ("key",), (), self._local),
            system("peers", _PEERS, ("peer",), (), self._peers),
            system("peers_v2", _PEERS_V2, ("peer",), ("peer_port",), self._peers_v2),
            *TopologyTables(lambda: self._node.log.cluster, committed_ms(self._node)).tables(),
            system(
                "IndexInfo",
                "table_name text; index_name text; value text",
                ("table_name",),
                ("index_name",),
                self._built_indexes,
            ),
            system(
                "built_views",
                "keyspace_name text; view_name text; status_replicated boolean",
                ("keyspace_name",),
                ("view_name",),
                lambda: built_rows(self._node),
            ),
            system(
                "view_builds_in_progress",
                IN_PROGRESS_COLUMNS,
                ("keyspace_name",),
                ("view_name", "start_token", "end_token"),
                lambda: in_progress_rows(self._node),
            ),
            *SizeEstimates(self._node).tables(),
        ]

    def _built_indexes(self) -> Iterator[VirtualRow]:
        indexes = self._node.data.engine.indexes
        for table_id in sorted(indexes.tables):
            table = self._node.log.cluster.table(table_id)
            if table is None:
                continue
            built = indexes.built(table_id)
            for index in table.indexes:
                if index.id in built:
                    yield {"table_name": table.keyspace, "index_name": index.name, "value": None}

    # -- nodes ------------------------------------------------------------------------------------

    def _local(self) -> Iterator[VirtualRow]:
        node = self._node
        info = node.context.info
        if info is None:
            return
        yield {
            **_place(info),
            "key": "local",
            "bootstrapped": "COMPLETED" if info.owns_tokens else "IN_PROGRESS",
            "broadcast_address": info.address,
            "broadcast_port": info.internode_port,
            "cluster_name": node.log.cluster.identity.cluster_name,
            "cql_version": CQL_VERSION,
            "gossip_generation": node.context.identity.value.generation,
            "listen_address": info.address,
            "listen_port": info.internode_port,
            "native_protocol_version": "5",
            "partitioner": PARTITIONER,
            "rpc_address": info.address,
            "rpc_port": info.cql_port,
            "schema_version": self._watch.version,
        }

    def _others(self) -> Iterator[NodeInfo]:
        own = self._node.context.own_id()
        return (
            info for info in self._node.log.cluster.directory.nodes if info.id != own and info.owns_tokens
        )

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
