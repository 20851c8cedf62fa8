"""`system.topology` and `system.topology_requests`, the ring and its requests under the names of ScyllaDB,
and views of the generations and streams of change data capture.

Invariant: computed from one metadata value when read; columns that mean nothing here are null, and
NOT_APPLICABLE says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from lockstep.metadata.cdc import Generation, current
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.requests import Request, RequestState
from lockstep.metadata.table_streams import TableStreams, kept_sets
from lockstep.node.services import NodeServices
from lockstep.placement.placements import RingPlacement
from lockstep.schema.model import Replication
from lockstep.schema.types import parse_uuid
from lockstep.server.views.virtual import EVERYTHING, Between, KeyedRows, VirtualRow, VirtualTable, define
from lockstep.topology.kinds.replication import target_in
from lockstep.values.ids import CASSANDRA_RELEASE, NodeId

#: The one partition of system.cdc_generations_v3.
CDC_KEY: Final = "cdc_generations"
#: The one partition of system_views.cdc_timestamps.
TIMESTAMPS_KEY: Final = "timestamps"


def pair(generation: Generation) -> tuple[int, bytes]:
    """As system.topology shows it: (timestamp, id)."""
    return generation.timestamp_ms, parse_uuid(generation.id)


class CdcTables:
    """`now_us` is this node's wall clock: it says which generation is the present one."""

    def __init__(self, cluster: Callable[[], ClusterMetadata], now_us: Callable[[], int]) -> None:
        self._cluster = cluster
        self._now_us = now_us

    def tables(self) -> list[VirtualTable]:
        return [
            define(
                "system",
                "cdc_generations_v3",
                "key text; id timeuuid; range_end bigint; streams frozen<set<blob>>; ignore_msb tinyint",
                ("key",),
                ("id", "range_end"),
                self._generations,
                comment="Every generation of change data capture, also those that are not published yet",
            ),
            define(
                "system_views",
                "cdc_timestamps",
                "key text; time timestamp; id timeuuid; expired timestamp; is_current boolean; streams int; "
                "published_epoch bigint",
                ("key",),
                ("time",),
                self._times,
                comment="Published generations of change data capture, and until when they take changes",
            ),
            define(
                "system_views",
                "cdc_streams",
                "time timestamp; range_end bigint; streams frozen<set<blob>>",
                ("time",),
                ("range_end",),
                KeyedRows(self._streams, self._streams_of),
                comment="The streams of published generations, by the ends of their ranges",
            ),
            # Under the names by which clients of ScyllaDB find streams.
            define(
                "system_distributed",
                "cdc_generation_timestamps",
                "key text; time timestamp; expired timestamp",
                ("key",),
                ("time",),
                self._times,
                comment="When published generations of change data capture begin and end",
            ),
            define(
                "system_distributed",
                "cdc_streams_descriptions_v2",
                "time timestamp; range_end bigint; streams frozen<set<blob>>",
                ("time",),
                ("range_end",),
                KeyedRows(self._streams, self._streams_of),
                comment="The streams of published generations, by the ends of their ranges",
            ),
            *self._of_tablets(),
        ]

    def _of_tablets(self) -> list[VirtualTable]:
        """Under the names by which clients of ScyllaDB find streams of tables with tablets."""
        return [
            define(
                "system",
                "cdc_timestamps",
                "keyspace_name text; table_name text; timestamp timestamp",
                ("keyspace_name", "table_name"),
                ("timestamp",),
                self._table_times,
                descending=("timestamp",),
                comment="From when on which streams of tables with tablets take changes",
            ),
            define(
                "system",
                "cdc_streams",
                "keyspace_name text; table_name text; timestamp timestamp; stream_state tinyint; "
                "stream_id blob",
                ("keyspace_name", "table_name"),
                ("timestamp", "stream_state", "stream_id"),
                self._table_streams,
                comment="Streams of tables with tablets that take changes then (0), do not any more (1), or "
                "do anew (2)",
            ),
        ]

    def _of_tables(self) -> Iterator[tuple[VirtualRow, TableStreams]]:
        """Each table with tablets that has a log of changes, by its name, and the streams with rows."""
        cluster, at_ms = self._cluster(), self._now_us() // 1000
        for streams in cluster.streams_by_group.values():
            head = cluster.tablets.by_group[streams.group].head
            kept = kept_sets(streams, cluster.schema.table(head.keyspace, head.table), at_ms)
            sets = tuple(one for one in kept if one.is_published)
            yield (
                {"keyspace_name": head.keyspace, "table_name": head.table},
                TableStreams(streams.group, sets),
            )

    def _table_times(self) -> Iterator[VirtualRow]:
        for named, streams in self._of_tables():
            for one in streams.sets:
                yield {**named, "timestamp": one.timestamp_ms}

    def _table_streams(self) -> Iterator[VirtualRow]:
        for named, streams in self._of_tables():
            for one, closed, opened in streams.told():
                for state, listed in ((0, one.streams), (1, closed), (2, opened)):
                    for stream in listed:
                        yield {
                            **named,
                            "timestamp": one.timestamp_ms,
                            "stream_state": state,
                            "stream_id": stream,
                        }

    def _generations(self) -> Iterator[VirtualRow]:
        for generation in self._cluster().generations:
            id_ = parse_uuid(generation.id)
            for token, stream in generation.streams():
                yield {"key": CDC_KEY, "id": id_, "range_end": token, "streams": [stream], "ignore_msb": 0}

    def _published(self) -> list[Generation]:
        return [one for one in self._cluster().generations if one.is_published]

    def _times(self) -> Iterator[VirtualRow]:
        known = self._published()
        present = current(known, self._now_us())
        for at, generation in enumerate(known):
            yield {
                "key": TIMESTAMPS_KEY,
                "time": generation.timestamp_ms,
                "id": parse_uuid(generation.id),
                "expired": known[at + 1].timestamp_ms if at + 1 < len(known) else None,
                "is_current": generation is present,
                "streams": generation.count,
                "published_epoch": generation.published_epoch,
            }

    def _streams(self) -> Iterator[VirtualRow]:
        for generation in self._published():
            yield from self._streams_of(generation.timestamp_ms, EVERYTHING)

    def _streams_of(self, time_ms: Any, wanted: Between) -> Iterator[VirtualRow]:
        for generation in self._published():
            if generation.timestamp_ms == time_ms:
                for token, stream in generation.streams(wanted.low, wanted.high):
                    yield {"time": generation.timestamp_ms, "range_end": token, "streams": [stream]}


