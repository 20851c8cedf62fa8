"""Planted bugs of repairs: what is compared, sent, and remembered as equal."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.node.work import repair_comparison as comparison_module
from lockstep.node.work.repair_comparison import Comparison
from lockstep.replica.repair_participant import RepairParticipant
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced

_Context = contextlib.AbstractContextManager[None]


def _first_change_sent() -> _Context:
    """Of what a replica lacks of some leaves it is sent the first change."""
    send = Comparison._send

    async def first(self: Any, repair: Any, node: Any, mutations: Any, progress: Any) -> None:
        await send(self, repair, node, mutations[:1], progress)

    return replaced((Comparison, "_send", first))


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

    return replaced((comparison_module, "merge_answers", cut), (comparison_module, "PAGE_ROWS_MAX", 2))


REPAIRS = (
    Planted("repair_first_change_sent", "replicas stay different", "repairs", _first_change_sent),
    Planted("repair_mended_unsynced", "replicas stay different", "repairs", _mended_unsynced),
    Planted("repair_one_page", "replicas stay different", "repairs", _one_page),
)
