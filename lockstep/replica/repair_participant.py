"""A participant of repairs: digests of what it holds, its rows, and taking what it lacks.

Invariants. Everything is answered only while the repair's session is open in this node's own metadata, and a
change is applied in the same step in which that, and that this node is a replica of it, is seen. A tree is
built once for one question, however often that is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.quorum.plans import PlanBook
from lockstep.replica.messages import About, AskRows, AskTree, Mend, Mended, Note, Noted, Tree
from lockstep.replica.session_guards import SessionGuards
from lockstep.runtime.ports import Runtime
from lockstep.storage.store import Batch, Family
from lockstep.storage.unchanged import Unchanged
from lockstep.values.errors import LockstepError, NotReplica, Overloaded
from lockstep.values.limits import (
    REPAIR_TREE_WAIT_MS,
    REPAIR_TREES_AT_ONCE_MAX,
    REPAIR_TREES_KEPT_MAX,
    STREAM_ESTIMATE_PAIRS,
)
from lockstep.values.rows import Mutation, ReadCommand, ReadResult
from lockstep.values.tokens import Range


class RepairEngine(Protocol):
    """What a repair needs of one node's storage."""

    async def leaf_digests(self, table_id: int, leaves: Sequence[Range], before_s: int) -> bytes: ...

    async def read(self, command: ReadCommand) -> ReadResult: ...

    def apply(self, mutation: Mutation, *, by_repair: bool) -> int: ...

    def write_records(self, family: Family, batch: Batch) -> int: ...

    @property
    def unchanged(self) -> Unchanged: ...

    async def synced(self, sequence: int) -> None: ...

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]: ...


class RepairCounts:
    """What this node did for repairs, since it started."""

    def __init__(self) -> None:
        self.trees = 0
        self.changes_taken = 0


class _Building:
    def __init__(self) -> None:
        self.done = asyncio.Event()
        self.leaves = b""
        self.error: LockstepError | None = None


class ReplicaTimes(msgspec.Struct, frozen=True, eq=False):
    """`oldest_undelivered_us` tells when the oldest write was made that this node keeps for others, None when
    there is none; `caught_up_us` this node's next timestamp, mostly not behind its clock."""

    oldest_undelivered_us: Callable[[], int | None]
    caught_up_us: Callable[[], Awaitable[int]]


