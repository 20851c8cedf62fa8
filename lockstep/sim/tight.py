"""Limits so small that a run meets them: what a node does when a queue is full, a page or a turn over.

In production they are reached under loads that no run can have. Invariant: a limit is made smaller, never
larger, and none that a promise of the product rests on: what clients are told stays true, more is refused.
"""

from __future__ import annotations

from typing import Any, Final

from lockstep.coordination import conditional, counter_leader, reads, writes
from lockstep.gossip import pulling, soft_state
from lockstep.handoff import batch_store, hint_store, view_log
from lockstep.internode import connection
from lockstep.metadata.groups import management
from lockstep.metadata.log import snapshot, snapshot_file
from lockstep.quorum import speculation
from lockstep.replica import merging
from lockstep.sim.runtime.streams import Stream
from lockstep.storage import purging, reading
from lockstep.storage.rows import leaf_digests
from lockstep.values import limits

#: (where it is looked up, name, one of these); 0 leaves it as it is.
_TIGHT: Final[tuple[tuple[Any, str, tuple[int, ...]], ...]] = (
    (limits, "FRAGMENTS_PER_TURN_MAX", (1, 3, 10)),
    (limits, "READ_RESULT_BYTES_MAX", (0, 200, 2000)),
    (limits, "MERGES_QUEUED_MAX", (1, 4)),
    (limits, "ROW_FRAGMENTS_MERGE_AT", (2, 4)),
    (limits, "INDEX_STALE_AT_ONCE_MAX", (1, 3)),
    (limits, "INDEX_BUILD_FRAGMENTS", (2, 8)),
    (limits, "CHECKPOINT_PORTION_BYTES", (500, 5000)),
    (limits, "REPAIRS_AT_ONCE_MAX", (1, 4)),
    (reading, "MERGED_BYTES_INLINE", (0, 100, 1000)),
    (leaf_digests, "BACKGROUND_FRAGMENTS_PER_TURN", (2, 8)),
    (purging, "BACKGROUND_FRAGMENTS_PER_TURN", (2, 8)),
    (snapshot, "SNAPSHOT_PIECE_BYTES_MAX", (300, 3000)),
    (snapshot_file, "LOG_FETCH_ENTRIES_MAX", (2, 8)),
    (snapshot_file, "LOG_FETCH_BYTES_MAX", (200, 2000)),
    (management, "MANAGEMENT_OUTCOMES_MAX", (0, 2)),
    (pulling, "FETCH_SOURCES_MAX", (0, 2)),
    (soft_state, "GOSSIP_DIGESTS_MAX", (0, 2)),
    (soft_state, "GOSSIP_STATES_MAX", (0, 1)),
    (connection, "WRITE_BYTES_COALESCED", (0, 100)),
    (conditional, "CONDITIONAL_IN_FLIGHT_MAX", (0, 1)),
    (counter_leader, "COUNTER_WAITERS_MAX", (0, 1)),
    (batch_store, "BATCH_LOG_BYTES_MAX", (0, 400, 2000)),
    (batch_store, "BATCH_LOG_PAGE", (1, 3)),
    (hint_store, "HINTS_PAGE", (1, 3)),
    (merging, "REPAIR_ROWS_MAX", (1, 2)),
    (reads, "READS_IN_FLIGHT_MAX", (0, 3)),
    (reads, "DIGEST_OVER_BYTES", (0, 10)),
    (speculation, "LATENCY_SAMPLES_MAX", (60, 200)),
    (speculation, "LATENCY_TABLES_MAX", (1,)),
    (view_log, "VIEWS_CACHED_MAX", (1,)),
    (view_log, "VIEW_RECORD_MUTATIONS", (1,)),
    (writes, "WRITES_IN_FLIGHT_MAX", (0, 3)),
)
#: Of the limits, how many are small in one seed.
_SHARE: Final = 0.5


def tight_limits(draw: Stream) -> list[tuple[Any, str, Any]]:
    """(owner, attribute, value) of those that this seed makes small."""
    chosen = [(owner, name, draw.choice(values)) for owner, name, values in _TIGHT if draw.random() < _SHARE]
    return [(owner, name, value) for owner, name, value in chosen if value]
