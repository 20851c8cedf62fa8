"""Read sessions of this node, as rows and as metrics.

Invariant: what the sessions themselves say; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockstep.node.services import NodeServices
from lockstep.server.metrics.metric_table import Sample
from lockstep.server.views.virtual import VirtualRow
from lockstep.server.views.work_views import LiveView

READ_SESSION_COLUMNS: Final = (
    "id text; keyspace_name text; table_name text; epoch bigint; opened timestamp; lease_ms bigint; "
    "lease_left_ms bigint"
)


def read_session_rows(node: NodeServices) -> Iterator[VirtualRow]:
    now_s = node.context.runtime.clock.monotonic_s()
    for session in node.data.read_sessions.current:
        opened = session.opened
        if opened is not None:
            yield {
                "id": session.id,
                "keyspace_name": opened.table.table.keyspace,
                "table_name": opened.table.table.name,
                "epoch": opened.epoch,
                "opened": opened.opened_us // 1000,
                "lease_ms": session.lease_ms,
                "lease_left_ms": max(0, int((session.until_s - now_s) * 1000)),
            }


READ_SESSION_VIEWS: Final = (
    LiveView(
        "read_sessions",
        READ_SESSION_COLUMNS,
        ("id",),
        (),
        read_session_rows,
        "Contents of this node that jobs read whole tables from",
    ),
)


def read_session_samples(node: NodeServices) -> Iterator[Sample]:
    sessions = node.data.read_sessions
    yield Sample("lockstep_scans_column_files_bytes", sessions.column_files_bytes)
    yield Sample("lockstep_scans_sessions_open", sessions.count)
    yield Sample("lockstep_scans_sessions_total", sessions.opened_total)
    yield Sample("lockstep_scans_sessions_expired_total", sessions.expired_total)
