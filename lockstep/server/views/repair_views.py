"""Repairs as rows of `system_views.repairs` and `system_views.repaired_ranges`, and as metrics.

Invariant: rows are read from the metadata, and counters from the parts that count; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.node.services import NodeServices
from lockstep.server.metrics.samples import Sample
from lockstep.server.views.virtual_rows import VirtualRow

REPAIRS = (
    "id int; keyspace_name text; state text; incremental boolean; driver int; tables int; ranges int; "
    "began_epoch bigint; ended_epoch bigint; began_at timestamp; ended_at timestamp; reason text; "
    "ranges_done int; ranges_total int; changes_sent bigint; bytes_sent bigint; purpose text"
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
