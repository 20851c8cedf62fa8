"""Planted bugs of captured changes of tracked tables: an id that names a change, and not what it adds to the
log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from lockstep.node.work.cohorts import CohortTaking
from lockstep.schema.log_tables import is_log
from lockstep.sim.mutants.captured import later, not_moved
from lockstep.sim.plant import Planted, replaced
from lockstep.storage import journal as journal_module
from lockstep.storage.journal import Journal
from lockstep.storage.journal_records import Named
from lockstep.storage.shard_logs import Shard, ShardLogs
from lockstep.storage.store import Operation
from lockstep.streaming.stream_target import StreamClient
from lockstep.tracking.held import Held, LogId, MutationId
from lockstep.values.rows import Mutation, without_log

_Context = contextlib.AbstractContextManager[None]


def _not_brought() -> _Context:
    """Who brings a mutation to another replica leaves out what it adds to the log."""
    original = Journal.entries

    def entries(self: Journal, group: int, wanted: Held, bytes_max: int) -> list[Named]:
        found = original(self, group, wanted, bytes_max)
        return [
            replace(one, mutation=without_log(one.mutation)) if one.mutation is not None else one
            for one in found
        ]

    return replaced((Journal, "entries", entries))


def _given_without() -> _Context:
    """Who gives an id stores what the mutation adds to the log as the next thing, and not with it."""
    original = Journal.give

    def give(
        self: Any, shard: Shard, mutation: Mutation, now_us: int, *, first_epoch: int | None = 0
    ) -> MutationId:
        given = original(self, shard, without_log(mutation), now_us, first_epoch=first_epoch)
        if mutation.captured is not None and given.offset % 3:
            self._engine.apply(mutation.captured)
        return given

    return replaced((Journal, "give", give))


def _cut_left() -> _Context:
    """When an entry is cut in two, what it adds to the log goes."""

    def divided(
        source: Any, log: LogId, offset: int, found: ShardLogs | None, there: ShardLogs | None, add: Any
    ) -> Iterator[Operation]:
        yield from original(source, log, offset, found, None, add)

    original = journal_module.divided
    return replaced((journal_module, "divided", divided))


def _rows_of_tables_alone() -> _Context:
    """Who is back takes the rows of a cohort from the tables, and not from their logs."""
    original = CohortTaking._tables

    def tables(self: Any, shard: Shard) -> list[int]:
        known = self._context.cluster().schema.tables_by_id
        return [one for one in original(self, shard) if one not in known or not is_log(known[one])]

    return replaced((CohortTaking, "_tables", tables))


def _streamed_before() -> _Context:
    """Who is filled claims what a source names by now, whenever it copied the source's tables."""
    return replaced((StreamClient, "begin_anew", lambda self, *of: None))


TRACKED_CHANGES = (
    Planted(
        "tracked_log_not_brought", "a change lacks in the log of a replica", "tracked_changes", _not_brought
    ),
    Planted(
        "tracked_log_given_later",
        "a change lacks in the log of a replica",
        "tracked_changes",
        _given_without,
    ),
    Planted("tracked_log_later", "a power cut takes changes from the log alone", "tracked_changes", later),
    Planted(
        "tracked_log_cohort",
        "who is back lacks changes in the log",
        "tracked_changes",
        _rows_of_tables_alone,
    ),
    Planted("tracked_log_cut", "changes are missing as ranges are cut", "tracked_change_moves", _cut_left),
    Planted("tracked_filled_before", "ids are claimed before data", "tracked_change_moves", _streamed_before),
    Planted("tracked_log_not_moved", "changes are missing as ranges move", "tracked_change_moves", not_moved),
)
