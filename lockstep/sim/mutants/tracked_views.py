"""Planted bugs of views of tracked tables: what comes to a replica and changes nothing in a view."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.coordination import tracked_writes
from lockstep.node.work.cohorts import CohortTaking
from lockstep.replica import tracked
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.journal import Journal
from lockstep.storage.shard_logs import Shard
from lockstep.tracking.held import MutationId
from lockstep.values.rows import Mutation

_Context = contextlib.AbstractContextManager[None]


def _only_who_gives_derives() -> _Context:
    """A replica derives from what it gives an id to, and from nothing that has one."""
    original = Journal.take

    def take(self: Journal, *of: Any, first_epoch: int | None = 0, **named: Any) -> None:
        original(self, *of, **named, first_epoch=None)

    return replaced((Journal, "take", take))


def _what_is_brought_is_not_derived_from() -> _Context:
    """A replica derives from what clients write, and not from what other replicas bring it."""
    return replaced((tracked, "followed_at", lambda cluster, own, shard: None))


def _write_not_kept() -> _Context:
    """Who gives an id keeps what it derives, and not the write."""
    original = Journal.give

    def give(
        self: Journal, shard: Shard, mutation: Mutation, now_us: int, *, first_epoch: int | None = 0
    ) -> MutationId:
        return original(self, shard, mutation, now_us, first_epoch=0 if first_epoch else first_epoch)

    return replaced((Journal, "give", give))


def _settled_by_one() -> _Context:
    """A write has settled once its coordinator has it."""
    return replaced((tracked_writes._HeldByQuorum, "reached", lambda self: True))


def _cohort_rows_not_derived_from() -> _Context:
    """Rows of a cohort are stored, and nothing follows from them."""
    original = CohortTaking._store

    async def store(self: Any, *of: Any) -> None:
        apply = self._engine.apply

        class Engine:
            synced = self._engine.synced

            def apply(self, mutation: Mutation, *, by_repair: bool) -> int:
                return int(apply(mutation, by_repair=by_repair, first_epoch=None))

        whole, self._engine = self._engine, Engine()
        try:
            await original(self, *of)
        finally:
            self._engine = whole

    return replaced((CohortTaking, "_store", store))


def _filled_derives() -> _Context:
    """A replica that is being filled derives from rows that it has in part."""
    return replaced((tracked, "followed_at", lambda cluster, own, shard: 0))


_SCENARIO = "tracked_views"
TRACKED_VIEWS = (
    Planted("tracked_view_giver", "a row is at two keys of a view", _SCENARIO, _only_who_gives_derives),
    Planted(
        *("tracked_view_brought", "a row is at two keys of a view", _SCENARIO),
        _what_is_brought_is_not_derived_from,
    ),
    Planted(
        *("tracked_view_filled", "a row is at two keys of a view", "tracked_view_tablets"), _filled_derives
    ),
)
#: Those that a test brings about.
DIRECTED = (
    Planted("tracked_view_write_not_kept", "a view shows what its table lost", _SCENARIO, _write_not_kept),
    Planted("tracked_view_settled_by_one", "a view shows what its table lost", _SCENARIO, _settled_by_one),
    Planted(
        *("tracked_view_cohort_rows", "a row is at two keys of a view", _SCENARIO),
        _cohort_rows_not_derived_from,
    ),
)