#: The one partition of system.topology.
KEY: Final = "topology"
_GENERATIONS = "frozen<set<frozen<tuple<timestamp, timeuuid>>>>"
_NODE_COLUMNS = (
    "key text; host_id uuid; datacenter text; rack text; tokens set<text>; node_state text; "
    "release_version text; topology_request text; replaced_id uuid; rebuild_option text; num_tokens int; "
    "tokens_string text; shard_count int; ignore_msb int; cleanup_status text; "
    "supported_features set<text>; request_id timeuuid; intended_storage_mode text"
)
_STATIC_COLUMNS = (
    "ignore_nodes set<uuid>; new_cdc_generation_data_uuid timeuuid; version bigint; fence_version bigint; "
    f"transition_state text; committed_cdc_generations {_GENERATIONS}; "
    f"unpublished_cdc_generations {_GENERATIONS}; global_topology_request text; "
    "global_topology_request_id timeuuid; enabled_features set<text>; session text; "
    "tablet_balancing_enabled boolean; upgrade_state text; global_requests set<timeuuid>; "
    "paused_rf_change_requests set<timeuuid>; ongoing_rf_changes set<timeuuid>; "
    "ongoing_restore_requests set<timeuuid>; new_keyspace_rf_change_ks_name text; "
    "new_keyspace_rf_change_data frozen<map<text, text>>"
)
_REQUEST_COLUMNS = (
    "id timeuuid; initiating_host uuid; target_host uuid; request_type text; start_time timestamp; "
    "done boolean; error text; end_time timestamp; truncate_table_id uuid; "
    "new_keyspace_rf_change_ks_name text; new_keyspace_rf_change_data frozen<map<text, text>>; "
    "snapshot_table_ids set<uuid>; snapshot_tag text; snapshot_expiry timestamp; "
    "snapshot_skip_flush boolean; finalize_migration_ks_name text; restore_table_id uuid; "
    "restore_snapshot_name text"
)
#: Columns that are always null, and why.
NOT_APPLICABLE: Final[Mapping[str, str]] = {
    "ignore_msb, intended_storage_mode": "a node has one shard and one form of storage",
    "paused_rf_change_requests": "a change of replication waits in the queue or runs",
    "new_keyspace_rf_change_ks_name, new_keyspace_rf_change_data of topology": "see topology_requests",
    "ongoing_restore_requests, restore_table_id, restore_snapshot_name": "no request restores a backup",
    "truncate_table_id, snapshot_table_ids, snapshot_tag, snapshot_expiry, snapshot_skip_flush, "
    "finalize_migration_ks_name": "no request has such a kind",
    "initiating_host": "requests name who asked in words: the actor in system_views.topology_requests",
}
#: Kinds whose requests have another name there.
_TYPES: Final = {
    "bootstrap": "join",
    "decommission": "leave",
    "replication_change": "keyspace_rf_change",
}
_UUID_VERSION_1: Final = 0x1000
_UUID_VARIANT: Final = 0x8000
_NODE_BYTES: Final = 6


