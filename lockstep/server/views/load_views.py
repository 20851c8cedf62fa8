"""Bulk loads as rows and metrics: those that run, those that ended lately, what this node holds of them.

Invariant: what a load is comes from the metadata, what is staged from this node's files; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockstep.node.services import NodeServices
from lockstep.server.metrics.metric_table import Sample
from lockstep.server.views.virtual import VirtualRow
from lockstep.server.views.work_views import LiveView

_COLUMNS: Final = (
    "job text; keyspace_name text; table_name text; state text; overwrites boolean; began_at timestamp; "
    "lease_until timestamp; write_time bigint; began_epoch bigint; ended_epoch bigint; rows bigint; "
    "size_bytes bigint; staged_files int; staged_bytes bigint; reason text"
)


def load_rows(node: NodeServices) -> Iterator[VirtualRow]:
    for load in list(node.log.cluster.loads.by_job.values()):
        files, size = node.data.loads.staged(load.job)
        yield {
            "job": load.job,
            "keyspace_name": load.keyspace,
            "table_name": load.table,
            "state": load.state.value,
            "overwrites": load.overwrite,
            "began_at": load.began_ms,
            "lease_until": load.lease_until_ms,
            "write_time": load.timestamp_us,
            "began_epoch": load.began_epoch,
            "ended_epoch": load.ended_epoch,
            "rows": load.rows,
            "size_bytes": load.size_bytes,
            "staged_files": files,
            "staged_bytes": size,
            "reason": load.reason,
        }


LOAD_VIEWS: Final = (
    LiveView(
        "bulk_loads",
        _COLUMNS,
        ("job",),
        (),
        load_rows,
        "Bulk loads that run, and that ended lately; `staged` is what this node holds of them",
    ),
)


def load_samples(node: NodeServices) -> Iterator[Sample]:
    counts = node.data.loads.counts
    yield Sample("lockstep_loads_running", len(node.log.cluster.loads.running))
    yield Sample("lockstep_load_files_staged_total", counts.files)
    yield Sample("lockstep_load_staged_bytes_total", counts.bytes)
    yield Sample("lockstep_load_files_damaged_total", counts.damaged)
    yield Sample("lockstep_loads_taken_in_total", counts.taken_in)
    yield Sample("lockstep_loads_lacking_total", counts.lacking)
