"""What this node does beside requests, as rows and as metrics: hints, repairs, range streams, builds of
views.

Invariant: rows are read from the metadata and from what the work itself counts; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from lockstep.metadata.directory import OWNING_STATES, NodeInfo
from lockstep.node.services import NodeServices
from lockstep.node.work.view_builds import Build
from lockstep.schema.model import Table
from lockstep.schema.types import parse_uuid
from lockstep.server.metrics.metric_table import Sample
from lockstep.server.views.virtual import VirtualRow
from lockstep.storage.rows.keys import table_of
from lockstep.streaming.stream_progress import StreamView
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: As in Cassandra, with `hints`; the hints of a node count as one file, for they lie in the store.
PENDING_COLUMNS = (
    "host_id uuid; address inet; port int; rack text; dc text; status text; files int; newest timestamp; "
    "oldest timestamp; total_files_size bigint; corrupted_files int; total_corrupted_files_size bigint; "
    "hints bigint"
)
DROPPED_COLUMNS = (
    "keyspace_name text; table_name text; node_id int; start_token bigint; end_token bigint; reason text; "
    "since timestamp; newest timestamp; hints bigint"
)


def pending_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for target, pending in list(node.data.hints.store.pending.items()):
        info = node.log.cluster.directory.by_id.get(target)
        if info is None:
            continue
        yield {
            "host_id": parse_uuid(info.host_id),
            "address": info.address,
            "port": info.internode_port,
            "rack": info.rack,
            "dc": info.dc,
            "status": "UP" if node.membership.liveness.alive(target) else "DOWN",
            "files": 1,
            "newest": pending.newest_us // 1000,
            "oldest": pending.oldest_us // 1000,
            "total_files_size": pending.bytes,
            "corrupted_files": 0,
            "total_corrupted_files_size": 0,
            "hints": pending.count,
        }


def dropped_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for mark in list(node.data.hints.store.marks()):
        table = node.log.cluster.table(mark.table_id)
        if table is None:
            continue
        yield {
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "node_id": mark.node,
            "start_token": mark.left,
            "end_token": mark.right,
            "reason": mark.reason,
            "since": mark.since_us // 1000,
            "newest": mark.newest_us // 1000,
            "hints": mark.count,
        }


class LiveView(msgspec.Struct, frozen=True):
    name: str
    columns: str
    partition: tuple[str, ...]
    clustering: tuple[str, ...]
    rows: Callable[[Any], Iterator[VirtualRow]]
    text: str


HINT_VIEWS = (
    LiveView(
        "pending_hints",
        PENDING_COLUMNS,
        ("host_id",),
        (),
        pending_rows,
        "Writes that this node keeps for replicas that did not acknowledge them",
    ),
    LiveView(
        "dropped_hints",
        DROPPED_COLUMNS,
        ("keyspace_name", "table_name"),
        ("node_id", "start_token", "end_token"),
        dropped_rows,
        "Ranges of which a node lacks writes that this node will not bring it: they need a repair",
    ),
)


def hint_samples(node: NodeServices) -> Iterator[Sample]:
    hints, delivery = node.data.hints, node.data.hint_delivery
    for target, pending in list(hints.store.pending.items()):
        labels = (("node", str(target)),)
        yield Sample("lockstep_hints_pending", pending.count, labels)
        yield Sample("lockstep_hints_pending_bytes", pending.bytes, labels)
    yield Sample("lockstep_hints_left_total", hints.left)
    yield Sample("lockstep_hints_delivered_total", delivery.delivered)
    yield Sample("lockstep_hints_failed_total", delivery.failed)
    yield Sample("lockstep_batches_kept", len(node.data.batch_store))
    yield Sample("lockstep_batches_kept_bytes", node.data.batch_store.bytes)
    yield Sample("lockstep_batches_replayed_total", node.data.batch_store.replayed)
    yield Sample("lockstep_batches_replay_failures_total", node.data.batch_store.replay_failures)
    for reason, count in hints.dropped.items():
        yield Sample("lockstep_hints_dropped_total", count, (("reason", reason),))


REPAIRS = (
    "id int; keyspace_name text; state text; incremental boolean; driver int; tables int; ranges int; "
    "began_epoch bigint; ended_epoch bigint; began_at timestamp; ended_at timestamp; reason text; "
    "ranges_done int; ranges_total int; changes_sent bigint; bytes_sent bigint; purpose text; "
    "ids_lacking bigint; disagreements int"
)
REPAIRED = (
    "keyspace_name text; table_name text; start_token bigint; end_token bigint; repaired_at timestamp; "
    "purge_before timestamp; epoch bigint"
)


def repair_rows(node: NodeServices) -> Iterator[VirtualRow]:
    """How far one is, only its driver knows."""
    repairs = node.log.cluster.repairs
    for repair in (*repairs.running, *repairs.ended):
        progress = node.work.repairs.progress.get(repair.id)
        for part in repair.parts:
            yield {
                "id": repair.id,
                "keyspace_name": part.keyspace,
                "state": repair.state.value,
                "incremental": repair.incremental,
                "driver": int(repair.driver),
                "tables": len(part.tables),
                "ranges": len(part.ranges),
                "began_epoch": repair.began_epoch,
                "ended_epoch": repair.ended_epoch or None,
                "began_at": repair.began_s * 1000,
                "ended_at": repair.ended_s * 1000 or None,
                "reason": repair.reason or None,
                "ranges_done": progress.ranges_done if progress is not None else None,
                "ranges_total": progress.ranges if progress is not None else None,
                "changes_sent": progress.changes_sent if progress is not None else None,
                "bytes_sent": progress.bytes_sent if progress is not None else None,
                "purpose": repair.purpose or "repair",
                "ids_lacking": sum(progress.lacking.values()) if progress is not None else None,
                "disagreements": progress.disagreements if progress is not None else None,
            }


def repaired_rows(node: NodeServices) -> Iterator[VirtualRow]:
    cluster = node.log.cluster
    for entry in cluster.repairs.tables:
        table = cluster.table(entry.table)
        if table is None:
            continue
        for one in entry.ranges:
            yield {
                "keyspace_name": table.keyspace,
                "table_name": table.name,
                "start_token": one.range.left,
                "end_token": one.range.right,
                "repaired_at": one.at_s * 1000,
                "purge_before": one.before_s * 1000 or None,
                "epoch": one.epoch,
            }


def repair_samples(node: NodeServices) -> Iterator[Sample]:
    running = sum(repair.driver == node.context.own_id() for repair in node.log.cluster.repairs.running)
    yield Sample("lockstep_repair_running", running)
    driven, taken = node.work.comparison.total, node.data.repair_participant.counts
    yield Sample("lockstep_repair_leaves_compared_total", driven.leaves)
    yield Sample("lockstep_repair_leaves_different_total", driven.leaves_different)
    yield Sample("lockstep_repair_changes_sent_total", driven.changes_sent)
    yield Sample("lockstep_repair_bytes_sent_total", driven.bytes_sent)
    yield Sample("lockstep_repair_trees_built_total", taken.trees)
    yield Sample("lockstep_repair_changes_taken_total", taken.changes_taken)


def purge_samples(node: NodeServices) -> Iterator[Sample]:
    """What merging and purging did to each table that is there, since the node started."""
    for table_id, counts in node.data.engine.purge.counts.items():
        table = node.log.cluster.table(table_id)
        if table is None:
            continue
        labels = (("keyspace", table.keyspace), ("table", table.name))
        yield Sample("lockstep_storage_purge_passes_total", counts.passes, labels)
        yield Sample("lockstep_storage_purge_fragments_seen_total", counts.fragments, labels)
        yield Sample("lockstep_storage_purge_places_merged_total", counts.merged_places, labels)
        yield Sample("lockstep_storage_purge_fragments_dropped_total", counts.dropped, labels)
    yield Sample("lockstep_storage_purge_held_back_total", node.work.tombstone_purge.held_back)


COLUMNS = (
    "session text; direction text; peer inet; peer_port int; table_id bigint; start_token bigint; "
    "end_token bigint; keyspace_name text; table_name text; files_done int; files_total int; bytes bigint; "
    "total_bytes bigint; rate_bytes_s bigint; left_s bigint; since timestamp"
)
PARTITION = ("session",)
CLUSTERING = ("direction", "peer", "peer_port", "table_id", "start_token")


def stream_rows(node: NodeServices) -> Iterator[VirtualRow]:
    names = {
        table.id: (keyspace.name, table.name)
        for keyspace in node.log.cluster.schema.keyspaces
        for table in keyspace.tables
    }
    for one in _views(node):
        keyspace, table = names.get(table_of(one.table_id), (None, None))
        yield {
            "session": one.session_id,
            "direction": one.direction,
            "peer": one.peer[0],
            "peer_port": one.peer[1],
            "table_id": one.table_id,
            "start_token": one.range.left,
            "end_token": one.range.right,
            "keyspace_name": keyspace,
            "table_name": table,
            "files_done": one.files,
            "files_total": one.files_total,
            "bytes": one.bytes,
            "total_bytes": max(one.total_bytes, one.bytes),
            "rate_bytes_s": one.rate_bytes_s,
            "left_s": one.left_s if one.left_s >= 0 else None,
            "since": one.since_us // 1000,
        }


def stream_samples(node: NodeServices) -> Iterator[Sample]:
    ends = (("in", node.data.stream_client.counts), ("out", node.data.streams.counts))
    running = [view.direction for view in _views(node)]
    for direction, counts in ends:
        label = (("direction", direction),)
        yield Sample("lockstep_streaming_streams_open", running.count(direction), label)
        yield Sample("lockstep_streaming_streams_total", counts.streams, label)
        yield Sample("lockstep_streaming_bytes_total", counts.bytes, label)
        yield Sample("lockstep_streaming_files_total", counts.files, label)
    incoming, throttle = node.data.stream_client.counts, node.data.streams.throttle
    yield Sample("lockstep_streaming_damaged_files_total", incoming.damaged)
    yield Sample("lockstep_streaming_resumes_total", incoming.resumed)
    yield Sample("lockstep_streaming_throughput_limit_bytes", throttle.rate_bytes_s)
    yield Sample("lockstep_streaming_throttled_seconds_total", throttle.waited_s)


def _views(node: NodeServices) -> list[StreamView]:
    return [*node.data.stream_client.views(), *node.data.streams.views()]


STARTED: Final = "STARTED"
SUCCESS: Final = "SUCCESS"
UNKNOWN: Final = "UNKNOWN"
IN_PROGRESS_COLUMNS = (
    "keyspace_name text; view_name text; start_token text; end_token text; last_token text; keys_built bigint"
)


def built_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for view, build in _builds(node):
        if build.done:
            yield {"keyspace_name": view.keyspace, "view_name": view.name, "status_replicated": True}


def in_progress_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for view, build in _builds(node):
        if not build.done:
            yield {
                "keyspace_name": view.keyspace,
                "view_name": view.name,
                "start_token": str(TOKEN_MIN),
                "end_token": str(TOKEN_MAX),
                "last_token": str(build.covered[-1][1] if build.covered else TOKEN_MIN),
                "keys_built": build.partitions,
            }


def build_warning(node: NodeServices, table: Table) -> str:
    """What clients are told that read a view which some node is still building; else empty."""
    if table.view is None:
        return ""
    build = node.data.view_builds.builds.get(table.id)
    if build is None or all(status != STARTED for _, status in _statuses(node, table.id, build)):
        return ""
    return (
        f"Materialized view {table.keyspace}.{table.name} is still being built: rows may be missing "
        "(see system_distributed.view_build_status)"
    )


def status_rows(node: NodeServices) -> Iterator[VirtualRow]:
    """Of each view and each node, as gossip tells of the others."""
    for view, build in _builds(node):
        for info, status in _statuses(node, view.id, build):
            yield {
                "keyspace_name": view.keyspace,
                "view_name": view.name,
                "host_id": parse_uuid(info.host_id),
                "status": status,
            }


def _statuses(node: NodeServices, view_id: int, build: Build) -> Iterator[tuple[NodeInfo, str]]:
    lacking = node.data.view_builds.lacking()
    for at in node.log.cluster.directory.present_ids:
        info = node.log.cluster.directory.by_id[at]
        if at == node.context.own_id():
            yield info, STARTED if view_id in lacking else SUCCESS
        else:
            yield info, _status_there(node, info, view_id, build.since_epoch)


def _status_there(node: NodeServices, info: NodeInfo, view_id: int, since_epoch: int) -> str:
    """A node that is dead keeps what it last said. Of one that was so before this node's start nothing may be
    known, and rows that it alone has cannot be read from the base either: nobody is warned of that."""
    known = node.membership.gossip.known(info.id)
    if known is not None:
        # Who has no data of its own yet gets views with the ranges, however old what it said is.
        since = since_epoch if info.state in OWNING_STATES else 0
        return STARTED if known.state.may_lack(view_id, since) else SUCCESS
    if info.state not in OWNING_STATES:
        return SUCCESS
    return STARTED if node.membership.liveness.alive(info.id) else UNKNOWN


def view_samples(node: NodeServices) -> Iterator[Sample]:
    log = node.data.view_log
    for target, count in (("paired", log.paired), ("all", log.spread)):
        yield Sample("lockstep_views_updates_total", count, (("replicas", target),))
    yield Sample("lockstep_views_records_in_flight", log.in_flight)
    yield Sample("lockstep_views_left_to_replay_total", log.left_to_replay)
    building = sum(not build.done for _, build in _builds(node))
    yield Sample("lockstep_views_building", building)


def _builds(node: NodeServices) -> list[tuple[Table, Build]]:
    tables = node.log.cluster.schema.tables_by_id
    found = (
        (tables.get(table_id), build) for table_id, build in sorted(node.data.view_builds.builds.items())
    )
    return [(view, build) for view, build in found if view is not None]
