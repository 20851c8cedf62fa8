"""Writes of one request over several partitions: logged or not, with the limits and warnings of batches.

Invariant: what was sent to any replica is never answered as a definite failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.replication.hints import GC_GRACE_S_DEFAULT
from lockstep.values.errors import (
    ColumnsGone,
    InvalidRequest,
    LockstepError,
    RequestError,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import BATCH_BYTES_MAX, BATCH_BYTES_WARNED, UNLOGGED_PARTITIONS_WARNED
from lockstep.values.rows import Mutation

if TYPE_CHECKING:
    from lockstep.node.node import Node

WRITE_LEVELS_REFUSED = (Consistency.SERIAL, Consistency.LOCAL_SERIAL)


class BatchWrites:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._write_ms = node.configuration.timeouts.write_ms

    async def batch(
        self,
        mutations: Sequence[Mutation],
        consistency: Consistency,
        *,
        logged: bool,
        size: int = 0,
        once: bool = False,
    ) -> tuple[str, ...]:
        """Write a batch; warnings for its client. `size`: bytes of its values, 0 for unknown. `once`: see
        `all`."""
        if len(mutations) < 2:
            await self.all(mutations, consistency, "SIMPLE", once=once)
            return ()
        if consistency in WRITE_LEVELS_REFUSED:
            raise serial_write(consistency)
        warnings = self._judged(mutations, logged, size)
        if not logged:
            await self.all(mutations, consistency, "UNLOGGED_BATCH", once=once)
            return warnings
        try:
            await self._node.batches.write(mutations, consistency, self._write_ms)
        except ColumnsGone as error:
            if once and error.begun:
                raise of_a_part(error, consistency, "BATCH") from error
            raise
        return warnings

    def _judged(self, mutations: Sequence[Mutation], logged: bool, size: int) -> tuple[str, ...]:
        """One warning or none: clients show them one by one. InvalidRequest when the batch is too large."""
        tables = self._tables(mutations)
        found: list[str] = []
        if size > BATCH_BYTES_MAX:
            raise InvalidRequest("Batch too large")
        if size > BATCH_BYTES_WARNED:
            found.append(
                f"Batch for [{', '.join(tables)}] is of size {size}, exceeding specified threshold of "
                f"{BATCH_BYTES_WARNED} by {size - BATCH_BYTES_WARNED}."
            )
        if not logged and len(mutations) > UNLOGGED_PARTITIONS_WARNED:
            plural = "s" if len(tables) > 1 else ""
            found.append(
                f"Unlogged batch covering {len(mutations)} partitions detected against table{plural} "
                f"[{', '.join(tables)}]. You should use a logged batch for atomicity, or asynchronous writes "
                "for performance."
            )
        brief = [name for name, gc_grace_s in tables.items() if not gc_grace_s]
        if logged and brief:
            plural = "s" if len(brief) > 1 else ""
            found.append(
                f"Executing a LOGGED BATCH on table{plural} [{', '.join(brief)}], configured with a "
                "gc_grace_seconds of 0. The gc_grace_seconds is used to TTL batchlog entries, so setting "
                "gc_grace_seconds too low on tables involved in an atomic batch might cause batchlog entries "
                "to expire before being replayed."
            )
        return tuple(found)

    def _tables(self, mutations: Sequence[Mutation]) -> dict[str, int]:
        """Name -> gc_grace_seconds, sorted."""
        found: dict[str, int] = {}
        for table_id in sorted({mutation.table_id for mutation in mutations}):
            table = self._node.cluster.table(table_id)
            if table is not None:
                name = f"{table.keyspace}.{table.name}"
                found[name] = int(table.option("gc_grace_seconds", str(GC_GRACE_S_DEFAULT)))
        return dict(sorted(found.items()))

    async def all(
        self, mutations: Sequence[Mutation], consistency: Consistency, write_type: str, *, once: bool = False
    ) -> None:
        """Write every mutation at the level; the first error once all have ended. `once`: what was read for
        them may have changed by their own effect, so what was begun is never planned anew."""
        try:
            await self._each(mutations, consistency, write_type)
        except ColumnsGone as error:
            if once and error.begun:
                raise of_a_part(error, consistency, write_type) from error
            raise

    async def _each(self, mutations: Sequence[Mutation], consistency: Consistency, write_type: str) -> None:
        if consistency in WRITE_LEVELS_REFUSED:
            raise serial_write(consistency)
        begin = self._node.coordinator.begin_write
        begun: list[asyncio.Future[None]] = []
        failure: LockstepError | None = None
        for mutation in mutations:
            try:
                begun.append(begin(mutation, consistency, self._write_ms, write_type))
            except RequestError as error:
                if not begun:
                    raise
                failure = of_a_part(error, consistency, write_type)
                break
        if len(begun) == 1 and failure is None:
            await begun[0]
            return
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        errors = [outcome for outcome in outcomes if outcome is not None]
        for outcome in outcomes:
            if isinstance(outcome, ColumnsGone):
                # All parts are written again: with the timestamps of the present plan, over what there is.
                outcome.begun = outcome.begun or len(outcomes) > 1
                raise outcome
        for problem in errors:
            if not isinstance(problem, LockstepError):
                raise problem
            if problem.outcome_known and (failure is not None or len(errors) < len(outcomes)):
                # Its own part has no effect, such as of a table that was dropped; others have.
                raise of_a_part(problem, consistency, write_type)
            raise problem
        if failure is not None:
            raise failure


def of_a_part(error: LockstepError, consistency: Consistency, write_type: str) -> WriteTimeout:
    """A definite error of one partition, where others were sent: the outcome of the whole is unknown."""
    failure = WriteTimeout(consistency, 0, 1, write_type)
    failure.message = f"{failure.message} (part of the batch: {error.message})"
    return failure


def serial_write(consistency: Consistency) -> InvalidRequest:
    return InvalidRequest(
        f"You must use conditional updates for serializable writes: {consistency.name} is no level of a write"
    )
