"""The replica that counts: adds a change to what it has counted itself, and has all replicas keep the result.

Invariants. A change is added once, however often it is delivered. The sum is durable here before another
replica hears of it, so this node never counts on from less than others hold. Changes of one partition come
one after another. A refusal means that nothing was added.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from lockstep.coordination.writes import Writes, require_alive
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.quorum.plans import PlanBook
from lockstep.replica.counter_shards import asks, counted, shard_path
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.replica.replica import ReplicaService
from lockstep.runtime.ports import Runtime
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store_position import generation_of
from lockstep.values.errors import LockstepError, NotReplica, Overloaded, StaleEpoch, WriteTimeout
from lockstep.values.ids import Consistency
from lockstep.values.limits import COUNTER_IDS_KEPT_MAX, COUNTER_WAITERS_MAX
from lockstep.values.rows import Mutation
from lockstep.values.tokens import Range


class CounterRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`mutation` holds differences. `incarnation` is the one that the receiver last told, so that what was
    meant for a process that died is not added by the next one."""

    epoch: int
    needs_epoch: int
    mutation: Mutation
    consistency: int
    timeout_ms: float
    incarnation: int = 0


class CounterReply(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Not `counted`: the request named another `incarnation`, and nothing was done."""

    counted: bool
    incarnation: int


_Place = tuple[int, bytes]


class CounterLeader:
    """`incarnation` is this process; the generation of its shards is a fact of the store."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: StorageEngine,
        replica: ReplicaService,
        writes: Writes,
        metadata: Callable[[], ClusterMetadata],
        catch_up: Callable[[int, Address], Awaitable[None]],
        alive: Callable[[int], bool],
        own_id: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._replica = replica
        self._writes = writes
        self._metadata = metadata
        self._catch_up = catch_up
        self._alive = alive
        self._own_id = own_id
        self._plans = PlanBook(metadata, own_id)
        self.incarnation = int.from_bytes(runtime.random.bytes(7), "big") + 1
        self._locks: dict[_Place, tuple[asyncio.Lock, int]] = {}
        self._known: OrderedDict[tuple[int, bytes, bytes], asyncio.Future[None]] = OrderedDict()
        internode.register(verbs.COUNTER, CounterRequest, CounterReply, self._receive)

    async def _receive(self, peer: PeerInfo, request: CounterRequest) -> CounterReply:
        if request.incarnation != self.incarnation:
            return CounterReply(False, self.incarnation)
        if request.needs_epoch > self._metadata().epoch:
            await self._catch_up(request.needs_epoch, peer.endpoint)
        return await self.count(request)

    async def count(self, request: CounterRequest) -> CounterReply:
        """Return once enough replicas hold the sum. StaleEpoch, NotReplica, Overloaded, Unavailable,
        InvalidRequest: nothing was added. WriteTimeout, WriteFailure: it may have been."""
        mutation = request.mutation
        name = (mutation.table_id, mutation.key, mutation.mutation_id)
        earlier = self._known.get(name)
        if earlier is not None:
            self._runtime.probes.reach("counter.repeated")
            await asyncio.shield(earlier)
            return CounterReply(True, self.incarnation)
        outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._known[name] = outcome
        try:
            await self._count(request)
        except BaseException as error:
            refused = isinstance(error, LockstepError) and error.outcome_known
            if refused:
                del self._known[name]
            self._settle(outcome, error)
            raise
        self._settle(outcome, None)
        while len(self._known) > COUNTER_IDS_KEPT_MAX:
            self._known.popitem(last=False)
        return CounterReply(True, self.incarnation)

    @staticmethod
    def _settle(outcome: asyncio.Future[None], error: BaseException | None) -> None:
        if error is None:
            outcome.set_result(None)
        elif isinstance(error, Exception):
            outcome.set_exception(error)
            outcome.exception()  # whoever waits hears it; nobody has to
        else:
            outcome.cancel()

    async def _count(self, request: CounterRequest) -> None:
        deadline_s = self._runtime.clock.monotonic_s() + request.timeout_ms / 1000
        mutation, consistency = request.mutation, Consistency(request.consistency)
        require_alive(self._plans.write_plan(mutation.table_id, mutation.token, consistency), self._alive)
        place = (mutation.table_id, mutation.key)
        lock = self._enter(place)
        try:
            async with lock:
                summed = await self._add(request, deadline_s)
        finally:
            self._leave(place)
        left_ms = (deadline_s - self._runtime.clock.monotonic_s()) * 1000
        if left_ms <= 0:
            raise WriteTimeout(consistency, 1, 1, "COUNTER")
        try:
            await self._writes.begin(summed, consistency, left_ms, "COUNTER")
        except LockstepError as error:
            if not error.outcome_known:
                raise
            # It is added here, and will be seen: whoever sent it must not take it for undone.
            failure = WriteTimeout(consistency, 1, 1, "COUNTER")
            failure.message = f"{failure.message} (the change is counted, but: {error.message})"
            raise failure from error

    async def _add(self, request: CounterRequest, deadline_s: float) -> Mutation:
        """Read, add, keep durably; the cells as every replica is to have them."""
        if self._runtime.clock.monotonic_s() >= deadline_s:
            raise Overloaded("too many changes of one counter at a time")
        self._check(request)
        now_s = self._runtime.clock.wall_us() // 1_000_000
        result = await self._engine.read(asks(request.mutation, now_s))
        generation = generation_of(self._engine)
        summed = counted(request.mutation, result.partitions, shard_path(self._own_id(), generation))
        await self._runtime.probes.linger("counter.read")
        if generation_of(self._engine) != generation:
            self._runtime.probes.reach("counter.given_up_meanwhile")
            raise NotReplica("this node has just given up counters of its own")
        self._check(request)
        kept: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answered(answer: Any) -> None:
            if kept.done():
                return
            # Fenced afterwards: it is added, and the write that follows finds the present replicas.
            if isinstance(answer, WriteReply | StaleEpoch):
                kept.set_result(None)
            else:
                kept.set_exception(answer)

        self._replica.write(WriteRequest(request.epoch, request.needs_epoch, summed), answered)
        try:
            await kept
        except LockstepError as error:
            raise WriteTimeout(request.consistency, 0, 1, "COUNTER") from error
        self._runtime.probes.reach("counter.added")
        return summed

    def _check(self, request: CounterRequest) -> None:
        """StaleEpoch or NotReplica unless this node owns the partition under the plan of the request."""
        mutation = request.mutation
        placement = self._plans.placement(mutation.table_id)
        if placement is None:
            raise NotReplica(f"table id {mutation.table_id} is not known here")
        group = placement.group_for(mutation.token)
        if group.epoch > request.epoch or placement.changed_epoch > request.epoch:
            raise StaleEpoch(placement.epoch, "stale_placement")
        # A pending replica lacks what it counted when it owned the range before.
        if self._own_id() not in group.reads:
            raise NotReplica(f"node {self._own_id()} counts nothing for token {mutation.token}")
        self._replica.require_held(mutation.table_id, Range(mutation.token - 1, mutation.token))

    def _enter(self, place: _Place) -> asyncio.Lock:
        lock, users = self._locks.get(place, (None, 0))
        if lock is None:
            lock = asyncio.Lock()
        if users >= COUNTER_WAITERS_MAX:
            raise Overloaded("too many changes of one counter at a time")
        self._locks[place] = (lock, users + 1)
        return lock

    def _leave(self, place: _Place) -> None:
        lock, users = self._locks[place]
        if users == 1:
            del self._locks[place]
        else:
            self._locks[place] = (lock, users - 1)
