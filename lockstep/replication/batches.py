"""Logged batches: all writes of a batch happen, or none, also when their coordinator dies between them.

Invariants. No write of a batch is sent before other nodes keep the whole batch durably, and they are told to
forget it only when every write reached its level. So an error before that is definite or says that the batch
log was not written, and any later one leaves the outcome open: the batch will still be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replication import verbs
from lockstep.replication.batch_records import ForgetBatch, KeepBatch
from lockstep.replication.batch_store import BatchStore
from lockstep.replication.internode import Internode
from lockstep.replication.plans import Target
from lockstep.replication.writes import Writes, require_alive
from lockstep.runtime.ports import Runtime
from lockstep.storage.fragments import require_fitting
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
from lockstep.values.limits import BATCH_HOLDERS
from lockstep.values.rows import Mutation


class Batches:
    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        writes: Writes,
        store: BatchStore,
        metadata: Callable[[], ClusterMetadata],
        alive: Callable[[int], bool],
        own_id: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._internode = internode
        self._writes = writes
        self.store = store
        self._metadata = metadata
        self._alive = alive
        self._own_id = own_id
        self._count = 0

    async def write(self, mutations: Sequence[Mutation], consistency: Consistency, timeout_ms: float) -> None:
        """Return when every mutation is acknowledged at the level.

        Unavailable, Overloaded, InvalidRequest: nothing was written. WriteTimeout of type BATCH_LOG: nothing
        was sent to a replica, though the batch may be kept. WriteTimeout of type BATCH, WriteFailure: the
        batch will be written. ColumnsGone: as of a single write.
        """
        for mutation in mutations:
            require_fitting(mutation, len(encode(mutation)))
        if consistency is not Consistency.ANY:
            for mutation in mutations:
                plan = self._writes.plans.write_plan(mutation.table_id, mutation.token, consistency)
                require_alive(plan, self._alive)
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
        """Have the batch kept by as many nodes as can be; those that may have it."""
        own = NodeId(self._own_id())
        choice = batch_holders(self._metadata(), own, self._alive, self._runtime.random.bytes(1)[0])
        if not choice and consistency is not Consistency.ANY:
            raise Unavailable(Consistency.ONE, 1, 0)
        if choice in ([], [own]):
            await self.store.keep(batch)
            return [self._target(own)]
        wanted = min(BATCH_HOLDERS, len(choice))
        asked: list[Target] = []
        candidates = iter([self._target(node) for node in choice])
        kept = await asyncio.gather(
            *(self._keep_somewhere(batch, candidates, asked, deadline_s) for _ in range(wanted))
        )
        if not all(kept):
            self._runtime.probes.reach("batches.log_failed")
            raise WriteTimeout(consistency, sum(kept), wanted, "BATCH_LOG")
        return asked

    async def _keep_somewhere(
        self, batch: KeepBatch, candidates: Iterator[Target], asked: list[Target], deadline_s: float
    ) -> bool:
        """Have one node keep the batch, the next that takes it; False when none does in time."""
        for target in candidates:
            asked.append(target)
            left_ms = (deadline_s - self._runtime.clock.monotonic_s()) * 1000
            if left_ms <= 0:
                return False
            try:
                await self._internode.request(target.address, verbs.BATCH_KEEP, batch, left_ms)
            except LockstepError:
                self._runtime.probes.reach("batches.asked_another")
            else:
                return True
        return False

    def _target(self, node: NodeId) -> Target:
        info = self._metadata().directory.by_id[node]
        return Target(node, (info.address, info.internode_port), info.dc)

    def _forget(self, holders: Sequence[Target], batch: ForgetBatch) -> None:
        for holder in holders:
            if holder.node == self._own_id():
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


def open_outcome(error: LockstepError, consistency: Consistency) -> LockstepError:
    """What is told of an error of one write once the batch is kept: it will be written none the less."""
    if isinstance(error, WriteTimeout | WriteFailure):
        return error
    failure = WriteTimeout(consistency, 0, 1, "BATCH")
    failure.message = f"{failure.message} (part of the batch: {error.message})"
    return failure
