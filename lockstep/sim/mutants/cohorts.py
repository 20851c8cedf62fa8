"""Planted bugs of cohorts: ids without rows, rows that never come, and answers of who was away."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.coordination import tracked_reads as reads_module
from lockstep.node.work import reconciling as reconciling_module
from lockstep.node.work.cohorts import CohortTaking
from lockstep.node.work.reconciling import Reconciler
from lockstep.replica.messages import Known
from lockstep.replica.replica import ReplicaService
from lockstep.sim.plant import Planted, replaced
from lockstep.storage import journal_cuts, journal_records
from lockstep.storage.journal import Journal
from lockstep.storage.journal_records import RECONCILED, log_key
from lockstep.storage.shard_logs import Shard, ShardLogs
from lockstep.tracking.held import NOTHING, Held
from lockstep.tracking.intervals import IntervalSet
from lockstep.values.codec import encode

_Context = contextlib.AbstractContextManager[None]


def _claimed_without_rows() -> _Context:
    """Who is back holds the ids of a cohort, and takes no rows."""

    async def take_table(
        self: Any, guard: Any, tokens: Any, source: Any, table_id: int, require: Any
    ) -> None: ...

    return replaced((CohortTaking, "_take_table", take_table))


def _held_by_all() -> _Context:
    """What all that are there hold counts as held by who is away too."""
    return replaced((Journal, "set_apart", Journal.reconcile))


def _forgotten_by_a_start() -> _Context:
    """What is apart is noted nowhere."""

    def notes(shard: Shard, logs: ShardLogs, log: Any) -> list[Any]:
        reconciled, _ = logs.runs_of(log)
        return [("put", log_key(RECONCILED, shard, log), encode(reconciled))]

    return replaced((journal_cuts, "notes", notes), (journal_records, "notes", notes))


def _not_told_in_reads() -> _Context:
    """A read is told of what there are entries of alone."""
    original = ReplicaService.known

    def known(self: Any, command: Any, tracking: Any, *, lists_all: bool = True) -> Known | None:
        found = original(self, command, tracking, lists_all=lists_all)
        if found is None:
            return None
        recent = found.recent.difference(found.apart)
        return msgspec.structs.replace(found, recent=recent, apart=NOTHING)

    return replaced((ReplicaService, "known", known))


def _cohort_of_few() -> _Context:
    """Any replica that is left lets go of its entries, and shows what no other one has."""
    enough = (reconciling_module, "are_enough", lambda there, replicas, near: True)
    return replaced(enough, (reads_module, "_require_met", lambda plan, apart, known: None))


def _never_over() -> _Context:
    """A cohort that everybody holds stays one."""

    def settle(self: Any, log: Any, offsets: IntervalSet) -> None:
        original(self, log, offsets.difference(self.runs_of(log)[1]))

    original = ShardLogs.settle
    return replaced((ShardLogs, "settle", settle))


def _rows_left_out() -> _Context:
    """Who is back leaves out the first rows that differ of each table."""
    original, seen = CohortTaking._take_rows, set[Any]()

    async def take_rows(self: Any, guard: Any, tokens: Any, source: Any, table_id: int, require: Any) -> None:
        place = self._context.own_id(), guard.shard, table_id
        if place not in seen:
            seen.add(place)
            return
        await original(self, guard, tokens, source, table_id, require)

    return replaced((CohortTaking, "_take_rows", take_rows))


COHORTS = (
    Planted("cohort_without_rows", "ids are claimed before data", "tracked_cohorts", _claimed_without_rows),
    Planted("cohort_held_by_all", "who is away is not waited for", "tracked_cohorts", _held_by_all),
    Planted("cohort_forgotten", "a start forgets what is apart", "tracked_cohorts", _forgotten_by_a_start),
    Planted("cohort_never_over", "what all hold is not reconciled", "tracked_cohorts", _never_over),
    Planted("cohort_rows_left_out", "rows of a cohort stay away", "tracked_cohorts", _rows_left_out),
)


def _purged_beyond() -> _Context:
    """Deletions of a cohort are purged as if everybody held them."""
    original = Reconciler._settle

    def settle(self: Any, cluster: Any, shard: Shard, own: Held, fresh: set[int], began_us: int) -> None:
        original(self, cluster, shard, own, fresh, began_us)
        if self.journal.apart(shard) and not self.journal.entries(shard[0], own, 1):
            self.moments.complete_us[shard] = began_us

    return replaced((Reconciler, "_settle", settle))


#: Those that a test brings about.
DIRECTED = (
    Planted("cohort_purged", "a deletion goes too early", "tracked_cohorts", _purged_beyond),
    Planted("cohort_not_told", "a write is missed", "tracked_cohorts", _not_told_in_reads),
    Planted("cohort_of_few", "reads go back", "tracked_cohorts", _cohort_of_few),
)
