"""The replica side: judges the plan a request was made with, applies or reads, answers when durable.

Invariants. The check of the epoch and the apply are one synchronous step, so no metadata change lies
between them. A straggler is refused before and after it is executed: a write is acknowledged, and a read
answered, only when the replica group it was planned with still holds. A write is acknowledged only after it
is synced. Writes are numbered as they are accepted, epochs of acceptance never fall, and `drain` returns only
when all accepted under older epochs are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import mmh3
import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.serving import Respond, waited_too_long
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.tablets.load import TabletLoad
from lockstep.quorum.failure_codes import (
    CATCH_UP_FAILED,
    NOT_REPLICA,
    READ,
    STALE_AFTERWARDS,
    STALE_DROPPED,
    STALE_KEYSPACE,
    STALE_PLACEMENT,
    STALE_TABLE,
    UNKNOWN_TABLE,
    WRITE,
    Refusals,
)
from lockstep.quorum.plans import PlanBook, TablePlacement
from lockstep.replica.keeping import Keeping
from lockstep.replica.merging import SUMMARY, reply_to, with_known
from lockstep.replica.messages import Known, ReadReply, ReadRequest, Tracking, WriteReply, WriteRequest
from lockstep.replica.tracked import require_kept
from lockstep.runtime.ports import Runtime
from lockstep.storage.journal import Journal
from lockstep.storage.shard_logs import Shard
from lockstep.tracking.held import all_of
from lockstep.values.codec import encode
from lockstep.values.errors import InvalidRequest, LockstepError, NotReplica, RangeLacking, StaleEpoch
from lockstep.values.node_limits import WRITES_A_TURN
from lockstep.values.rows import Mutation, ReadCommand, ReadResult, has_large_row, without_log
from lockstep.values.tokens import Range

#: Tablets that are counted between two readings: more than a node is to hold, so that what nobody reads, as
#: without a leader, ends somewhere.
COUNTED_MAX: Final = 100_000
#: A rate over less time says nothing: what was said last is said again.
RATE_AFTER_S: Final = 1.0

Key = tuple[int, int]
_NO_ROWS: Final = ReadResult(())


class TabletCounts:
    """How many requests each tablet of this node served, by group and last token: for the balancer, never for
    decisions of who owns what. Counting changes nothing else, and costs one look-up a request."""

    def __init__(self) -> None:
        self._reads: dict[Key, int] = {}
        self._writes: dict[Key, int] = {}
        self._since_s: float | None = None
        self._rates: dict[Key, tuple[float, float]] = {}

    def read(self, key: Key) -> None:
        _count(self._reads, key)

    def wrote(self, key: Key) -> None:
        _count(self._writes, key)

    def rates(self, now_s: float) -> dict[Key, tuple[float, float]]:
        """Reads and writes a second since this was asked last, or as it was said then a moment ago."""
        since_s = self._since_s
        if since_s is not None and now_s - since_s < RATE_AFTER_S:
            return self._rates
        reads, writes = self._reads, self._writes
        self._reads, self._writes, self._since_s = {}, {}, now_s
        if since_s is not None:
            spent_s = now_s - since_s
            keys = dict.fromkeys((*reads, *writes))
            self._rates = {key: (reads.get(key, 0) / spent_s, writes.get(key, 0) / spent_s) for key in keys}
        return self._rates


def _count(counts: dict[Key, int], key: Key) -> None:
    known = counts.get(key, 0)
    if known or len(counts) < COUNTED_MAX:
        counts[key] = known + 1


def _of_range(
    journal: Journal, shard: Shard, command: ReadCommand, tracking: Tracking, *, lists_all: bool
) -> Known:
    """What is held of one range."""
    logs = journal.logs_of(shard)
    apart, over, wants_held = logs.apart, b"", tracking is Tracking.DATA
    if lists_all:
        held = logs.held if wants_held else logs.reconciled
    else:
        listed, reconciled, over = logs.listed
        held = listed if wants_held else reconciled
    recent = journal.recent(shard, command)
    partial = logs.taking is not None or not journal.keeps(shard)
    if not apart and not partial and not logs.tells_open:
        return Known(held, recent, over=over)
    holders = tuple(sorted(journal.holders(shard, apart))) if apart else ()
    return Known(held, recent, apart, holders, partial, over, open=logs.open)


def _of_ranges(several: Sequence[Known]) -> Known:
    """What is held of all of these ranges."""
    over = tuple(one.over for one in several)
    holders = [frozenset(one.holders) for one in several if one.apart]
    return Known(
        all_of(one.held for one in several),
        all_of(one.recent for one in several),
        all_of(one.apart for one in several),
        tuple(sorted(frozenset.intersection(*holders))) if holders else (),
        any(one.partial for one in several),
        mmh3.hash_bytes(encode(over)) if any(over) else b"",
        open=all_of(one.open for one in several),
    )


def load_of(size_bytes: int, rate: tuple[float, float]) -> TabletLoad:
    return TabletLoad(size_bytes, *rate)


#: `await catch_up(epoch, source address)`: returns when the epoch is applied here, or raises PeerTimeout.
CatchUp = Callable[[int, Address], Awaitable[None]]


class Engine(Protocol):
    """What replication needs of one node's storage."""

    def apply(self, mutation: Mutation, *, first_epoch: int | None) -> int: ...

    async def synced(self, sequence: int) -> None: ...

    async def read(self, command: ReadCommand) -> ReadResult: ...

    def read_now(self, command: ReadCommand) -> ReadResult | None: ...