def request_uuid(request_id: int) -> bytes:
    """The version 1 UUID of a request: its id stands where the time would be, so that they sort alike; clock
    and node are zero, as ids are unique in a cluster only."""
    low, middle, high = request_id & 0xFFFFFFFF, request_id >> 32 & 0xFFFF, request_id >> 48 & 0x0FFF
    time = low.to_bytes(4, "big") + middle.to_bytes(2, "big") + (high | _UUID_VERSION_1).to_bytes(2, "big")
    return time + _UUID_VARIANT.to_bytes(2, "big") + bytes(_NODE_BYTES)


def request_number(uuid: bytes) -> int:
    """Inverse of `request_uuid`; 0, which no request has, for any other UUID."""
    high = int.from_bytes(uuid[6:8], "big") & 0x0FFF
    number = high << 48 | int.from_bytes(uuid[4:6], "big") << 32 | int.from_bytes(uuid[:4], "big")
    return number if request_uuid(number) == uuid else 0


def request_type(request: Request) -> str:
    return _TYPES.get(request.kind, request.kind)


def transition_state(cluster: ClusterMetadata) -> Operation | None:
    """The oldest running operation that is a transition: a rebuild changes no replicas, and is none."""
    running = (one for one in cluster.operations if one.stage is not Stage.REBUILDING)
    return min(running, key=lambda one: one.id, default=None)


class TopologyTables:
    """`committed_ms(epoch)` is when an epoch was committed, None when this node keeps it no more."""

    def __init__(
        self, cluster: Callable[[], ClusterMetadata], committed_ms: Callable[[int], int | None]
    ) -> None:
        self._cluster = cluster
        self._committed_ms = committed_ms
        self._newest: dict[int, tuple[RingPlacement, int]] = {}

    def tables(self) -> list[VirtualTable]:
        static = [text.strip().partition(" ")[0] for text in _STATIC_COLUMNS.split(";")]
        columns = f"{_NODE_COLUMNS}; {_STATIC_COLUMNS}"
        return [
            define(
                "system",
                "topology",
                columns,
                ("key",),
                ("host_id",),
                self._topology,
                static=static,
                comment="Every node with its tokens, state and live request; what all share is static",
            ),
            define(
                "system",
                "topology_requests",
                _REQUEST_COLUMNS,
                ("id",),
                (),
                KeyedRows(self._requests, self._request_of),
                comment="Requests for topology operations: queued, running, and those that ended lately",
            ),
        ]

    # -- topology ---------------------------------------------------------------------------------

    def _topology(self) -> Iterator[VirtualRow]:
        cluster = self._cluster()
        shared = self._shared(cluster)
        for info in cluster.directory.nodes:
            yield {**shared, **_node_row(cluster, info)}

    def _shared(self, cluster: ClusterMetadata) -> dict[str, Any]:
        first = transition_state(cluster)
        whole = [request for request in cluster.requests.live if not request.node]
        running = [request for request in whole if request.state is RequestState.RUNNING]
        foremost = next(iter(running or whole), None)
        hosts = (cluster.directory.by_id[one.node].host_id for one in cluster.excluded)
        return {
            "key": KEY,
            "ignore_nodes": [parse_uuid(host) for host in hosts],
            "version": cluster.epoch,
            "fence_version": self.fence_version(cluster),
            "transition_state": first.stage.value if first is not None else None,
            "session": first.session_id or None if first is not None else None,
            "enabled_features": list(cluster.features.enabled),
            "tablet_balancing_enabled": cluster.tablets.is_balanced,
            "upgrade_state": "done",
            **_generations(cluster),
            "global_topology_request": request_type(foremost) if foremost is not None else None,
            "global_topology_request_id": request_uuid(foremost.id) if foremost is not None else None,
            "global_requests": [request_uuid(r.id) for r in whole if r not in running] or None,
            "ongoing_rf_changes": [request_uuid(r.id) for r in running] or None,
        }

    def fence_version(self, cluster: ClusterMetadata) -> int:
        """The newest epoch that changed who reads or writes some range: its replicas refuse what was planned
        before it, other ranges may have older fences. Rings that are as they were are not searched again."""
        newest: dict[int, tuple[RingPlacement, int]] = {}
        for ring in cluster.placements.rings:
            known = self._newest.get(ring.id)
            if known is None or known[0] is not ring:
                known = (ring, max((placed.group.epoch for placed in ring.ranges), default=0))
            newest[ring.id] = known
        self._newest = newest
        return max((epoch for _, epoch in newest.values()), default=0)

    # -- requests ---------------------------------------------------------------------------------

    def _requests(self) -> Iterator[VirtualRow]:
        requests = self._cluster().requests
        for request in (*requests.live, *requests.ended):
            yield self._request_row(request)

    def _request_of(self, uuid: Any, _all: Between) -> Iterator[VirtualRow]:
        found = self._cluster().requests.by_id.get(request_number(uuid))
        if found is not None:
            yield self._request_row(found)

    def _request_row(self, request: Request) -> VirtualRow:
        target = self._cluster().directory.by_id.get(request.node)
        wanted = target_in(request.body)
        return {
            "id": request_uuid(request.id),
            "target_host": parse_uuid(target.host_id) if target is not None else None,
            "request_type": request_type(request),
            "start_time": self._committed_ms(request.requested_epoch) if request.requested_epoch else None,
            "done": not request.is_live,
            "error": request.outcome or None,
            "end_time": self._committed_ms(request.ended_epoch) if request.ended_epoch else None,
            "new_keyspace_rf_change_ks_name": request.about.keyspace or None,
            "new_keyspace_rf_change_data": _options(wanted) if wanted is not None else None,
        }


