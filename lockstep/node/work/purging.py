"""When tables are gone through to merge and purge, and what may be purged just now.

Invariant: nothing is purged here while anything may still deliver older data: while any session is open or
has effects on this node, as long as conditional writes of that time may be finished, beyond the oldest write
that this node keeps for others, and, where repairs decide, beyond the oldest one that any node kept when the
repair began.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.purging import purge_before_s
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.replica.session_guards import SessionGuards
from lockstep.schema.model import Schema, Table
from lockstep.schema.table_options import option
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rows.keys import table_of, with_ballots
from lockstep.values.errors import CorruptFile, DiskRefused
from lockstep.values.hash_tree import changed
from lockstep.values.limits import PURGE_AGE_S_MIN
from lockstep.values.tokens import Range

#: A pass is due after this part of the grace time: what may go stays at most so much longer.
GRACE_PARTS: Final = 10
#: Longest time between two passes over a table.
PASS_EVERY_S_MAX: Final = 24 * 3600
#: Longest time from a start to the first pass: nobody knows how long ago the last one was, and a node that is
#: started every day would never come to one.
FIRST_PASS_S_MAX: Final = 3600
#: Pause after a check found nothing due; passes are due in seconds at best.
CHECK_S: Final = 1.0
#: After a pass that found damage: others of the node tell of it, and its table is left alone for a while.
DAMAGED_S: Final = 3600


class TombstonePurge:
    """`oldest_undelivered_us` tells when the oldest write was made that this node keeps for others; None when
    there is none; `tracked_before_s` the second before which nothing comes any more of a tracked table's
    token, None of other tables. `interval_s`: shortest time between two passes over a table."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        engine: StorageEngine,
        guards: SessionGuards,
        oldest_undelivered_us: Callable[[], int | None],
        tracked_before_s: Callable[[Table, int], int | None] = lambda _table, _token: None,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._engine = engine
        self._guards = guards
        self._oldest_undelivered_us = oldest_undelivered_us
        self._tracked_before_s = tracked_before_s
        self._interval_s = context.configuration.purge.interval_ms / 1000
        self._log = context.log
        self._schema: Schema | None = None
        #: (when, table id), the next one first.
        self._due: list[tuple[float, int]] = []
        #: Passes that were not begun, or held back in part, since something might deliver older data.
        self.held_back = 0

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "storage.purge")

    async def _run(self) -> None:
        while not self._engine.failed:
            self._note_tables(self._state.current)
            now_s = self._runtime.clock.monotonic_s()
            if not self._due or self._due[0][0] > now_s:
                await asyncio.sleep(CHECK_S)
                continue
            _, table_id = heapq.heappop(self._due)
            table = self._state.current.table(table_id)
            if table is None:
                continue
            pause_s = self._every_s(table)
            if self._is_held(self._state.current):
                self.held_back += 1
                pause_s = self._interval_s
            else:
                try:
                    for stored in with_ballots((table_id,)):
                        await self._engine.purge_table(stored, self.before)
                    self._runtime.probes.reach("storage.purge.passed")
                except CorruptFile as error:
                    self._log("storage.purge_failed", table=table_id, error=str(error))
                    pause_s = DAMAGED_S
                except DiskRefused:
                    return  # The node was told by the engine, and ends.
            heapq.heappush(self._due, (self._runtime.clock.monotonic_s() + pause_s, table_id))

    def _note_tables(self, cluster: ClusterMetadata) -> None:
        """Plan a first pass for tables that are new here, and plan anew for those whose options changed."""
        if cluster.schema is self._schema:
            return
        before, self._schema = self._schema, cluster.schema
        now_s = self._runtime.clock.monotonic_s()
        first_s = FIRST_PASS_S_MAX if before is None else PASS_EVERY_S_MAX
        for _, old, table in changed((before or Schema()).table_tree, cluster.schema.table_tree):
            if table is None:
                continue
            if old is None:
                heapq.heappush(self._due, (now_s + min(self._every_s(table), first_s), table.id))
            elif old.options != table.options:
                self._due = [entry for entry in self._due if entry[1] != table.id]
                heapq.heapify(self._due)
                heapq.heappush(self._due, (now_s + self._every_s(table), table.id))

    def _every_s(self, table: Table) -> float:
        """How often a table is gone through, by its grace time whatever decides of purging."""
        grace_s = int(option(table.options, "gc_grace_seconds"))
        return min(max(grace_s / GRACE_PARTS, self._interval_s), PASS_EVERY_S_MAX)

    def before(self, table_id: int, token: int) -> int:
        """The second before which tombstones of the token may go now; 0: none may."""
        cluster = self._state.current
        table = cluster.table(table_of(table_id))
        if table is None or self._is_held(cluster):
            return 0
        now_s = self._runtime.clock.wall_us() // 1_000_000
        if table_id != table.id:
            return now_s  # Ballots are written anew as long as they matter to anyone.
        before_s = purge_before_s(cluster, table, Range(token - 1, token), now_s)
        before_s = min(before_s, now_s - PURGE_AGE_S_MIN)
        tracked_s = self._tracked_before_s(table, token)
        if tracked_s is not None:
            before_s = min(before_s, tracked_s)
        oldest_us = self._oldest_undelivered_us()
        return before_s if oldest_us is None else min(before_s, oldest_us // 1_000_000)

    def _is_held(self, cluster: ClusterMetadata) -> bool:
        if cluster.sessions or cluster.transitions.lone_count or self._guards.any_held:
            return True
        return any(cluster.repair_open(repair.session_id) for repair in cluster.repairs.running)
