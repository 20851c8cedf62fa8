"""Bulk loads as rows and metrics: those that run, those that ended lately, what this node holds of them.

Invariant: what a load is comes from the metadata, what is staged from this node's files; nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockstep.documents.runs import LoadRun
from lockstep.metadata.loads import Load, LoadState
from lockstep.node.services import NodeServices
from lockstep.server.metrics.metric_table import Sample
from lockstep.server.views.virtual import VirtualRow
from lockstep.server.views.work_views import LiveView

_COLUMNS: Final = (
    "job text; keyspace_name text; table_name text; state text; overwrites boolean; began_at timestamp; "
    "lease_until timestamp; write_time bigint; began_epoch bigint; ended_epoch bigint; rows bigint; "
    "size_bytes bigint; staged_files int; staged_bytes bigint; reason text; phase text"
)
_MILLISECONDS: Final = 1000


def phase_of(node: NodeServices, load: Load) -> str:
    """What a load does, as this node sees it: begun, staging, taking in, or how it ended."""
    if load.state is LoadState.RUNNING:
        return "staging" if node.data.loads.staged(load.job)[0] else "begun"
    if load.state is LoadState.COMMITTED and node.data.loads.takes_in(load.job):
        return "taking in"
    return load.state.value


def load_run(node: NodeServices, load: Load) -> LoadRun:
    """A load as documents tell it."""
    now_ms = node.context.runtime.clock.wall_us() // _MILLISECONDS
    files, size = node.data.loads.staged(load.job)
    runs = load.state is LoadState.RUNNING
    return LoadRun(
        job=load.job,
        keyspace=load.keyspace,
        table=load.table,
        state=load.state.value,
        phase=phase_of(node, load),
        overwrites=load.overwrite,
        began_ms=load.began_ms,
        age_s=(now_ms - load.began_ms) / _MILLISECONDS,
        lease_left_s=(load.lease_until_ms - now_ms) / _MILLISECONDS if runs else None,
        began_epoch=load.began_epoch,
        ended_epoch=None if runs else load.ended_epoch,
        rows=load.rows,
        bytes=load.size_bytes,
        staged_files=files,
        staged_bytes=size,
        reason=load.reason,
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
            "phase": phase_of(node, load),
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
    running = node.log.cluster.loads.running
    yield Sample("lockstep_loads_running", len(running))
    yield Sample("lockstep_loads_staged_bytes", sum(node.data.loads.staged(load.job)[1] for load in running))
    now_ms = node.context.runtime.clock.wall_us() // _MILLISECONDS
    oldest_ms = min((load.began_ms for load in running), default=now_ms)
    yield Sample("lockstep_loads_oldest_running_seconds", (now_ms - oldest_ms) / _MILLISECONDS)
    yield Sample("lockstep_load_files_staged_total", counts.files)
    yield Sample("lockstep_load_staged_bytes_total", counts.bytes)
    yield Sample("lockstep_load_files_damaged_total", counts.damaged)
    yield Sample("lockstep_loads_taken_in_total", counts.taken_in)
    yield Sample("lockstep_loads_lacking_total", counts.lacking)