class RepairParticipant:
    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        engine: RepairEngine,
        guards: SessionGuards,
        metadata: Callable[[], ClusterMetadata],
        catch_up: Callable[[int, Address], Awaitable[None]],
        own_id: Callable[[], int],
        times: ReplicaTimes,
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._guards = guards
        self._catch_up = catch_up
        self._own_id = own_id
        self._plans = PlanBook(metadata, own_id)
        self._trees: dict[AskTree, _Building] = {}
        self._turns = asyncio.Semaphore(REPAIR_TREES_AT_ONCE_MAX)
        self.times = times
        self.counts = RepairCounts()
        internode.register(verbs.REPAIR_TREE, AskTree, Tree, self._serve_tree)
        internode.register(verbs.REPAIR_READ, AskRows, ReadResult, self._serve_rows)
        internode.register(verbs.REPAIR_WRITE, Mend, Mended, self._serve_mend)
        internode.register(verbs.REPAIR_NOTE, Note, Noted, self._serve_note)

    # -- what others ask ----------------------------------------------------------------------------

    async def _serve_tree(self, peer: PeerInfo, ask: AskTree) -> Tree:
        await self._catch_up(ask.epoch, peer.endpoint)
        return await self.tree(ask)

    async def _serve_rows(self, peer: PeerInfo, ask: AskRows) -> ReadResult:
        await self._catch_up(ask.epoch, peer.endpoint)
        return await self.rows(ask)

    async def _serve_mend(self, peer: PeerInfo, mend: Mend) -> Mended:
        await self._catch_up(mend.epoch, peer.endpoint)
        return await self.mend(mend)

    async def _serve_note(self, peer: PeerInfo, note: Note) -> Noted:
        await self._catch_up(note.epoch, peer.endpoint)
        return await self.note(note)

    # -- what is done, also for the driver on this node -----------------------------------------------

    async def tree(self, ask: AskTree) -> Tree:
        """The digests, or that they are not ready yet. SessionClosed; errors of the store."""
        self._guards.require(ask.session_id)
        building = self._trees.get(ask)
        if building is None:
            if len(self._trees) >= REPAIR_TREES_KEPT_MAX:
                raise Overloaded(f"this node builds {len(self._trees)} trees for repairs already")
            building = self._trees[ask] = _Building()
            self._runtime.tasks.spawn(self._build(ask, building), "repair.tree")
        try:
            async with asyncio.timeout(REPAIR_TREE_WAIT_MS / 1000):
                await building.done.wait()
        except TimeoutError:
            return Tree(False)
        self._trees.pop(ask, None)
        if building.error is not None:
            raise building.error
        return Tree(True, building.leaves)

    async def _build(self, ask: AskTree, building: _Building) -> None:
        try:
            async with self._turns:
                self._guards.require(ask.session_id)
                building.leaves = await self._engine.leaf_digests(ask.table_id, ask.leaves, ask.before_s)
                self._runtime.probes.reach("repair.tree.built")
            self.counts.trees += 1
        except LockstepError as error:
            building.error = error
        finally:
            building.done.set()

    async def rows(self, ask: AskRows) -> ReadResult:
        """A page of what this node holds, tombstones included. SessionClosed; errors of the store."""
        self._guards.require(ask.session_id)
        return await self._engine.read(ask.command)

    async def mend(self, mend: Mend) -> Mended:
        """Take what is lacking; durable on return. SessionClosed, NotReplica; errors of the store."""
        with self._guards.hold(mend.session_id):
            sequence = 0
            for mutation in mend.mutations:
                placement = self._plans.placement(mutation.table_id)
                if placement is None:
                    continue  # A dropped table lacks nothing.
                if self._own_id() not in placement.ring.group_for(mutation.token).writes:
                    raise NotReplica(f"node {self._own_id()} has given token {mutation.token} up")
                sequence = self._engine.apply(mutation, by_repair=True)
            self._runtime.probes.reach("repair.mend.applied")
            await self._engine.synced(sequence)
        self.counts.changes_taken += len(mend.mutations)
        return Mended(len(mend.mutations))

    async def note(self, note: Note) -> Noted:
        """Answer a small question, or take a small fact. SessionClosed."""
        self._guards.require(note.session_id)
        if note.about is About.UNDELIVERED:
            return await self._undelivered()
        if note.about is About.EQUAL:
            await self._equal(note)
            return Noted()
        return await self._extent(note)

    async def _undelivered(self) -> Noted:
        # No deletion of this node is dated below a timestamp that it gave, however its clock is set.
        stamp_us = await self.times.caught_up_us()
        wall_us, oldest = self._runtime.clock.wall_us(), self.times.oldest_undelivered_us()
        at_us = min(wall_us, stamp_us)
        return Noted(-1 if oldest is None else oldest - (wall_us - at_us), at_us=at_us)

    async def _equal(self, note: Note) -> None:
        """Nothing but the repair wrote to most of the ranges since they were looked at: remember that."""
        with self._guards.hold(note.session_id):
            self._runtime.probes.reach("repair.equal.noted")
            marks = self._engine.unchanged.equal(note.session_id, note.table_id, note.ranges)
            if marks:
                await self._engine.synced(self._engine.write_records(Family.REPAIR, marks))

    async def _extent(self, note: Note) -> Noted:
        unchanged = self._engine.unchanged
        # Before anything is read, so that what is written meanwhile counts as changed.
        unchanged.watch(note.session_id, note.table_id, note.ranges)
        size = 0
        for number, range_ in enumerate(note.ranges):
            size += self._engine.estimated_bytes(note.table_id, range_, STREAM_ESTIMATE_PAIRS)[0]
            if number % 8 == 7:
                await asyncio.sleep(0)
        wants_changes = note.about is About.CHANGES
        changed = unchanged.parts(note.table_id, note.ranges) if wants_changes else ()
        return Noted(bytes=size, changed=changed)

    def forget_closed(self, session_open: Callable[[str], bool]) -> None:
        """Trees that nobody will ask for any more go."""
        for ask in list(self._trees):
            if not session_open(ask.session_id):
                del self._trees[ask]
        self._engine.unchanged.forget(session_open)
