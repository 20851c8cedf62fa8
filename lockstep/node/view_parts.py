"""What keeps materialized views up to date on one node, made from its other parts.

Invariant: whatever is written to the store passes what derives view updates, and whatever the node writes as
a coordinator tells its replicas when it has settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.node.view_builds import ViewBuilds
from lockstep.replication.base_writes import BaseWrites
from lockstep.replication.view_log import ViewLog
from lockstep.replication.view_pairs import ViewPairs

if TYPE_CHECKING:
    from lockstep.node.parts import Parts


def views_of(parts: Parts) -> tuple[ViewLog, ViewBuilds]:
    runtime, writes = parts.runtime, parts.coordinator.writes
    log = ViewLog(
        runtime,
        parts.engine,
        writes,
        parts.batch_store,
        parts.hints,
        parts._cluster_now,
        ViewPairs(parts.coordinator.plans, parts._own_id),
        parts.configuration.timeouts.write_ms,
    )
    parts.engine.derive = log.derive
    writes.base_writes = BaseWrites(runtime, parts.internode, parts.hints, parts.address, log.settled)
    return log, ViewBuilds(runtime, parts.state, parts.engine, log, parts._own_id, parts.log)
