"""Planted bugs of change capture: what writes to a log beside its table, and when that is known."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from lockstep.replica.ballots import BallotService
from lockstep.replica.replica import ReplicaService
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.engine import StorageEngine
from lockstep.values.rows import Mutation, without_log

_Context = contextlib.AbstractContextManager[None]
#: How long what a change adds to the log waits where it is a batch of its own.
_LATER_S = 0.3
_own_part = ReplicaService._own_part
_apply = StorageEngine.apply


def _left_out() -> _Context:
    """A replica of the log that is none of the table takes nothing, and says that it has."""

    def own_part(
        self: ReplicaService, mutation: Mutation, captured: Mutation, epoch: int, is_own: bool
    ) -> tuple[Mutation, bool]:
        part, takes = _own_part(self, mutation, captured, epoch, is_own)
        placement = self._plans.placement(captured.table_id)
        if placement is None:
            return part, takes
        here = placement.ring.range_at(mutation.token).range.contains(captured.token)
        return (part if here else without_log(mutation)), takes

    return replaced((ReplicaService, "_own_part", own_part))


def _decided_without() -> _Context:
    """What a ballot decides adds nothing to the log."""
    return replaced((BallotService, "_own_part", lambda self, mutation: without_log(mutation)))


def _later() -> _Context:
    """What a change adds to the log is a batch of its own, and nobody waits for it."""

    def apply(self: StorageEngine, mutation: Mutation, *given: Any, **named: Any) -> int:
        sequence = _apply(self, without_log(mutation), *given, **named)
        if mutation.captured is not None:
            self._runtime.tasks.spawn(_written(self, mutation.captured), "captured-later")
        return sequence

    return replaced((StorageEngine, "apply", apply))


async def _written(engine: StorageEngine, captured: Mutation) -> None:
    await asyncio.sleep(_LATER_S)
    _apply(engine, captured, first_epoch=None)


CAPTURED = (
    Planted("log_left_out", "changes are missing in the log while ranges move", "capture", _left_out),
    Planted("log_undecided", "conditional writes are missing in the log", "capture", _decided_without),
    Planted("log_later", "a power cut takes changes from the log alone", "capture", _later),
)
