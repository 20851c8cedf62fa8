"""`system`: what drivers read to find the nodes and to cut their reads of a table, and the topology as
operators know it.

Invariant: a node is listed exactly while it owns tokens and its clients' door is meant to be open; addresses
are those that events name. No size is measured that nobody asks for, and what is told is at most
SAMPLE_KEPT_S old, for the ranges between tokens that drivers see.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo
from lockstep.node.services import NodeServices
from lockstep.schema.model import Keyspace, Table
from lockstep.schema.types import parse_uuid
from lockstep.server.cql.schema_watch import SchemaWatch
from lockstep.server.views.topology_view import TopologyTables, committed_ms
from lockstep.server.views.virtual import NamedRows, VirtualRow, VirtualTable, define
from lockstep.server.views.work_views import IN_PROGRESS_COLUMNS, built_rows, in_progress_rows
from lockstep.storage.sampling import sample
from lockstep.values.ids import CASSANDRA_RELEASE, NodeId
from lockstep.values.limits import SAMPLE_KEPT_S, SAMPLE_PAIRS_MAX, SAMPLED_ROWS_AT_ONCE_MAX, SAMPLES_KEPT_MAX
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range, ranges_between

_FIGURES = "mean_partition_size bigint; partitions_count bigint"


class _Kept(msgspec.Struct, frozen=True):
    """Of one table; `at_s` is when it was measured."""

    at_s: float
    owned: _Owned
    primary: tuple[Range, ...]
    partitions: dict[Range, int]
    mean_bytes: int


class _Owned:
    """Ranges of one node at one value of the metadata."""

    def __init__(self, cluster: ClusterMetadata, own_id: NodeId) -> None:
        self.cluster = cluster
        self._own_id = own_id
        self._between = _between(token for owner in cluster.directory.owners for token in owner.tokens)
        self._primary: dict[int, tuple[Range, ...]] = {}
        info = cluster.directory.by_id.get(own_id)
        own = frozenset(info.tokens) if info is not None else frozenset[int]()
        near = [owner for owner in cluster.directory.owners if info is not None and owner.dc == info.dc]
        self.local = tuple(
            piece
            for ends_at, piece in _between(token for owner in near for token in owner.tokens)
            if ends_at in own
        )

    def primary(self, group: int) -> tuple[Range, ...]:
        """Those of which it is the first replica."""
        found = self._primary.get(group)
        if found is None:
            ring = self.cluster.placements.ring(group)
            firsts = ((piece, ring.group_for(piece.right).reads[:1]) for _, piece in self._between)
            found = tuple(piece for piece, first in firsts if first == (self._own_id,))
            self._primary[group] = found
        return found


class SizeEstimates:
    """The tables of one node."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._owned: _Owned | None = None
        self._kept: dict[int, _Kept] = {}
        #: One question after the other: more would hold up requests.
        self._turn = asyncio.Lock()

    def tables(self) -> list[VirtualTable]:
        return [
            define(
                "system",
                "size_estimates",
                f"keyspace_name text; table_name text; range_start text; range_end text; {_FIGURES}",
                ("keyspace_name",),
                ("table_name", "range_start", "range_end"),
                self._of_tables(self._sizes),
                comment="About how many partitions are stored in each range of which this node is the first "
                "replica, and the mean size of one in the table, in bytes; sampled when it is read",
            ),
            define(
                "system",
                "table_estimates",
                "keyspace_name text; table_name text; range_type text; range_start text; range_end text; "
                + _FIGURES,
                ("keyspace_name",),
                ("table_name", "range_type", "range_start", "range_end"),
                self._of_tables(self._estimates),
                comment="The same (`primary`), and of ranges that end at tokens of this node among those of "
                "its data center (`local_primary`)",
            ),
        ]

    def _of_tables(self, rows: Callable[[Table], Iterable[VirtualRow]]) -> NamedRows:
        def one(name: str) -> Keyspace | None:
            return self._node.log.cluster.schema.by_name.get(name)

        return NamedRows(
            lambda: self._node.log.cluster.schema.keyspaces,
            one,
            attrgetter("tables"),
            lambda keyspace, name: keyspace.by_name.get(name),
            rows,
            at_once=SAMPLED_ROWS_AT_ONCE_MAX,
            before=self._measure,
        )

    def _sizes(self, table: Table) -> Iterator[VirtualRow]:
        kept = self._kept.get(table.id)
        return iter(()) if kept is None else _rows(table, kept, kept.primary)

    def _estimates(self, table: Table) -> Iterator[VirtualRow]:
        kept = self._kept.get(table.id)
        if kept is not None:
            for kind, ranges in (("primary", kept.primary), ("local_primary", kept.owned.local)):
                for row in _rows(table, kept, ranges):
                    yield {**row, "range_type": kind}

    async def _measure(self, tables: Iterator[Table]) -> None:
        """Have figures of the first tables, the better the fewer there are."""
        wanted = list(itertools.islice(tables, SAMPLES_KEPT_MAX))
        pairs_max = SAMPLE_PAIRS_MAX // max(1, len(wanted))
        async with self._turn:
            for table in wanted:
                kept = self._kept.pop(table.id, None)
                if kept is None or self._is_old(kept):
                    kept = await self._measured(table, pairs_max)
                self._kept[table.id] = kept
                if len(self._kept) > SAMPLES_KEPT_MAX:
                    del self._kept[next(iter(self._kept))]

    def _is_old(self, kept: _Kept) -> bool:
        age_s = self._node.context.runtime.clock.monotonic_s() - kept.at_s
        return age_s > SAMPLE_KEPT_S or kept.owned is not self._ranges()

    async def _measured(self, table: Table, pairs_max: int) -> _Kept:
        owned, schema = self._ranges(), self._node.log.cluster.schema
        clock = self._node.context.runtime.clock
        at_s = clock.monotonic_s()
        keyspace = schema.by_name.get(table.keyspace)
        primary = owned.primary(keyspace.group_of(table)) if keyspace is not None else ()
        ranges = tuple(dict.fromkeys((*primary, *owned.local)))
        found = await sample(self._node.data.store, clock, table.id, ranges, pairs_max)
        partitions = dict(zip(ranges, found.partitions, strict=True))
        return _Kept(at_s, owned, primary, partitions, found.mean_bytes)

    def _ranges(self) -> _Owned:
        """Those at the present metadata."""
        cluster, owned = self._node.log.cluster, self._owned
        if (
            owned is None
            or owned.cluster.placements is not cluster.placements
            or owned.cluster.directory is not cluster.directory
        ):
            owned = self._owned = _Owned(cluster, NodeId(self._node.context.own_id()))
        return owned


def _rows(table: Table, kept: _Kept, ranges: Iterable[Range]) -> Iterator[VirtualRow]:
    for one in ranges:
        partitions = kept.partitions[one]
        # The ring's end has the name of its beginning.
        end = TOKEN_MIN if one.right == TOKEN_MAX else one.right
        yield {
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "range_start": str(one.left),
            "range_end": str(end),
            "mean_partition_size": kept.mean_bytes if partitions else 0,
            "partitions_count": partitions,
        }


def _between(tokens: Iterable[int]) -> list[tuple[int, Range]]:
    """The ranges between neighbours, each with the token at which it ends; the one over the ring's end is
    split there."""
    ring = sorted(tokens)
    known = frozenset(ring)
    return (
        [(one.right if one.right in known else ring[0], one) for one in ranges_between(ring)] if ring else []
    )


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
