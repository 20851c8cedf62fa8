"""Logged batches: all writes of a batch happen, or none, also when their coordinator dies between them.

Invariants. No write of a batch is sent before two nodes keep the whole batch durably, and they are told to
forget it only when every write reached its level. So an error before that is definite or says that the batch
log was not written, and any later one leaves the outcome open: the batch will still be written. The two are
others than the coordinator if those answer soon; else it is one of them, so that a batch survives the loss
of one node and needs no more nodes than a write at QUORUM does. Alone in its data centre it keeps it alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lockstep.coordination.context import CoordinationContext
from lockstep.coordination.driving import carry_out
from lockstep.coordination.writes import Writes
from lockstep.handoff.batch_store import BatchStore, ForgetBatch, KeepBatch
from lockstep.internode import verbs
from lockstep.internode.internode import Internode
from lockstep.quorum.failure_codes import late, note_refusal
from lockstep.quorum.round import BATCH, Ask, Count, End, Round, Target, Why
from lockstep.runtime.ports import Runtime
from lockstep.storage.rows.fragments import require_fitting
from lockstep.topology.batch_holders import batch_holders
from lockstep.values.codec import encode
from lockstep.values.errors import (
    ColumnsGone,
    LockstepError,
    RequestError,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import BATCH_HOLDER_PATIENCE_MS, BATCH_HOLDERS
from lockstep.values.rows import Mutation


class Batches:
    def __init__(
        self,
        context: CoordinationContext,
        writes: Writes,
        store: BatchStore,
    ) -> None:
        self._context = context
        self._runtime = context.runtime
        self._internode = context.internode
        self._writes = writes
        self.store = store
        self._count = 0

    async def write(self, mutations: Sequence[Mutation], consistency: Consistency, timeout_ms: float) -> None:
        """Return when every mutation is acknowledged at the level.

        Unavailable, Overloaded, InvalidRequest: nothing was written. WriteTimeout of type BATCH_LOG: nothing
        was sent to a replica, though a node that cannot be told to forget the batch may keep it. WriteTimeout
        of type BATCH, WriteFailure: the batch will be written. ColumnsGone: as of a single write.
        """
        for mutation in mutations:
            require_fitting(mutation, len(encode(mutation)))
        if consistency is not Consistency.ANY:
            for mutation in mutations:
                plan = self._writes.plans.plan_of(mutation, consistency)
                plan.require_alive(self._context.opinions)
        self._writes.admit()
        self._count += 1
        now_us = self._runtime.clock.wall_us()
        batch = KeepBatch(self._runtime.random.bytes(16), now_us, tuple(mutations))
        deadline_s = self._runtime.clock.monotonic_s() + timeout_ms / 1000
        holders = await self._keep(batch, consistency, deadline_s)
        self._runtime.probes.reach("batches.logged")
        await self._write_all(batch.mutations, consistency, timeout_ms)
        self._runtime.probes.reach("batches.written")
        self._forget(holders, ForgetBatch(batch.batch_id, batch.created_us))

    # -- the batch log ----------------------------------------------------------------------------

    async def _keep(self, batch: KeepBatch, consistency: Consistency, deadline_s: float) -> list[Target]:
        """Have the batch kept by as many nodes as it takes; those that may have it."""
        own = NodeId(self._context.own_id())
        others = batch_holders(
            self._context.plans.cluster, own, self._context.alive, self._runtime.random.bytes(1)[0]
        )
        if not others and consistency is not Consistency.ANY:
            raise Unavailable(Consistency.ONE, 1, 0)
        if others in ([], [own]):
            await self.store.keep(batch)
            return [self._target(own)]
        candidates = [self._target(node) for node in (*others, own)]
        keeping = _Keeping(self._runtime, self._internode, self.store, own, batch, candidates, deadline_s)
        is_kept, round_ = await keeping.done, keeping.round
        if is_kept:
            return round_.asked()
        self._runtime.probes.reach("batches.log_failed")
        self._forget(round_.asked(), ForgetBatch(batch.batch_id, batch.created_us))
        timeout = WriteTimeout(consistency, len(round_.accepted), BATCH_HOLDERS, "BATCH_LOG")
        raise late(timeout, round_.asked(), round_.failures)

    def _target(self, node: NodeId) -> Target:
        info = self._context.plans.cluster.directory.by_id[node]
        return Target(node, (info.address, info.internode_port), info.dc)

    def _forget(self, holders: Sequence[Target], batch: ForgetBatch) -> None:
        for holder in holders:
            if holder.node == self._context.own_id():
                self.store.forget(batch)
            else:
                self._internode.send(holder.address, verbs.BATCH_FORGET, batch)

    # -- the writes -------------------------------------------------------------------------------

    async def _write_all(
        self, mutations: Sequence[Mutation], consistency: Consistency, timeout_ms: float
    ) -> None:
        begun: list[asyncio.Future[None]] = []
        failure: LockstepError | None = None
        for mutation in mutations:
            try:
                begun.append(self._writes.begin(mutation, consistency, timeout_ms, "BATCH"))
            except RequestError as error:
                failure = open_outcome(error, consistency)
        outcomes = await asyncio.gather(*begun, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, ColumnsGone):
                # All parts are written again: with the timestamps of the present plan, over what there is.
                outcome.begun = True
                raise outcome
            if isinstance(outcome, LockstepError):
                failure = failure or open_outcome(outcome, consistency)
            elif outcome is not None:
                raise outcome
        if failure is not None:
            raise failure


class _Keeping:
    """Has BATCH_HOLDERS of the candidates keep one batch, the best ones if they answer soon; hears them as an
    internode Waiter with the target as context. `done` ends with whether enough keep it."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        store: BatchStore,
        own: NodeId,
        batch: KeepBatch,
        candidates: Sequence[Target],
        deadline_s: float,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._runtime = runtime
        self._internode = internode
        self._store = store
        self._own = own
        self._batch = batch
        self._body = encode(batch)
        self._deadline_s = deadline_s
        self.round = Round(BATCH, Count(candidates, BATCH_HOLDERS))
        self.done: asyncio.Future[bool] = loop.create_future()
        self.retry: asyncio.TimerHandle | None = None
        left_s = max(0.0, deadline_s - runtime.clock.monotonic_s())
        self._patience_s = min(BATCH_HOLDER_PATIENCE_MS / 1000, left_s / 4)
        self._late = loop.call_later(left_s, self._expire)
        self._slow = loop.call_later(self._patience_s, self._ask_others)
        carry_out(self, self.round.begin())

    def ask(self, asked: Ask) -> None:
        if asked.why is Why.ANOTHER:
            self._runtime.probes.reach("batches.asked_another")
        for target in asked.targets:
            if target.node == self._own:
                self._runtime.tasks.spawn(self._keep_here(target), "batches.keep")
            else:
                self._internode.submit(
                    target.address, verbs.BATCH_KEEP, self._body, self._deadline_s, self, target
                )

    def _ask_others(self) -> None:
        """Those that were asked take long: others as well, as many as are missing."""
        effects = self.round.slow(BATCH_HOLDERS - len(self.round.accepted))
        if effects:
            self._runtime.probes.reach("batches.asked_more")
            carry_out(self, effects)
            self._slow = asyncio.get_running_loop().call_later(self._patience_s, self._ask_others)

    async def _keep_here(self, target: Target) -> None:
        try:
            await self._store.keep(self._batch)
        except LockstepError as error:
            self.failed(target, error)
        else:
            self.replied(target, None, 0)

    def replied(self, context: Target, reply: Any, sender_epoch: int) -> None:
        carry_out(self, self.round.answered(context.node, 0))

    def failed(self, context: Target, error: LockstepError) -> None:
        note_refusal(self._internode.repeated_log, "batch", context, error)
        carry_out(self, self.round.failed(context, error))

    def again(self) -> None:
        """Keeping a batch twice is keeping it once."""
        carry_out(self, self.round.again())

    def check(self) -> None:
        carry_out(self, self.round.confirmed(self.round.plan))

    def _expire(self) -> None:
        carry_out(self, self.round.expired())

    def finish(self, end: End) -> None:
        for timer in (self._late, self._slow, self.retry):
            if timer is not None:
                timer.cancel()
        if not self.done.done():
            self.done.set_result(end is End.ENOUGH)


def open_outcome(error: LockstepError, consistency: Consistency) -> LockstepError:
    """What is told of an error of one write once the batch is kept: it will be written none the less."""
    if isinstance(error, WriteTimeout | WriteFailure):
        return error
    failure = WriteTimeout(consistency, 0, 1, "BATCH")
    failure.message = f"{failure.message} (part of the batch: {error.message})"
    return failure
