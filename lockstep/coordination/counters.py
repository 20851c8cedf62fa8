"""Changes of counters: at their coordinator, which replica counts and what became of it; and at the replica
that counts, which adds a change to what it has counted itself and has all replicas hold the sum.

Invariant: A change is given to another replica, or a second time to one, only after a definite refusal. An
error that is no WriteTimeout or WriteFailure means that nothing was counted. A change is added once, however
often it is delivered. The sum is durable here before another replica hears of it, so this node never counts
on from less than others hold. Changes of one partition come one after another. A refusal means that nothing
was added.

A counter is the sum of its shards. A shard is a cell with a path, (node, generation), and holds everything
that this node counted in this generation; its timestamp is its clock. Invariant: only its node writes a
shard, from the newest value of it that there ever was, so of two values the one with the later timestamp
includes the other, and replicas merge shards as they merge any cells.
"""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.structs import replace

from lockstep.coordination.context import CLIENT, CoordinationContext, Terms
from lockstep.coordination.writes import Writes
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import COUNTER, Ask, Count, Effects, End, Round, Target
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store_position import generation_of
from lockstep.values.errors import (
    InvalidRequest,
    LockstepError,
    NotReplica,
    Overloaded,
    PeerTimeout,
    StaleEpoch,
    Unavailable,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import COUNTER_IDS_KEPT_MAX, COUNTER_WAITERS_MAX, REPLICA_RETRY_MS
from lockstep.values.rows import Cell, Mutation, Partition, ReadCommand, Row, Slice
from lockstep.values.tokens import Range

_PATH = struct.Struct(">IQ")
_COUNT = struct.Struct(">q")
_WRAP = 1 << 64
_HALF = 1 << 63


def shard_path(node: int, generation: int) -> bytes:
    return _PATH.pack(node, generation)


def asks(mutation: Mutation, now_s: int) -> ReadCommand:
    """The rows whose counters a mutation of differences changes."""
    columns = sorted({cell.column for row in _rows(mutation) for cell in row.cells})
    slices = tuple(Slice(row.clustering, row.clustering + b"\x00") for row in mutation.rows)
    return ReadCommand(
        mutation.table_id,
        mutation.token - 1,
        mutation.token,
        mutation.key,
        # No row lies in front of every clustering: then only the static row is asked.
        slices or (Slice(b"", b"\x00"),),
        tuple(columns),
        mutation.static is not None,
        False,
        0,
        0,
        now_s,
    )


def counted(mutation: Mutation, present: tuple[Partition, ...], path: bytes) -> Mutation:
    """The differences of `mutation` added to this node's shards in what is there: cells to be written as they
    are, by every replica."""
    partition = present[0] if present else None
    known: dict[tuple[bool, bytes, int], Cell] = {}
    if partition is not None:
        if partition.static is not None:
            known.update(_shards(partition.static, path, is_static=True))
        for row in partition.rows:
            known.update(_shards(row, path, is_static=False))
    static = None
    if mutation.static is not None:
        static = _counted_row(mutation.static, known, path, is_static=True)
    rows = tuple(_counted_row(row, known, path, is_static=False) for row in mutation.rows)
    written = [cell.timestamp_us for row in (*rows, *((static,) if static else ())) for cell in row.cells]
    timestamp_us = max(written, default=mutation.timestamp_us)
    return msgspec.structs.replace(mutation, timestamp_us=timestamp_us, static=static, rows=rows)


def _rows(mutation: Mutation) -> Iterator[Row]:
    if mutation.static is not None:
        yield mutation.static
    yield from mutation.rows


def _shards(row: Row, path: bytes, *, is_static: bool) -> Iterator[tuple[tuple[bool, bytes, int], Cell]]:
    for cell in row.cells:
        if cell.path == path and cell.value is not None:
            yield (is_static, b"" if is_static else row.clustering, cell.column), cell


def _counted_row(
    row: Row, known: dict[tuple[bool, bytes, int], Cell], path: bytes, *, is_static: bool
) -> Row:
    cells = []
    for cell in row.cells:
        assert cell.value is not None and cell.path is None, "a difference is one plain cell"
        earlier = known.get((is_static, b"" if is_static else row.clustering, cell.column))
        count, timestamp_us = _COUNT.unpack(cell.value)[0], cell.timestamp_us
        if earlier is not None:
            assert earlier.value is not None, "only live shards are looked at"
            count += _COUNT.unpack(earlier.value)[0]
            timestamp_us = max(timestamp_us, earlier.timestamp_us + 1)
        wrapped = (count + _HALF) % _WRAP - _HALF
        cells.append(Cell(cell.column, _COUNT.pack(wrapped), timestamp_us, path=path))
    return Row(row.clustering, row.liveness, row.deletion, tuple(cells), row.column_deletions)


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
        context: CoordinationContext,
        engine: StorageEngine,
        writes: Writes,
    ) -> None:
        self._context = context
        self._runtime = context.runtime
        self._engine = engine
        self._writes = writes
        self.incarnation = int.from_bytes(context.runtime.random.bytes(7), "big") + 1
        self._locks: dict[_Place, tuple[asyncio.Lock, int]] = {}
        self._known: OrderedDict[tuple[int, bytes, bytes], asyncio.Future[None]] = OrderedDict()
        context.internode.register(verbs.COUNTER, CounterRequest, CounterReply, self._receive)

    async def _receive(self, peer: PeerInfo, request: CounterRequest) -> CounterReply:
        if request.incarnation != self.incarnation:
            return CounterReply(False, self.incarnation)
        if request.needs_epoch > self._context.plans.epoch:
            await self._context.catch_up(request.needs_epoch, peer.endpoint)
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
        while len(self._known) > COUNTER_IDS_KEPT_MAX:
            self._known.popitem(last=False)
        try:
            await self._count(request)
        except BaseException as error:
            refused = isinstance(error, LockstepError) and error.outcome_known
            if refused:
                self._known.pop(name, None)
            self._settle(outcome, error)
            raise
        self._settle(outcome, None)
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
        plan = self._context.plans.write_plan(mutation.table_id, mutation.token, consistency)
        plan.require_alive(self._context.opinions)
        place = (mutation.table_id, mutation.key)
        lock = self._enter(place)
        try:
            async with lock:
                summed, terms = await self._add(request, deadline_s)
        finally:
            self._leave(place)
        left_ms = (deadline_s - self._runtime.clock.monotonic_s()) * 1000
        if left_ms <= 0:
            raise WriteTimeout(consistency, 1, 1, "COUNTER")
        try:
            await self._writes.begin(summed, consistency, left_ms, "COUNTER", terms)
        except LockstepError as error:
            if not error.outcome_known:
                raise
            # It is added here, and will be seen: whoever sent it must not take it for undone.
            failure = WriteTimeout(consistency, 1, 1, "COUNTER")
            failure.message = f"{failure.message} (the change is counted, but: {error.message})"
            raise failure from error

    async def _add(self, request: CounterRequest, deadline_s: float) -> tuple[Mutation, Terms]:
        """Read, add, keep durably; the cells as every replica is to have them, and how to write them there:
        of a tracked table under the id that they are kept by here."""
        if self._runtime.clock.monotonic_s() >= deadline_s:
            raise Overloaded("too many changes of one counter at a time")
        self._check(request)
        now_s = self._runtime.clock.wall_us() // 1_000_000
        result = await self._engine.read(asks(request.mutation, now_s))
        generation = generation_of(self._engine)
        summed = counted(request.mutation, result.partitions, shard_path(self._context.own_id(), generation))
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

        plan = self._context.plans.write_plan(summed.table_id, summed.token, Consistency(request.consistency))
        given = self._context.replica.keeping.give(plan, summed) if plan.shard is not None else None
        self._context.replica.write(
            WriteRequest(request.epoch, request.needs_epoch, summed, tracking=given), answered
        )
        try:
            await kept
        except LockstepError as error:
            raise WriteTimeout(request.consistency, 0, 1, "COUNTER") from error
        self._runtime.probes.reach("counter.added")
        return summed, CLIENT if given is None else replace(CLIENT, tracking=given)

    def _check(self, request: CounterRequest) -> None:
        """StaleEpoch or NotReplica unless this node owns the partition under the plan of the request."""
        mutation = request.mutation
        placement = self._context.plans.placement(mutation.table_id)
        if placement is None:
            raise NotReplica(f"table id {mutation.table_id} is not known here")
        group = placement.ring.group_for(mutation.token)
        if group.epoch > request.epoch or placement.changed_epoch > request.epoch:
            raise StaleEpoch(placement.epoch, "stale_placement")
        # A pending replica lacks what it counted when it owned the range before.
        if self._context.own_id() not in group.reads:
            raise NotReplica(f"node {self._context.own_id()} counts nothing for token {mutation.token}")
        self._context.replica.require_held(mutation.table_id, Range(mutation.token - 1, mutation.token))

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