#: A write that was applied and is not yet durable: its sequence, the epoch at which it was accepted, who gets
#: a WriteReply or an error, and the request.
_Unsynced = tuple[int, int, Callable[[Any], None], WriteRequest]


class ReplicaService:
    """`refusals` counts what was not taken as it came, and why."""

    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: Engine,
        metadata: Callable[[], ClusterMetadata],
        catch_up: CatchUp,
        own_id: Callable[[], int],
        require_held: Callable[[int, Range], None] = lambda _table_id, _tokens: None,
        journal: Journal | None = None,
    ) -> None:
        self._runtime = runtime
        #: Raises RangeLacking when this node may lack what it stored of a table's range.
        self.require_held = require_held
        self._probes = runtime.probes
        #: Of tracked tables; None: there are none here.
        self.journal = journal
        self._engine = engine
        self._metadata = metadata
        self._catch_up = catch_up
        self._plans = PlanBook(metadata, own_id)
        self.keeping = Keeping(runtime, journal, self._plans)
        self.refusals = Refusals(runtime.probes)
        self.counts = TabletCounts()
        self._unsynced: list[_Unsynced] = []
        self._syncing = False
        self._accepted = 0
        self._finished = 0
        self._drains: list[tuple[int, asyncio.Future[None]]] = []
        #: Why this store can make nothing durable any more; set by the first failed sync.
        self._failed: LockstepError | None = None
        internode.register_fast(verbs.WRITE, WriteRequest, WriteReply, self._receive_write, shares=True)
        internode.register_fast(verbs.READ_REPAIR, WriteRequest, WriteReply, self._receive_write)
        internode.register_fast(verbs.HINT, WriteRequest, WriteReply, self._receive_write)
        internode.register_fast(verbs.READ, ReadRequest, ReadReply, self._receive_read)

    # -- writes -----------------------------------------------------------------------------------

    def _receive_write(self, peer: PeerInfo, request: WriteRequest, respond: Respond) -> None:
        if request.needs_epoch <= self._metadata().epoch:
            self.write(request, respond)
        else:
            self.take(peer.endpoint, request, respond)

    def take(self, source: Address, request: WriteRequest, respond: Callable[[Any], None]) -> None:
        """As `write`, once this node has caught up with the plan; `source` is who knows what that needs."""
        if request.needs_epoch > self._metadata().epoch:
            work = self._write_after_catch_up(source, request, respond)
            self._runtime.tasks.spawn(work, "replica-catch-up")
            return
        self.write(request, respond)

    async def _write_after_catch_up(
        self, source: Address, request: WriteRequest, respond: Callable[[Any], None]
    ) -> None:
        try:
            await self._reach(request.needs_epoch, source, WRITE)
            self._require_waiting(respond)
            self.write(request, respond)
        except LockstepError as error:
            respond(error)

    async def _reach(self, epoch: int, source: Address, kind: str) -> None:
        """Learn a change that matters before judging. PeerTimeout when it does not arrive."""
        self.refusals.waiting(kind)
        try:
            await self._catch_up(epoch, source)
        except LockstepError:
            self.refusals.refused(kind, CATCH_UP_FAILED)
            raise

    def _require_waiting(self, respond: Callable[[Any], None]) -> None:
        """Overloaded when the sender gave a request up while it waited here."""
        if isinstance(respond, Respond) and respond.until_s < self._runtime.clock.monotonic_s():
            self._probes.reach("replica.expired")
            raise waited_too_long()

    def write(self, request: WriteRequest, answer: Callable[[Any], None]) -> None:
        """Judge and apply in one step; `answer` gets a WriteReply once durable, or a LockstepError.

        Raises the refusal (StaleEpoch, NotReplica) or the engine's error when nothing was applied.
        The caller has seen to it that this node has applied `needs_epoch`.
        """
        mutation = request.mutation
        epoch = request.epoch
        placement = self._plans.placement(mutation.table_id)
        if placement is None:
            raise self._unknown_table(mutation.table_id, epoch, WRITE)
        placed = placement.ring.range_at(mutation.token)
        group = placed.group
        if group.epoch > epoch or placement.changed_epoch > epoch:
            raise self._stale(placement, mutation.table_id, epoch, WRITE)
        is_own = self._plans.own in group.writes
        if mutation.captured is not None:
            mutation, is_own = self._own_part(mutation, mutation.captured, epoch, is_own)
        is_of_log = mutation.table_id != request.mutation.table_id
        if not is_own:
            self.refusals.refused(WRITE, NOT_REPLICA)
            raise NotReplica(f"node {self._plans.own} receives no writes for token {mutation.token}")
        has_views = placement.has_views and not is_of_log
        if has_views:
            # What follows for a view is worked out from the row that was there.
            self.require_held(mutation.table_id, Range(mutation.token - 1, mutation.token))
        self._probes.reach("replica.write.accepted")
        if placement.is_tracked:
            if is_of_log:
                sequence = self.keeping.keep_captured(request.mutation, request.tracking)
            else:
                of = placed.range.right, request.mutation, request.tracking, request.first_epoch
                sequence = self.keeping.keep(placement, *of)[1]
        else:
            first_epoch = request.first_epoch if has_views else None
            sequence = self._engine.apply(mutation, first_epoch=first_epoch)
        self._accepted += 1
        if placement.has_tablets:
            self.counts.wrote((placement.ring.id, placed.range.right))
        self._probes.reach("replica.write.applied")
        self._unsynced.append((sequence, placement.epoch, answer, request))
        if not self._syncing:
            self._syncing = True
            self._runtime.tasks.spawn(self._sync(), "replica-sync")

    def _own_part(
        self, mutation: Mutation, captured: Mutation, epoch: int, is_own: bool
    ) -> tuple[Mutation, bool]:
        """What this node takes of a change and of what it adds to the log, and whether that is anything.
        A log that is gone takes nothing."""
        placement = self._plans.placement(captured.table_id)
        if placement is None:
            return without_log(mutation), is_own
        group = placement.ring.group_for(captured.token)
        if group.epoch > epoch or placement.changed_epoch > epoch:
            raise self._stale(placement, captured.table_id, epoch, WRITE)
        if self._plans.own in group.writes:
            return (mutation, True) if is_own else (captured, True)
        if is_own:
            self._probes.reach("capture.write.without_log")
        return without_log(mutation), is_own

    async def _sync(self) -> None:
        """Wait for durability of everything applied so far, answer it, and again while there is more."""
        while self._unsynced:
            batch, self._unsynced = self._unsynced, []
            try:
                # What a tracked table holds already has the sequence of then.
                await self._engine.synced(max(sequence for sequence, _, _, _ in batch))
            except LockstepError as error:
                self._failed = error
                for _, _, answer, _ in batch:
                    answer(error)
            else:
                self._probes.reach("replica.write.synced")
                for at in range(0, len(batch), WRITES_A_TURN):
                    if at:
                        await asyncio.sleep(0)
                    self._acknowledge(batch[at : at + WRITES_A_TURN])
            self._finished += len(batch)
            self._wake_drains()
        self._syncing = False

    def _acknowledge(self, batch: Sequence[_Unsynced]) -> None:
        """Answer durable writes: those of other nodes in crowds, for one sync has many of them."""
        crowds: dict[int, list[Respond]] = {}
        reply, epoch = WriteReply(0), self._metadata().epoch
        for _, accepted_epoch, answer, request in batch:
            if accepted_epoch != epoch and (refusal := self._fenced(request)) is not None:
                answer(refusal)
            elif isinstance(answer, Respond):
                crowds.setdefault(accepted_epoch, []).append(answer)
            else:
                if reply.accepted_epoch != accepted_epoch:
                    reply = WriteReply(accepted_epoch)
                answer(reply)
        for accepted_epoch, answers in crowds.items():
            Respond.all(answers, WriteReply(accepted_epoch))

    def _fenced(self, request: WriteRequest) -> StaleEpoch | None:
        """The refusal of a write whose replica group changed while it was executed; None when it holds.

        What was applied stays: the coordinator plans again and sends the identical mutation. A table that
        changed or is gone does not matter, for nobody looks for the write elsewhere.
        """
        mutation, captured = request.mutation, request.mutation.captured
        placement = self._plans.placement(mutation.table_id)
        holds = placement is None or placement.ring.group_for(mutation.token).epoch <= request.epoch
        if holds and captured is not None and (log := self._plans.placement(captured.table_id)) is not None:
            placement, holds = log, log.ring.group_for(captured.token).epoch <= request.epoch
        if placement is None or holds:
            return None
        self._probes.reach("replica.write.fenced")
        self.refusals.refused(WRITE, STALE_AFTERWARDS)
        return StaleEpoch(placement.epoch, STALE_AFTERWARDS)

    # -- reads ------------------------------------------------------------------------------------

    def _receive_read(self, peer: PeerInfo, request: ReadRequest, respond: Respond) -> None:
        if request.needs_epoch <= self._metadata().epoch:
            reply = self.read_now(request)
            if reply is not None:
                respond(reply)
                return
        self._runtime.tasks.spawn(self._read_later(peer.endpoint, request, respond), "replica-read")

    async def _read_later(self, source: Address, request: ReadRequest, respond: Respond) -> None:
        try:
            if request.needs_epoch > self._metadata().epoch:
                await self._reach(request.needs_epoch, source, READ)
                self._require_waiting(respond)
            reply = await self.read(request)
        except LockstepError as error:
            respond(error)
        else:
            respond(reply)

    def read_now(self, request: ReadRequest) -> ReadReply | None:
        """As `read`, when the engine can answer in this very step; None when it cannot."""
        accepted_epoch = self._check_read(request)
        if request.tracking is Tracking.SUMMARY and (self.journal is None or not self.journal.is_synced):
            return None  # What is told is durable first.
        known = self._known(request)
        if request.tracking is Tracking.SUMMARY:
            return ReadReply(accepted_epoch, _NO_ROWS, SUMMARY, 0, known)
        if known is not None and known.partial:
            return None
        result = self._engine.read_now(request.command)
        return None if result is None else with_known(reply_to(request, accepted_epoch, result), known)

    def _known(self, request: ReadRequest) -> Known | None:
        """What the answer of this very step holds."""
        if request.tracking is Tracking.NONE:
            return None
        known = self.known(request.command, request.tracking, lists_all=request.lists_all)
        if known is None:
            raise InvalidRequest(f"table id {request.command.table_id} is not tracked")
        if request.names_held and request.tracking is Tracking.SUMMARY:
            data = self.known(request.command, Tracking.DATA, lists_all=request.lists_all)
            assert data is not None, "the table is tracked"
            return msgspec.structs.replace(known, whole=data.held)
        return known

    def known(self, command: ReadCommand, tracking: Tracking, *, lists_all: bool = True) -> Known | None:
        """What this node holds in this very step; None of a table that is not tracked."""
        placement, journal = self._plans.placement(command.table_id), self.journal
        if journal is None or placement is None or not placement.is_tracked:
            return None
        ring = placement.ring
        # Who asks may have heard of another cut.
        several = [
            _of_range(journal, (ring.id, one.range.right), command, tracking, lists_all=lists_all)
            for one in ring.overlapping(Range(command.left, command.right))
        ]
        return several[0] if len(several) == 1 else _of_ranges(several)

    def require_whole(self, table_id: int, token: int) -> None:
        """RangeLacking while this node gets what it missed of a tracked table's range: its tables may have
        parts of mutations."""
        placement, journal = self._plans.placement(table_id), self.journal
        if journal is None or placement is None or not placement.is_tracked:
            return
        shard = placement.ring.id, placement.ring.range_at(token).range.right
        if journal.taking(shard) is not None:
            raise RangeLacking(f"this node is getting what it missed of the range up to {shard[1]}")

    async def _summary(self, request: ReadRequest, accepted_epoch: int) -> ReadReply:
        known = self._known(msgspec.structs.replace(request, tracking=Tracking.SUMMARY))
        assert self.journal is not None, "a summary is of a journal"
        await self.journal.synced()
        self._check_read(request)
        return ReadReply(accepted_epoch, _NO_ROWS, SUMMARY, 0, known)

    async def read(self, request: ReadRequest) -> ReadReply:
        """Read while this node is a read replica of everything asked, under a plan that still holds.

        StaleEpoch or NotReplica otherwise, also when that changed while the read ran.
        """
        accepted_epoch = self._check_read(request)
        if request.tracking is Tracking.SUMMARY:
            return await self._summary(request, accepted_epoch)
        # The engine looks in the same step.
        known = self._known(request)
        if known is not None and known.partial:
            self._probes.reach("read.tracked_partial")
            return await self._summary(request, accepted_epoch)
        result = await self._engine.read(request.command)
        reply: ReadReply | None = None
        if has_large_row((result,)):
            reply = await self._runtime.tasks.run_blocking(partial(reply_to, request, accepted_epoch, result))
        self._check_read(request)
        return with_known(reply or reply_to(request, accepted_epoch, result), known)

    def _check_read(self, request: ReadRequest) -> int:
        command = request.command
        placement = self._plans.placement(command.table_id)
        if placement is None:
            raise self._unknown_table(command.table_id, request.epoch, READ)
        own = self._plans.own
        if placement.changed_epoch > request.epoch:
            raise self._stale(placement, command.table_id, request.epoch, READ)
        if command.left + 1 == command.right:
            groups: Iterable[ReplicaGroup] = (placement.ring.group_for(command.right),)
        else:
            overlapping = placement.ring.overlapping(Range(command.left, command.right))
            groups = (placed.group for placed in overlapping)
        if request.tracking is Tracking.NONE and placement.ring.replication.has_witnesses:
            require_kept(self.journal, placement.ring, Range(command.left, command.right), self.refusals)
        for group in groups:
            if group.epoch > request.epoch:
                raise self._stale(placement, command.table_id, request.epoch, READ)
            # A pending replica answers too: quorum reads ask it what it lacks (see plans.Plan).
            if own not in group.writes:
                self.refusals.refused(READ, NOT_REPLICA)
                raise NotReplica(f"node {own} answers no reads of tokens behind {command.left}")
        self.require_held(command.table_id, Range(command.left, command.right))
        if placement.has_tablets:
            self.counts.read((placement.ring.id, placement.ring.range_at(command.right).range.right))
        return placement.epoch

    # -- judging ----------------------------------------------------------------------------------

    def _unknown_table(self, table_id: int, epoch: int, kind: str) -> StaleEpoch | NotReplica:
        newest = self._metadata().epoch
        if newest > epoch:
            self.refusals.refused(kind, STALE_DROPPED)
            return StaleEpoch(newest, STALE_DROPPED)
        self.refusals.refused(kind, UNKNOWN_TABLE)
        return NotReplica(f"table id {table_id} is not known at epoch {newest}")

    def _stale(self, placement: TablePlacement, table_id: int, epoch: int, kind: str) -> StaleEpoch:
        """The refusal of a plan made at `epoch`, of a table that is known here."""
        self._probes.reach("replica.refused.stale")
        table = self._metadata().table(table_id)
        assert table is not None, "a table with a placement is in the schema"
        if placement.changed_epoch <= epoch:
            reason = STALE_PLACEMENT
        else:
            reason = STALE_TABLE if table.epoch > epoch else STALE_KEYSPACE
        self.refusals.refused(kind, reason)
        return StaleEpoch(placement.epoch, reason)

    # -- drain ------------------------------------------------------------------------------------

    async def drain(self, epoch: int) -> None:
        """Return when every write accepted here under an epoch below `epoch` is durable.

        The caller has seen to it that this node has applied `epoch`. Raises the engine's error when a
        write could not be made durable: nothing may then be built on this store.
        """
        assert self._metadata().epoch >= epoch, "a node drains for an epoch it has applied"
        await self._probes.linger("replica.drain")
        if self._failed is not None:
            raise self._failed
        if self._finished < self._accepted:
            # Acceptance is in epoch order, so waiting for all accepted so far includes the older ones.
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._drains.append((self._accepted, waiting))
            await waiting
        if self._failed is not None:
            raise self._failed

    def unfinished(self) -> int:
        """Writes accepted and not yet durable."""
        return self._accepted - self._finished

    def _wake_drains(self) -> None:
        still: list[tuple[int, asyncio.Future[None]]] = []
        for number, waiting in self._drains:
            if number > self._finished:
                still.append((number, waiting))
            elif not waiting.done():
                waiting.set_result(None)
        self._drains = still
