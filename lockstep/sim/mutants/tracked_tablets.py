"""Planted bugs of tracked tablets: ids that stay where a tablet was, or come without their data."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from lockstep.node.work.reconciling import Reconciler
from lockstep.node.work.tracked_ranges import TrackedRanges
from lockstep.replica.tracked import group_of
from lockstep.sim.mutants.tracked import _cut_forgotten, _given_up_claimed
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.journal import Journal
from lockstep.storage.journal_records import Shard, entry_key
from lockstep.storage.shard_logs import ShardLogs
from lockstep.storage.store import Operation

_Context = contextlib.AbstractContextManager[None]


def _half_lost() -> _Context:
    """When tablets are joined what is open of the first one is forgotten."""
    original = Journal._refiled

    def refiled(self: Any, shard: Shard, logs: ShardLogs) -> Iterator[Operation]:
        at = self._range_at(*shard)
        is_first_half = at is not None and at[0].right > shard[1]
        if not is_first_half:
            yield from original(self, shard, logs)
            return
        self._listed -= logs.stop_listing()
        for log, offsets in logs.open.items():
            for offset in offsets.offsets(offsets.count):
                yield "delete", entry_key(log, offset)

    return replaced((Journal, "_refiled", refiled))


def _newcomer_not_awaited() -> _Context:
    """What all hold that are read is let go of, though a newcomer may lack it."""

    def others(self: Any, cluster: Any, shard: Shard) -> list[int]:
        group, own = group_of(cluster, shard), self._context.own_id()
        return [node for node in group.reads if node != own] if group is not None else []

    return replaced((Reconciler, "_others", others))


def _newcomer_fetches_nothing() -> _Context:
    """A newcomer holds what was reconciled before it was filled, and is read without the rest."""

    async def fetch(self: Any, holding: Any, source: Any, require: Any) -> None: ...

    return replaced((TrackedRanges, "_fetch", fetch))


TRACKED_TABLETS = tuple(
    Planted(name, harm, "tracked_tablets", plant)
    for name, harm, plant in (
        ("tracked_tablet_uncut", "ids stay with one half of a tablet", _cut_forgotten),
        ("tracked_tablet_half_lost", "what one replica holds stays there", _half_lost),
        ("tracked_tablet_kept", "ids of wiped data are claimed", _given_up_claimed),
        ("tracked_tablet_unawaited", "a newcomer lacks what is let go of", _newcomer_not_awaited),
        ("tracked_tablet_not_fetched", "what is open does not come", _newcomer_fetches_nothing),
    )
)
