"""A node that was away gets what the others hold without single mutations: the rows of a range, from one of
them, and then it holds their ids.

While a replica is away for long, the others let go of the journal entries that all of them hold; what these
stand for is in their tables alone. Who comes back compares its tables with those of a holder by digests, and
takes the rows that differ. Invariants. What is claimed was held, durably, by the holder before the first row
was read there, and all rows that lacked are durable here. From before the first row is taken until this node
holds everything that the holder held after the last one, no data of the range is shown: a row may be of a
mutation of which the others are not here. That this is so is noted durably. A holder that is getting rows
itself has rows of others' mutations as well: those others are holders too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.throttle import Throttle
from lockstep.node.context import NodeContext
from lockstep.node.work.repairs import LEAVES_TOGETHER_MAX, parts_that_differ
from lockstep.placement.placements import PlacedRange
from lockstep.replica.merging import lacking, merge_answers
from lockstep.replica.replica import ReplicaService
from lockstep.replica.tracked import TrackedReplica, placed_at
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rows.difference import repair_mutation
from lockstep.storage.shard_logs import Shard, Taking
from lockstep.tracking.held import NOTHING, Held
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError, NotReplica, PeerTimeout
from lockstep.values.hash_tree import MerkleTree, differing, joined_numbers, split_evenly
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    REPAIR_LEAF_BYTES,
    REPAIR_LEAVES_MAX,
    STREAM_ESTIMATE_PAIRS,
    STREAM_IDLE_MS,
    STREAM_TIMEOUT_MS,
)
from lockstep.values.node_limits import (
    COHORT_LEAVES_AT_ONCE,
    COHORT_PAGE_ROWS,
    COHORT_PASSES_MAX,
    RECONCILE_INTERVAL_MS,
)
from lockstep.values.rows import ALL_ROWS, Partition, Position, ReadCommand, ReadResult
from lockstep.values.tokens import Range


class Guard(msgspec.Struct, frozen=True, array_like=True):
    """What a holder answers by: the range as the asker knows it, and the start of the holder, 0 for any."""

    epoch: int
    shard: Shard
    left: int
    since: int
    start: int = 0


class AskCohort(msgspec.Struct, frozen=True, array_like=True):
    """What the receiver holds of a range; with a table how large that is, and with leaves their digests."""

    guard: Guard
    table_id: int = 0
    leaves: tuple[Range, ...] = ()


class Cohort(msgspec.Struct, frozen=True, array_like=True):
    """`apart`: what of `held` has no entries. `sources`: others of whose mutations the tables may have
    parts."""

    epoch: int
    start: int
    held: Held = NOTHING
    apart: Held = NOTHING
    sources: tuple[int, ...] = ()
    size_bytes: int = 0
    digests: bytes = b""


class AskCohortRows(msgspec.Struct, frozen=True, array_like=True):
    guard: Guard
    command: ReadCommand


class CohortTaking:
    """`offers`: ranges of which another replica holds what this node lacks, and which one; set anew by each
    round. `throttle` is shared with streams."""

    def __init__(
        self,
        context: NodeContext,
        tracked: TrackedReplica,
        replica: ReplicaService,
        engine: StorageEngine,
        throttle: Throttle,
        new_mutation_id: Callable[[], bytes],
    ) -> None:
        self._context = context
        self._new_mutation_id = new_mutation_id
        self._runtime = context.runtime
        self._tracked = tracked
        self._journal = tracked.journal
        self._replica = replica
        self._engine = engine
        self._throttle = throttle
        self.offers: dict[Shard, int] = {}
        #: Ranges that were taken, what was sent for them, and ids that were claimed.
        self.taken = 0
        self.bytes = 0
        self.claimed = 0
        context.internode.register(verbs.TRACKED_COHORT, AskCohort, Cohort, self._serve)
        context.internode.register(verbs.TRACKED_COHORT_ROWS, AskCohortRows, ReadResult, self._serve_rows)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "cohorts")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(RECONCILE_INTERVAL_MS / 1000)
            await self.round()

    async def round(self) -> None:
        """Take what is offered."""
        offers, self.offers = self.offers, {}
        try:
            await self._begin(offers)
        except LockstepError:
            return  # The store has said that it failed, and this node stops.
        for shard, source in offers.items():
            try:
                await self._take(shard, source)
            except (LockstepError, TimeoutError) as error:
                self._runtime.probes.reach("cohort.not_taken")
                told = {"range": shard[1], "source": source, "error": str(error)}
                self._context.log("reconcile.cohort_failed", **told)

    # -- at a holder ------------------------------------------------------------------------------

    async def _serve(self, peer: PeerInfo, request: AskCohort) -> Cohort:
        await self._context.catch_up.reach(request.guard.epoch, peer.endpoint)
        placed, start = self._holding(request.guard), self._context.identity.value.generation
        shard, epoch = request.guard.shard, self._context.cluster().epoch
        if request.table_id:
            return await self._served_digests(request, placed, epoch, start)
        taking, journal = self._journal.taking(shard), self._journal
        held, apart = journal.held(shard), journal.apart(shard)
        if taking is not None and taking.is_joined:
            held, apart = journal.logs_of(shard).open, NOTHING
        await journal.synced()
        return Cohort(epoch, start, held, apart, taking.sources if taking is not None else ())

    async def _served_digests(
        self, request: AskCohort, placed: PlacedRange, epoch: int, start: int
    ) -> Cohort:
        if self._context.cluster().table(request.table_id) is None:
            return Cohort(epoch, start)
        self._replica.require_held(request.table_id, placed.range)
        if not request.leaves:
            size, _ = self._engine.estimated_bytes(request.table_id, placed.range, STREAM_ESTIMATE_PAIRS)
            return Cohort(epoch, start, size_bytes=size)
        found = await self._engine.leaf_digests(request.table_id, request.leaves, 0)
        self._holding(request.guard)
        return Cohort(epoch, start, digests=found)

    async def _serve_rows(self, peer: PeerInfo, request: AskCohortRows) -> ReadResult:
        await self._context.catch_up.reach(request.guard.epoch, peer.endpoint)
        placed, command = self._holding(request.guard), request.command
        if self._context.cluster().table(command.table_id) is None:
            return ReadResult(())
        self._replica.require_held(command.table_id, placed.range)
        found = await self._engine.read(command)
        self._holding(request.guard)
        return found

    def _holding(self, guard: Guard) -> PlacedRange:
        """NotReplica unless this node is read from for the range as the other one knows it, has lost nothing
        of it, and did not start again meanwhile."""
        placed, own = placed_at(self._context.cluster(), guard.shard), self._context.own_id()
        if placed is None or (placed.range.left, placed.group.epoch) != (guard.left, guard.since):
            raise NotReplica(f"the range up to {guard.shard[1]} is another one by now")
        if own not in placed.group.reads or not self._tracked.is_filled():
            raise NotReplica(f"node {own} has not all of the range up to {guard.shard[1]}")
        if guard.start and guard.start != self._context.identity.value.generation:
            raise NotReplica(f"node {own} has started again")
        return placed

    # -- at who was away --------------------------------------------------------------------------

    async def _begin(self, offers: dict[Shard, int]) -> None:
        """Show no data of these ranges from now on, also after a start."""
        for shard, source in offers.items():
            before = self._journal.taking(shard) or Taking(())
            after = msgspec.structs.replace(before, sources=tuple(sorted({*before.sources, source})))
            if before != after and self._is_own(shard):
                self._journal.take_from(shard, after)
        if offers:
            await self._journal.synced()

    def _is_own(self, shard: Shard) -> bool:
        placed = placed_at(self._context.cluster(), shard)
        return placed is not None and self._context.own_id() in placed.group.reads

    async def _take(self, shard: Shard, source: int) -> None:
        cluster = self._context.cluster()
        placed, info = placed_at(cluster, shard), cluster.node(NodeId(source))
        if placed is None or info is None or not self._is_own(shard) or not self._tracked.is_filled():
            return
        guard = Guard(cluster.epoch, shard, placed.range.left, placed.group.epoch)
        address, refills = (info.address, info.internode_port), self._tracked.refills

        def require() -> None:
            if placed_at(self._context.cluster(), shard) != placed or not self._is_own(shard):
                raise NotReplica(f"the range up to {shard[1]} is another one by now")
            if not self._tracked.is_filled() or self._tracked.refills != refills:
                raise NotReplica("this node has lost a part of its tables")

        told = await self._ask(address, AskCohort(guard))
        guard = msgspec.structs.replace(guard, start=told.start)
        also = set(told.sources)
        for number in range(COHORT_PASSES_MAX):
            if number == 0 or not self._journal.held(shard).covers(told.apart):
                for table_id in self._tables(shard):
                    await self._take_table(guard, placed.range, address, table_id, require)
                await self._claim(shard, told.apart, require)
            told = await self._ask(address, AskCohort(guard))
            also.update(told.sources)
            rest = told.held.difference(self._journal.held(shard)).difference(told.apart)
            if rest:
                await self._tracked.pull(shard, rest, address, STREAM_TIMEOUT_MS)
            require()
            if self._journal.held(shard).covers(told.held):
                await self._end(shard, source, also)
                return
        raise PeerTimeout(f"node {source} goes on getting what this node lacks")

    def _tables(self, shard: Shard) -> list[int]:
        return sorted(table for table, group in self._journal.tables.items() if group == shard[0])

    async def _claim(self, shard: Shard, ids: Held, require: Callable[[], None]) -> None:
        require()
        before = self._journal.held(shard)
        self._journal.claim(shard, ids)
        self.claimed += ids.difference(before).count
        await self._journal.synced()
        self._runtime.probes.reach("cohort.claimed")

    async def _end(self, shard: Shard, source: int, also: set[int]) -> None:
        """Everything of one holder is here; what is left are those of whose mutations it had parts."""
        taking = self._journal.taking(shard)
        if taking is None:
            return
        placed, own = placed_at(self._context.cluster(), shard), self._context.own_id()
        assert placed is not None, "it was just looked at"
        wanted = {*taking.sources, *also} - {source, own}
        left = tuple(sorted(wanted & set(placed.group.writes)))
        after = msgspec.structs.replace(taking, sources=left) if left else None
        self._journal.take_from(shard, after)
        await self._journal.synced()
        self.taken += 1
        self._runtime.probes.reach("cohort.taken")

    # -- rows -------------------------------------------------------------------------------------

    async def _take_table(
        self, guard: Guard, tokens: Range, source: Address, table_id: int, require: Callable[[], None]
    ) -> None:
        if self._context.cluster().table(table_id) is None:
            return
        theirs = await self._ask(source, AskCohort(guard, table_id))
        size, _ = self._engine.estimated_bytes(table_id, tokens, STREAM_ESTIMATE_PAIRS)
        wanted = max(size, theirs.size_bytes) // REPAIR_LEAF_BYTES
        leaves = split_evenly((tokens,), min(wanted, REPAIR_LEAVES_MAX))
        for at in range(0, len(leaves), COHORT_LEAVES_AT_ONCE):
            some = leaves[at : at + COHORT_LEAVES_AT_ONCE]
            require()
            told, own = await asyncio.gather(
                self._ask(source, AskCohort(guard, table_id, some)),
                self._engine.leaf_digests(table_id, some, 0),
            )
            if not told.digests:
                return  # The table is gone there, and soon here.
            numbers = differing([MerkleTree(told.digests), MerkleTree(own)])
            for range_ in joined_numbers(some, numbers, LEAVES_TOGETHER_MAX):
                await self._take_rows(guard, range_, source, table_id, require)

    async def _take_rows(
        self, guard: Guard, tokens: Range, source: Address, table_id: int, require: Callable[[], None]
    ) -> None:
        after: Position | None = None
        while True:
            now_s = self._runtime.clock.wall_us() // 1_000_000
            command = ReadCommand(
                *(table_id, tokens.left, tokens.right, None, ALL_ROWS, (), True, False),
                *(COHORT_PAGE_ROWS, 0, now_s, after),
            )
            asked = AskCohortRows(guard, command)
            theirs: ReadResult = await self._context.internode.request(
                source, verbs.TRACKED_COHORT_ROWS, asked, STREAM_TIMEOUT_MS
            )
            results = (await self._engine.read(command), theirs)
            merged, after = merge_answers(results, False)
            require()
            await self._store(table_id, parts_that_differ(merged, results, after, 0), results)
            if after is None:
                return

    async def _store(self, table_id: int, parts: Sequence[Partition], results: Sequence[ReadResult]) -> None:
        """Apply what this node lacks, durably, in the step in which it was seen to be a replica."""
        if self._context.cluster().table(table_id) is None:
            return
        sequence = size = 0
        for _, (missing, _) in lacking(parts, results):
            if missing is None:
                continue
            mutation = repair_mutation(table_id, missing, self._new_mutation_id())
            sequence = self._engine.apply(mutation, by_repair=True)
            size += len(encode(mutation))
        if size:
            self._runtime.probes.reach("cohort.rows_taken")
            self.bytes += size
            await self._engine.synced(sequence)
            while not await self._throttle.take(size, STREAM_IDLE_MS):
                self._runtime.probes.reach("cohort.throttled")

    async def _ask(self, source: Address, asked: AskCohort) -> Cohort:
        told: Cohort = await self._context.internode.request(
            source, verbs.TRACKED_COHORT, asked, STREAM_TIMEOUT_MS
        )
        return told