class Counters:
    def __init__(self, context: CoordinationContext, leader: CounterLeader) -> None:
        self._context = context
        self._runtime = context.runtime
        self._leader = leader
        #: What peers last said of their process; bounded by the nodes there are.
        self._incarnations: dict[Address, int] = {}

    async def change(self, mutation: Mutation, consistency: Consistency, timeout_ms: float) -> None:
        """Add the differences in `mutation` to counters of one partition. RequestError."""
        if consistency is Consistency.ANY:
            raise InvalidRequest("Consistency level ANY is not supported for counters")
        deadline_s = self._runtime.clock.monotonic_s() + timeout_ms / 1000
        while True:
            plan = self._context.plans.write_plan(mutation.table_id, mutation.token, consistency)
            plan.require_alive(self._context.opinions)
            if await self._counted(plan, mutation, deadline_s):
                return
            if self._runtime.clock.monotonic_s() + REPLICA_RETRY_MS / 1000 >= deadline_s:
                # Every replica that was asked has refused for sure.
                raise Unavailable(consistency, plan.required, 0)
            await asyncio.sleep(REPLICA_RETRY_MS / 1000)

    async def _counted(self, plan: Plan, mutation: Mutation, deadline_s: float) -> bool:
        """Whether it is counted; not when all that may count have refused, or one of them is ahead."""
        round_ = Round(COUNTER, Count(self._leaders(plan), 1))
        effects = round_.begin()
        while (target := _asked(effects)) is not None:
            left_ms = (deadline_s - self._runtime.clock.monotonic_s()) * 1000
            if left_ms <= 0:
                break
            try:
                if await self._ask(target, plan, mutation, left_ms):
                    return True
                effects = round_.refused(target.node)
            except LockstepError as error:
                effects = round_.failed(target, error)
                if round_.end is End.FAILED:
                    if isinstance(error, PeerTimeout):
                        raise WriteTimeout(plan.consistency, 0, plan.required, "COUNTER") from error
                    raise
                self._runtime.probes.reach("counter.next_leader" if round_.end is None else "counter.behind")
        if round_.source is not None:
            await self._learn(*round_.source)
        return False

    def _leaders(self, plan: Plan) -> list[Target]:
        """Who may count, in the order to ask: those alive first, this node and its data centre before others.
        A level of one data centre is understood there only."""
        local = plan.needs[0].dc if len(plan.needs) == 1 else ""
        return [
            target
            for target in plan.near_first
            if target.node in plan.group.reads
            and local in ("", target.dc)
            and self._context.alive(target.node)
        ]

    async def _ask(self, target: Target, plan: Plan, mutation: Mutation, left_ms: float) -> bool:
        """Whether it is counted; not when the peer's process is not the one that was known."""
        request = CounterRequest(
            plan.epoch,
            plan.needs_epoch,
            mutation,
            plan.consistency,
            left_ms,
            self._incarnations.get(target.address, 0),
        )
        if target.node == self._context.own_id():
            return (await self._leader.count(request)).counted
        reply: CounterReply = await self._context.internode.request(
            target.address, verbs.COUNTER, request, left_ms
        )
        if reply.counted:
            return True
        self._incarnations[target.address] = reply.incarnation
        again = CounterRequest(
            plan.epoch, plan.needs_epoch, mutation, plan.consistency, left_ms, reply.incarnation
        )
        reply = await self._context.internode.request(target.address, verbs.COUNTER, again, left_ms)
        return reply.counted

    async def _learn(self, epoch: int, source: Target) -> None:
        try:
            await self._context.catch_up(epoch, source.address)
        except LockstepError:
            # Asked again shortly: another replica may tell more.
            self._runtime.probes.reach("counter.catch_up_failed")


def _asked(effects: Effects) -> Target | None:
    """Who is to be asked next."""
    return next((effect.targets[0] for effect in effects if isinstance(effect, Ask)), None)
