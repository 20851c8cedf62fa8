"""Writes of one request over several partitions: logged or not, with the limits and warnings of batches.

Invariant: what was sent to any replica is never answered as a definite failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.server.batch_limits import BatchLimits
from lockstep.server.viewed_writes import require_derivable
from lockstep.values.errors import (
    ColumnsGone,
    InvalidRequest,
    LockstepError,
    RequestError,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.request_limits import WRITES_A_TURN
from lockstep.values.rows import Mutation

if TYPE_CHECKING:
    from lockstep.node.node import Node

WRITE_LEVELS_REFUSED = (Consistency.SERIAL, Consistency.LOCAL_SERIAL)


class BatchWrites:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._write_ms = node.configuration.timeouts.write_ms
        self.limits = BatchLimits(node)

    async def batch(
        self,
        mutations: Sequence[Mutation],
        consistency: Consistency,
        *,
        logged: bool,
        once: bool = False,
    ) -> tuple[str, ...]:
        """Write a batch; warnings for its client. `once`: see `all`."""
        require_derivable(self._node.cluster, mutations)
        if len(mutations) < 2:
            await self.all(mutations, consistency, "SIMPLE", once=once)
            return ()
        if consistency in WRITE_LEVELS_REFUSED:
            raise serial_write(consistency)
        warnings = self.limits.judge(mutations, kind="LOGGED" if logged else "UNLOGGED")
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

    async def all(
        self, mutations: Sequence[Mutation], consistency: Consistency, write_type: str, *, once: bool = False
    ) -> None:
        """Write every mutation at the level; the first error once all have ended. `once`: what was read for
        them may have changed by their own effect, so what was begun is never planned anew."""
        require_derivable(self._node.cluster, mutations)
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
        for at, mutation in enumerate(mutations):
            if at and not at % WRITES_A_TURN:
                await asyncio.sleep(0)
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
