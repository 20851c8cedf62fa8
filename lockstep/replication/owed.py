"""Writes that are owed: replayed until each replica has them, or a durable hint for those that do not.

An update of a view may be owed to one replica alone; where replicas have changed, it is owed to all.

Invariant: told once, when nothing more is heard of the write. Settings and windows that refuse hints of
clients' writes do not count here, only the room that there is.
"""

from __future__ import annotations

import asyncio

from lockstep.replication.plans import Plan
from lockstep.replication.writes import Told, Write, Writes
from lockstep.values.errors import LockstepError, RequestError, WriteFailure, WriteTimeout
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation

#: Whether every replica has the write or a hint, and the sequence to await for the hints.
Owed = tuple[bool, int]


class OwedWrite(Write):
    __slots__ = ()

    def __init__(
        self, owner: Writes, plan: Plan, mutation: Mutation, deadline_s: float, told: Told, made_us: int
    ) -> None:
        super().__init__(owner, plan, mutation, deadline_s, "BATCH", told)
        self.forced = True
        self.made_us = made_us

    def _still_fits(self) -> bool:
        # Nobody sees cells of columns that are gone.
        return True


class PairedWrite(OwedWrite):
    """Of a plan with one replica, until that does not hold any more."""

    __slots__ = ()

    def _newest(self) -> Plan | None:
        newest = super()._newest()
        holds = newest is not None and newest.needs_epoch <= self._plan.epoch
        return self._plan if holds else newest


def begin_owed(
    writes: Writes, mutation: Mutation, timeout_ms: float, pair: Plan | None = None, made_us: int = 0
) -> asyncio.Future[Owed]:
    """Write to every replica now, or to that of `pair`; nothing is owed to a table that is gone. `made_us`:
    when a write was made that is replayed; its hints are as old as that."""
    future: asyncio.Future[Owed] = asyncio.get_running_loop().create_future()

    def settled(whole: bool, sequence: int) -> None:
        if not future.done():
            future.set_result((whole, sequence))

    def told(error: LockstepError | None) -> None:
        if error is not None and not isinstance(error, WriteTimeout | WriteFailure):
            settled(True, 0)

    try:
        writes.admit()
        plan = pair or writes.plans.write_plan(mutation.table_id, mutation.token, Consistency.ANY)
        deadline_s = writes.runtime.clock.monotonic_s() + timeout_ms / 1000
        kind = OwedWrite if pair is None else PairedWrite
        write = kind(writes, plan, mutation, deadline_s, told, made_us)
        write.settled = settled
        write.start()
    except RequestError as error:
        settled(not error.retriable, 0)
    return future
