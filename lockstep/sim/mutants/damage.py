"""Planted bugs of what is done about damaged table files."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.storage.engine import StorageEngine
from lockstep.values.errors import TableFileDamaged
from lockstep.values.rows import ReadCommand, ReadResult

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
