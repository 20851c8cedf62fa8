"""Planted bugs of purging."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.cql.compile.context import Context
from lockstep.node.work import repairs
from lockstep.node.work.purging import TombstonePurge
from lockstep.node.work.repairs import RepairDriver
from lockstep.sim.door import DoorServer
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.storage.purging import Purge


def _purge_unrepaired() -> contextlib.AbstractContextManager[None]:
    """Tombstones go at once, whatever replicas have missed."""
    far_s = 1 << 40
    return replaced(
        (TombstonePurge, "before", lambda *_: far_s), (TombstonePurge, "_is_held", lambda *_: False)
    )


def _purge_in_sessions() -> contextlib.AbstractContextManager[None]:
    """Nobody looks whether something that may still deliver older data is under way."""
    return replaced((TombstonePurge, "_is_held", lambda self, cluster: False))


def _purge_newest_fragment() -> contextlib.AbstractContextManager[None]:
    """A row's tombstones go with the fragment they are in, and its older fragments stay."""
    original = Purge._place

    def place(self: Any, partition: Any, place_: bytes, pairs: Any, *rest: Any) -> Any:
        return original(self, partition, place_, pairs[:1], *rest)

    return replaced((Purge, "_place", place))


def _repair_by_the_drivers_clock() -> contextlib.AbstractContextManager[None]:
    """All that was deleted before a repair began on its driver's clock counts as arrived."""

    async def began_s(_driver: Any, repair: Any) -> int:
        return int(repair.began_s)

    return replaced((RepairDriver, "_nothing_older_is_under_way", began_s))


def _deletions_dated_by_the_clock() -> contextlib.AbstractContextManager[None]:
    """A node whose clock was set back dates deletions before those that it took earlier."""
    return replaced(
        (Context, "deleted_at_s", property(lambda self: self.now_s)),
        (DoorServer, "_deleted_at_s", DoorServer._now_s),
    )


def _kept_by_ones_own_clock() -> contextlib.AbstractContextManager[None]:
    """How far a node's clock is ahead is no matter when it tells of what it keeps."""

    def least(began_us: int, told: Any) -> int:
        kept: list[int] = [one.oldest_us for one in told]
        return min([began_us, *kept])

    return replaced((repairs, "all_arrived_before_us", least))


PURGING = (
    Planted("purge_unrepaired", "deleted rows return", "purge", _purge_unrepaired),
    Planted("purge_newest_fragment", "deleted rows return", "purge", _purge_newest_fragment),
    Planted("deletions_dated_by_the_clock", "deleted rows return", "purge", _deletions_dated_by_the_clock),
)
#: What a test brings about.
DIRECTED = (
    Planted("purge_in_sessions", "older data arrives after its deletion", "", _purge_in_sessions),
    Planted("repair_by_the_drivers_clock", "deleted rows return", "", _repair_by_the_drivers_clock),
    Planted("kept_by_ones_own_clock", "deleted rows return", "", _kept_by_ones_own_clock),
)
