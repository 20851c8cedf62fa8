"""Writes that are owed: replayed until each replica has them, or a durable hint for those that do not.

An update of a view may be owed to one replica alone; where replicas have changed, it is owed to all.

Invariant: told once, when nothing more is heard of the write. Settings and windows that refuse hints of
clients' writes do not count here, only the room that there is.
"""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from lockstep.coordination.context import OWED, PAIRED
from lockstep.coordination.writes import Write, Writes
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import WRITE, Round
from lockstep.values.errors import LockstepError, RequestError, WriteFailure, WriteTimeout
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation

#: Whether every replica has the write or a hint, and the sequence to await for the hints.
Owed = tuple[bool, int]


def begin_guaranteed(
    writes: Writes,
    mutation: Mutation,
    timeout_ms: float,
    pair: Plan | None = None,
    made_us: int = 0,
    is_admitted: bool = False,
) -> asyncio.Future[Owed]:
    """Write to every replica now, or to that of `pair`; nothing is owed to a table that is gone. Of a tracked
    table a quorum is enough: its replicas bring each other what they lack.

    `made_us`: when a write was made that is replayed; its hints are as old as that. `is_admitted`: a part of
    something that was admitted as a whole.
    """
    future: asyncio.Future[Owed] = asyncio.get_running_loop().create_future()

    def settled(whole: bool, sequence: int) -> None:
        if not future.done():
            future.set_result((whole, sequence))

    def told(error: LockstepError | None) -> None:
        if error is not None and not isinstance(error, WriteTimeout | WriteFailure):
            settled(True, 0)

    def held(error: LockstepError | None) -> None:
        is_gone = error is not None and not error.retriable and error.outcome_known
        settled(error is None or is_gone, 0)

    terms = OWED if pair is None else PAIRED
    if made_us:
        terms = replace(terms, made_us=made_us)
    try:
        if not is_admitted:
            writes.admit()
        plan = pair or writes.plans.plan_of(mutation, Consistency.ANY)
        if plan.shard is not None:
            writes.submit(mutation, Consistency.QUORUM, timeout_ms, held, "BATCH", terms)
            return future
        deadline_s = writes.runtime.clock.monotonic_s() + timeout_ms / 1000
        write = Write(writes, Round(WRITE, plan), mutation, deadline_s, told, terms, "BATCH")
        write.settled = settled
        write.start()
    except RequestError as error:
        settled(not error.retriable, 0)
    return future
