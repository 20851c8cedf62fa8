"""Planted bugs of witnesses: data asked of who has none, mutations let go of too soon, ids without rows."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.coordination import ballot_rounds
from lockstep.node.work.tracked_ranges import TrackedRanges
from lockstep.node.work.worker import WorkService
from lockstep.placement.tablets.map import TabletMap
from lockstep.quorum import plans as plans_module
from lockstep.quorum.plans import PlanBook
from lockstep.replica import replica as replica_module
from lockstep.replica import shard_roles as shard_roles_module
from lockstep.replica.replica import ReplicaService
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.engine import StorageEngine
from lockstep.storage.journal import Journal
from lockstep.topology import roles
from lockstep.topology import streams as streams_module

_Context = contextlib.AbstractContextManager[None]


def _let_go_of_early() -> _Context:
    """Mutations go once one full replica holds them."""
    keepers = roles.keepers

    def one(cluster: Any, ring: Any, placed: Any) -> Any:
        found = keepers(cluster, ring, placed)
        return found[:1] if ring.replication.has_witnesses else found

    return replaced((shard_roles_module, "keepers", one))


def _shown_by_witnesses() -> _Context:
    """A witness is asked for data like anybody, and answers from its empty tables."""
    known = ReplicaService.known

    def whole(self: Any, *asked: Any, **more: Any) -> Any:
        keeps, self.journal.keeps = self.journal.keeps, lambda shard: True
        try:
            return known(self, *asked, **more)
        finally:
            self.journal.keeps = keeps

    return replaced(
        (plans_module, "readers", lambda cluster, ring, placed: placed.group.reads),
        (ReplicaService, "known", whole),
        (replica_module, "require_kept", lambda *asked: None),
    )


def _promoted_without_journal() -> _Context:
    """A witness that becomes a full replica keeps in its journal what it has there, and not in its tables."""

    async def nothing(self: Any, task: Any) -> None: ...

    return replaced((TrackedRanges, "_store_witnessed", nothing))


def _filled_from_anybody() -> _Context:
    """Who is filled takes its rows of whoever has the ids, be it a witness."""
    return replaced((streams_module, "_with_data", lambda tasks, piece, dc_of, absent: tasks))


def _witness_holds_nothing() -> _Context:
    """A witness acknowledges, and keeps no mutation that it is sent."""
    take = Journal.take

    def dropped(self: Journal, shard: Any, given: Any, mutation: Any, *more: Any, **terms: Any) -> None:
        if self.keeps(shard) or mutation is None:
            take(self, shard, given, mutation, *more, **terms)
        else:
            take(self, shard, given, None, mutation.table_id, mutation.token, **terms)

    return replaced((Journal, "take", dropped))


def _decided_without_witnesses() -> _Context:
    """A condition is judged by rows of a full replica, whatever a witness that promised holds beside them."""

    async def at_once(self: Any, command: Any, looked: Any) -> bool:
        return True

    return replaced((ballot_rounds.Rounds, "whole", at_once))


def _witness_shows_nothing() -> _Context:
    """The empty tables of a witness count as what it read; nobody who keeps the rows need be asked."""
    return replaced((PlanBook, "ballot_plan", PlanBook.write_plan))


def _promises_wiped() -> _Context:
    """A replica that changes its role forgets what it promised and accepted."""
    wipe = StorageEngine.wipe

    async def everything(self: Any, table_ids: Any, tokens: Any, **terms: Any) -> None:
        await wipe(self, table_ids, tokens)

    return replaced((StorageEngine, "wipe", everything))


def _promises_not_streamed() -> _Context:
    """A newcomer gets what others promised of those alone from which it takes rows."""
    stream_task = WorkService._stream_task

    async def of_rows(self: Any, operation: Any, task: Any, with_rows: Any, progress: Any) -> None:
        task = msgspec.structs.replace(task, sources=with_rows)
        await stream_task(self, operation, task, with_rows, progress)

    return replaced((WorkService, "_stream_task", of_rows))


def _log_row_left_out() -> _Context:
    """Who is a witness of a row's range keeps what it adds to the log as a witness too, though it is to store
    it."""
    store_parts = Journal._store_parts

    def by_the_first(self: Any, parts: Any, first_epoch: Any) -> None:
        keeps = self.keeps
        self.keeps = lambda shard: keeps(shard) and keeps(parts[0].shard)
        try:
            store_parts(self, parts, first_epoch)
        finally:
            self.keeps = keeps

    return replaced((Journal, "_store_parts", by_the_first))


def _merged_with_another_witness() -> _Context:
    """Tablets on the same nodes are joined, whoever keeps the data of each."""
    return replaced((TabletMap, "merges", True))


_SCENARIO = "tracked_witnesses"
_DECIDING = "tracked_witness_lwt"
WITNESSES = (
    Planted("witness_let_go_early", "replicas differ", _SCENARIO, _let_go_of_early),
    Planted("witness_shown", "an acknowledged write is not seen", _SCENARIO, _shown_by_witnesses),
    Planted("witness_as_source", "replicas differ", _SCENARIO, _filled_from_anybody),
    Planted("witness_empty_entry", "replicas differ", _SCENARIO, _witness_holds_nothing),
    Planted("witness_decides_blind", "a decision is missed", _DECIDING, _decided_without_witnesses),
    Planted("witness_merged", "replicas differ", "tracked_witness_tablets", _merged_with_another_witness),
    Planted("witness_rows_count", "a decision is missed", _DECIDING, _witness_shows_nothing),
    Planted(
        "witness_log_left_out", "a change is not in the log", "tracked_witness_capture", _log_row_left_out
    ),
)
#: Those that a test brings about.
DIRECTED = (
    Planted("witness_promoted_unstored", "replicas differ", _SCENARIO, _promoted_without_journal),
    Planted("witness_promises_wiped", "two decisions", _DECIDING, _promises_wiped),
    Planted("witness_promises_left", "two decisions", _DECIDING, _promises_not_streamed),
)
