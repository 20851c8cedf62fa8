"""What this node and other replicas hold of tracked ranges, as rows and as metrics.

Invariant: what the journal and the last rounds say; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lockstep.node.services import NodeServices
from lockstep.server.metrics.metric_table import Sample
from lockstep.server.views.virtual import VirtualRow
from lockstep.server.views.work_views import LiveView

TRACKING_COLUMNS: Final = (
    "placement_group int; last_token bigint; node_id int; heard boolean; lacks bigint; is_lacked bigint; "
    "held bigint; reconciled bigint"
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
        }


TRACKING_VIEWS: Final = (
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
    unreconciled = sum(logs.open.count for logs in reconciler.journal.shards.values())
    yield Sample("lockstep_tracking_mutations_unreconciled", unreconciled)
    yield Sample("lockstep_tracking_mutations_reconciled_total", reconciler.reconciled)
    yield Sample("lockstep_tracking_mutations_pulled_total", reconciler.pulled)
