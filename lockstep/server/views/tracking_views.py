"""What this node and other replicas hold of tracked ranges, as rows and as metrics.

Invariant: what the journal and the last rounds say; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockstep.metadata.repairs import is_equal_since
from lockstep.node.services import NodeServices
from lockstep.schema.log_tables import is_log
from lockstep.schema.tracking import tracked_tables
from lockstep.server.metrics.metric_table import Sample
from lockstep.server.views.virtual import VirtualRow
from lockstep.server.views.work_views import LiveView

TRACKING_COLUMNS: Final = (
    "placement_group int; last_token bigint; node_id int; heard boolean; lacks bigint; is_lacked bigint; "
    "held bigint; reconciled bigint; witness boolean"
)


def tracking_rows(node: NodeServices) -> Iterator[VirtualRow]:
    reconciler = node.data.reconciler
    for lag in reconciler.lags():
        yield {
            "placement_group": lag.shard[0],
            "last_token": lag.shard[1],
            "node_id": lag.node,
            "heard": lag.heard,
            "lacks": lag.lacks,
            "is_lacked": lag.is_lacked,
            "held": reconciler.journal.held(lag.shard).count,
            "reconciled": reconciler.journal.reconciled(lag.shard).count,
            "witness": not lag.keeps,
        }


JOURNAL_COLUMNS: Final = (
    "placement_group int; last_token bigint; first_token bigint; entries bigint; bytes bigint; "
    "oldest_written timestamp; kept_for set<int>; in_cohorts bigint; getting_from set<int>; witness boolean"
)


def journal_rows(node: NodeServices) -> Iterator[VirtualRow]:
    """`kept_for`: replicas that are not known to hold all of it; `in_cohorts`: mutations without entries, as
    a replica is away; `getting_from`: who gives this node what it missed; `witness`: this node
    has no more of the range than these."""
    reconciler = node.data.reconciler
    journal, lagging = reconciler.journal, dict[tuple[int, int], list[int]]()
    for lag in reconciler.lags():
        if lag.lacks:
            lagging.setdefault(lag.shard, []).append(lag.node)
    for shard, logs in sorted(journal.shards.items()):
        count, oldest_us = logs.open.count, journal.oldest_us(shard, logs.open)
        yield {
            "placement_group": shard[0],
            "last_token": shard[1],
            "first_token": min(logs.left + 1, shard[1]),
            "entries": count,
            "bytes": journal.estimated_bytes(count),
            "oldest_written": None if oldest_us is None else oldest_us // 1000,
            "kept_for": tuple(lagging.get(shard, ())),
            "in_cohorts": logs.apart.count,
            "getting_from": logs.taking.sources if logs.taking is not None else (),
            "witness": not journal.keeps(shard),
        }


MIGRATION_COLUMNS: Final = "keyspace_name text; table_name text; since_epoch bigint; ranges int; pending int"


def migration_rows(node: NodeServices) -> Iterator[VirtualRow]:
    cluster = node.log.cluster
    for table in tracked_tables(cluster.schema):
        if not table.tracked_since:
            continue
        ring = cluster.placements.ring(cluster.schema.by_name[table.keyspace].group_of(table))
        known = cluster.repairs.by_table.get(table.id, ())
        equal = [is_equal_since(known, placed.range, table.tracked_since) for placed in ring.ranges]
        yield {
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "since_epoch": table.tracked_since,
            "ranges": len(equal),
            "pending": equal.count(False),
        }


RECONCILED_COLUMNS: Final = (
    "keyspace_name text; table_name text; last_token bigint; first_token bigint; reconciled_until timestamp"
)


def reconciled_rows(node: NodeServices) -> Iterator[VirtualRow]:
    """Of logs of changes, ranges that nobody writes to are asked about from now on, too."""
    cluster, reconciler = node.log.cluster, node.data.reconciler
    for table in tracked_tables(cluster.schema):
        ring = cluster.placements.ring(cluster.schema.by_name[table.keyspace].group_of(table))
        if is_log(table):
            reconciler.follow(ring.id)
        known = cluster.repairs.by_table.get(table.id, ())
        for placed in ring.ranges:
            if node.context.own_id() not in placed.group.writes:
                continue
            until_us = reconciler.moments.complete_us.get((ring.id, placed.range.right))
            if table.tracked_since and not is_equal_since(known, placed.range, table.tracked_since):
                until_us = None
            yield {
                "keyspace_name": table.keyspace,
                "table_name": table.name,
                "last_token": placed.range.right,
                "first_token": min(placed.range.left + 1, placed.range.right),
                "reconciled_until": None if until_us is None else until_us // 1000,
            }


TRACKING_VIEWS: Final = (
    LiveView(
        "mutation_journal",
        JOURNAL_COLUMNS,
        ("placement_group",),
        ("last_token",),
        journal_rows,
        "Of each tracked range of this node, the mutations that it keeps for replicas that may lack them",
    ),
    LiveView(
        "tracking_migrations",
        MIGRATION_COLUMNS,
        ("keyspace_name",),
        ("table_name",),
        migration_rows,
        "Of each tracked table that was untracked before, how many ranges a repair is still to make equal",
    ),
    LiveView(
        "tracking_reconciled",
        RECONCILED_COLUMNS,
        ("keyspace_name", "table_name"),
        ("last_token",),
        reconciled_rows,
        "Of each range of this node of a tracked table, a moment: what any replica held then all hold",
    ),
    LiveView(
        "tracking_shards",
        TRACKING_COLUMNS,
        ("placement_group",),
        ("last_token", "node_id"),
        tracking_rows,
        "Of each tracked range of this node, what another replica lacks of it and what it lacks itself",
    ),
)


def tracking_samples(node: NodeServices) -> Iterator[Sample]:
    reconciler = node.data.reconciler
    unreconciled = reconciler.journal.entry_count
    yield Sample("lockstep_tracking_mutations_unreconciled", unreconciled)
    yield Sample("lockstep_tracking_journal_bytes", reconciler.journal.estimated_bytes(unreconciled))
    yield Sample("lockstep_tracking_witness_journal_bytes", reconciler.witness_bytes)
    yield Sample("lockstep_tracking_mutations_in_cohorts", reconciler.journal.apart_count)
    yield Sample("lockstep_tracking_cohort_bytes_total", reconciler.cohorts.bytes)
    lacks: dict[int, int] = {}
    for lag in reconciler.lags():
        lacks[lag.node] = lacks.get(lag.node, 0) + lag.lacks
    for lagging, count in sorted(lacks.items()):
        yield Sample("lockstep_tracking_mutations_lacking", count, (("node", str(lagging)),))
    yield Sample("lockstep_tracking_mutations_reconciled_total", reconciler.reconciled)
    yield Sample("lockstep_tracking_mutations_pulled_total", reconciler.pulled)
    waiting = [progress.lacking for progress in node.work.repairs.progress.values()]
    yield Sample("lockstep_tracking_repair_ids_lacking", sum(sum(found.values()) for found in waiting))
    yield Sample("lockstep_tracking_disagreements_total", node.work.comparison.total.disagreements)