def _generations(cluster: ClusterMetadata) -> dict[str, Any]:
    """`new_cdc_generation_data_uuid` is that of an operation in the stage that commits it."""
    committing = (one.id for one in cluster.operations if one.stage is Stage.COMMIT_CDC_GENERATION)
    first = min(committing, default=0)
    new = (one.id for one in cluster.generations if one.operation_id == first and not one.is_published)
    id_ = next(new, None)
    return {
        "committed_cdc_generations": [pair(one) for one in cluster.generations] or None,
        "unpublished_cdc_generations": [pair(o) for o in cluster.generations if not o.is_published] or None,
        "new_cdc_generation_data_uuid": parse_uuid(id_) if id_ is not None else None,
    }


def _options(target: Replication) -> dict[str, str]:
    """A replication as the options of a keyspace."""
    factors = {dc or "replication_factor": factor for dc, factor in target.factor_texts}
    return {"class": target.strategy, **factors}


def _node_row(cluster: ClusterMetadata, info: NodeInfo) -> VirtualRow:
    request = cluster.requests.by_node.get(info.id)
    replaced = request.about.replaced if request is not None and request.node == info.id else NodeId(0)
    tokens = [str(token) for token in info.tokens]
    return {
        "host_id": parse_uuid(info.host_id),
        "datacenter": info.dc,
        "rack": info.rack,
        "tokens": tokens,
        "tokens_string": ", ".join(tokens) or None,
        "num_tokens": len(tokens),
        "node_state": info.state.value,
        "release_version": info.version or CASSANDRA_RELEASE,
        "topology_request": request_type(request) if request is not None else None,
        "request_id": request_uuid(request.id) if request is not None else None,
        "replaced_id": parse_uuid(cluster.directory.by_id[replaced].host_id) if replaced else None,
        "rebuild_option": getattr(request.body, "source_dc", "") or None if request is not None else None,
        "supported_features": list(info.features),
        "shard_count": 1,
        "cleanup_status": _cleanup_status(cluster, info),
    }


def _cleanup_status(cluster: ClusterMetadata, info: NodeInfo) -> str | None:
    """`running` while the node wipes ranges that it lost; an operation does not end before."""
    if info.state is NodeState.LEFT:
        return None
    cleaning = (one for one in cluster.operations if one.stage is Stage.CLEANUP)
    busy = any(info.id in moved.lost for one in cleaning for moved in cluster.transitions.of(one.id))
    return "running" if busy else "clean"


def committed_ms(node: NodeServices) -> Callable[[int], int | None]:
    """When an epoch was committed, from the entries that a node keeps."""

    def find(epoch: int) -> int | None:
        kept = node.log.state.retained(epoch, epoch)
        return kept[0].commit_time_us // 1000 if kept and kept[0].epoch == epoch else None

    return find
