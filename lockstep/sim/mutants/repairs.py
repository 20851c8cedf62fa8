"""Planted bugs of what is lost, damaged, repaired and purged: what is compared, sent, remembered as equal and
answered before it is filled.
"""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.cql.compile.context import Context
from lockstep.metadata import degraded as degraded_part
from lockstep.metadata.log import snapshot
from lockstep.metadata.repairs import oldest
from lockstep.node import node as node_module
from lockstep.node.recovery import store as recovering_module
from lockstep.node.work import repairs as work_repairs
from lockstep.node.work.purging import TombstonePurge
from lockstep.node.work.repairs import Comparison, RepairDriver
from lockstep.replica.repair_participant import RepairParticipant
from lockstep.sim.door import DoorServer
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.engine import StorageEngine
from lockstep.storage.model import ModelStore
from lockstep.storage.purging import Purge
from lockstep.storage.store_position import Lacking, lacking_record
from lockstep.topology import force_remove, repairs
from lockstep.values.errors import TableFileDamaged
from lockstep.values.rows import ReadCommand, ReadResult

_Context = contextlib.AbstractContextManager[None]


def _first_change_sent() -> _Context:
    """Of what a replica lacks of some leaves it is sent the first change."""
    send = Comparison.send

    async def first(self: Any, repair: Any, node: Any, mutations: Any, progress: Any) -> None:
        await send(self, repair, node, mutations[:1], progress)

    return replaced((Comparison, "send", first))


def _mended_unsynced() -> _Context:
    """A participant says that it took what it lacked before its disk has it."""

    async def hasty(self: Any, mend: Any) -> Any:
        engine = self._engine

        class Lazy:
            async def synced(self, sequence: int) -> None:
                return None

            def __getattr__(self, name: str) -> Any:
                return getattr(engine, name)

        self._engine = Lazy()
        try:
            return await mend_(self, mend)
        finally:
            self._engine = engine

    mend_ = RepairParticipant.mend
    return replaced((RepairParticipant, "mend", hasty))


def _one_page() -> _Context:
    """Of leaves that differ only the first page is mended."""
    from lockstep.replica.merging import merge_answers as merge

    def cut(results: Any, reverse: bool) -> Any:
        return merge(results, reverse)[0], None

    return replaced((work_repairs, "merge_answers", cut), (work_repairs, "PAGE_ROWS_MAX", 2))


REPAIRS = (
    Planted("repair_first_change_sent", "replicas stay different", "repairs", _first_change_sent),
    Planted("repair_mended_unsynced", "replicas stay different", "repairs", _mended_unsynced),
    Planted("repair_one_page", "replicas stay different", "repairs", _one_page),
)


_NOTHING = ReadResult((), False, None)


def _take_damage_for_nothing() -> contextlib.AbstractContextManager[None]:
    """A replica that cannot read a block answers as if nothing were there."""
    read_now, read = StorageEngine.read_now, StorageEngine.read

    def answer_now(self: Any, command: ReadCommand) -> ReadResult | None:
        try:
            return read_now(self, command)
        except TableFileDamaged:
            return _NOTHING

    async def answer(self: Any, command: ReadCommand) -> ReadResult:
        try:
            return await read(self, command)
        except TableFileDamaged:
            return _NOTHING

    return replaced((StorageEngine, "read_now", answer_now), (StorageEngine, "read", answer))


DAMAGE = (Planted("damage_is_empty", "a damaged block reads as empty", "damage", _take_damage_for_nothing),)


_HARM = "lost writes count as mended"


def _snapshot_forgets_degraded() -> _Context:
    """Whoever begins from a snapshot takes every range for whole."""
    original = snapshot.SnapshotDecoder.finish

    def finish(self: Any) -> Any:
        return original(self).changed(degraded_part.DEGRADED.set(()))

    return replaced((snapshot.SnapshotDecoder, "finish", finish))


def _marked_beyond_the_repair() -> _Context:
    """What was repaired in part is taken for repaired as a whole."""

    def without(degraded: Any, group: Any, repaired: Any) -> Any:
        return tuple(one for one in degraded if one.group != group or not one.range.intersects(repaired))

    return replaced((force_remove, "without_range", without))


def _marked_by_an_older_repair() -> _Context:
    """A repair from before the removal counts."""

    def mended(cluster: Any, _line: Any, tables: Any, piece: Any) -> bool:
        known = cluster.repairs.by_table
        return bool(tables) and all(oldest(known.get(table, ()), piece) is not None for table in tables)

    return replaced((repairs, "_is_mended", mended))


DEGRADED = (
    Planted("snapshot_forgets_degraded", "nodes disagree", "forced", _snapshot_forgets_degraded),
    Planted("marked_beyond_the_repair", _HARM, "forced", _marked_beyond_the_repair),
    Planted("marked_by_an_older_repair", _HARM, "forced", _marked_by_an_older_repair),
)


def _member_without_store() -> _Context:
    """A start takes a store that is gone for one that never was."""
    return replaced(
        (node_module, "refuse_lost_store", lambda *_: None), (ModelStore, "_refuse_lost", lambda _self: None)
    )


def _lacking_answers() -> _Context:
    """A node answers from what it has before it is filled."""
    return replaced((Lacking, "require", lambda *_: None))


def _recovered_lacks_nothing() -> _Context:
    """An empty store takes the old one's place and says nothing of it."""
    return replaced((recovering_module, "lacking_record", lambda _lacks: lacking_record(())))


LOST_STORES = (
    Planted("member_without_store", "a store that is gone is made anew", "stores", _member_without_store),
    Planted("lacking_answers", "reads miss what is not filled yet", "stores", _lacking_answers),
    Planted("recovered_lacks_nothing", "an empty replica counts", "stores", _recovered_lacks_nothing),
)


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

    return replaced((work_repairs, "all_arrived_before_us", least))


PURGING = (
    Planted("purge_unrepaired", "deleted rows return", "purge", _purge_unrepaired),
    Planted("purge_newest_fragment", "deleted rows return", "purge", _purge_newest_fragment),
)
#: What a test brings about.
DIRECTED = (
    Planted("deletions_dated_by_the_clock", "deleted rows return", "", _deletions_dated_by_the_clock),
    Planted("purge_in_sessions", "older data arrives after its deletion", "", _purge_in_sessions),
    Planted("repair_by_the_drivers_clock", "deleted rows return", "", _repair_by_the_drivers_clock),
    Planted("kept_by_ones_own_clock", "deleted rows return", "", _kept_by_ones_own_clock),
)
