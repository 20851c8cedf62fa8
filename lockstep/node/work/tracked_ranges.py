"""Ids of tracked ranges while ranges move: who is filled gets to know what it holds by that.

The journal takes up each change of ranges in the very step in which the entry is applied, before anything
is judged by it. Invariant: a replica that was filled claims what its sources had in their snapshots, and
nothing else that it does not hold. What a source names as reconciled, or has no entries of while a replica is
away, before its snapshots are taken is in them, and is claimed once they are here; all else that the source
holds afterwards is fetched with its mutations. From the moment at which a replica receives writes nothing
becomes reconciled without it, so no mutation of which it has only streamed data can lose its entry before it
is fetched, but while it is away itself: it is streamed again then, as when a source has got rows of a cohort
since. What a replica told before it was filled is void: it may have lost it. A source that is getting what it
missed itself has parts of mutations that it does not name, and is none until it has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.work.cohorts import CohortTaking
from lockstep.node.work.reconciling import Reconciler
from lockstep.placement.placements import PlacedRange
from lockstep.replica.session_guards import SessionGuards
from lockstep.replica.tracked import TrackedReplica
from lockstep.schema.tracking import tracked_groups
from lockstep.storage.engine import StorageEngine
from lockstep.storage.shard_logs import Shard
from lockstep.topology.stages import StreamTask
from lockstep.tracking.held import NOTHING, Held
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import DiskRefused, NotReplica, PeerTimeout, RangeLacking
from lockstep.values.ids import NodeId
from lockstep.values.limits import STREAM_TIMEOUT_MS
from lockstep.values.tokens import Range


class Survey(msgspec.Struct, frozen=True, array_like=True):
    """Ask what the receiver holds of a range from which `node` is filled. `begins`: its streams follow."""

    epoch: int
    node: int
    group: int
    left: int
    right: int
    begins: bool


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """What a replica holds of one of its ranges, and what of that every replica holds."""

    shard: Shard
    left: int
    held: Held
    reconciled: Held
    #: What has no entries, for a replica is away: it is in the snapshots too.
    apart: Held = NOTHING


class Surveyed(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    holdings: tuple[Holding, ...]


class Streamed(msgspec.Struct, frozen=True):
    """What the sources of a task named as reconciled, and as apart, before it was streamed. `session`: of the
    streams."""

    reconciled: Held = NOTHING
    apart: Held = NOTHING
    session: str = ""


_STREAMED = decoder(Streamed)


class TrackedRanges:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        tracked: TrackedReplica,
        cohorts: CohortTaking,
        guards: SessionGuards,
        engine: StorageEngine,
    ) -> None:
        self._engine = engine
        self._context = context
        self._runtime = context.runtime
        self._tracked = tracked
        self._journal = tracked.journal
        self.reconciler = Reconciler(context, tracked, cohorts)
        self._guards = guards
        self._fit(state.current)
        state.listen(self._applied, parts_only=True)
        context.internode.register(verbs.TRACKED_SURVEY, Survey, Surveyed, self._serve)

    # -- when ranges change -----------------------------------------------------------------------

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.schema is not after.schema or before.placements is not after.placements:
            if after.epoch > before.epoch + 1:
                # A replica may have gone meanwhile, and have come back without what it told.
                self._journal.told.clear()
                self._runtime.probes.reach("tracked.gap")
            self._fit(after)

    def _fit(self, cluster: ClusterMetadata) -> None:
        if not self._context.own_id():
            return
        try:
            self.reconciler.fit(cluster)
        except DiskRefused:
            return  # The store has said that it failed, and this node stops.

    def _placed(self, group: int, tokens: Range) -> Iterator[PlacedRange]:
        """This node's ranges that have some of these tokens."""
        ring, own = self._context.cluster().placements.by_id.get(group), self._context.own_id()
        if ring is not None:
            yield from (placed for placed in ring.overlapping(tokens) if own in placed.group.writes)

    # -- at the source ----------------------------------------------------------------------------

    async def _serve(self, peer: PeerInfo, request: Survey) -> Surveyed:
        if request.epoch > self._context.cluster().epoch:
            await self._context.catch_up.reach(request.epoch, peer.endpoint)
        found: list[Holding] = []
        for placed in self._placed(request.group, Range(request.left, request.right)):
            shard = request.group, placed.range.right
            if request.begins:
                self.reconciler.void(shard, request.node)
            if self._journal.taking(shard) is not None:
                raise RangeLacking(f"this node is getting what it missed of the range up to {shard[1]}")
            journal = self._journal
            held, reconciled, apart = journal.held(shard), journal.reconciled(shard), journal.apart(shard)
            found.append(Holding(shard, placed.range.left, held, reconciled, apart))
        if not found:
            raise NotReplica(
                f"node {self._context.own_id()} is no replica of ({request.left}, {request.right}]"
            )
        await self._journal.synced()
        return Surveyed(self._context.cluster().epoch, tuple(found))

    # -- at who is filled -------------------------------------------------------------------------

    def _has_ids(self, group: int) -> bool:
        """Whether a table of the group is tracked, or was and is not let go of. A node that comes to the
        group only afterwards claims nothing before it has heard of what is open there, in rounds."""
        tracked = tracked_groups(self._context.cluster().schema).values()
        return group in tracked or group in self._journal.tables.values()

    async def survey(
        self, session_id: str, task: StreamTask, epoch: int, begin_anew: Callable[[], None]
    ) -> Streamed:
        """What the sources of a task name as reconciled, and what they have no entries of; its streams
        follow. `begin_anew` has them copy all again: what was copied under the session lacks some of that."""
        found = Streamed()
        if self._has_ids(task.group):
            await self._store_witnessed(task)
        for source in task.sources if self._has_ids(task.group) else ():
            for holding in await self._ask(source, task, epoch, begins=True):
                reconciled = found.reconciled.union(holding.reconciled)
                found = Streamed(reconciled, found.apart.union(holding.apart), session_id)
        if not found.session:
            return found
        name = b"streamed/%d/%d" % (task.group, task.range.right)
        kept = self._engine.local_fact(name)
        known = _STREAMED.decode(kept) if kept is not None else None
        if known is not None and known.session == session_id:
            here = self._journal.held_in(task.group).union(known.reconciled).union(known.apart)
            if here.covers(found.reconciled.union(found.apart)):
                return known
        begin_anew()
        # A crash may take it back: then all is copied again.
        self._engine.keep_local_fact(name, encode(found))
        return found

    async def _store_witnessed(self, task: StreamTask) -> None:
        """Store what this node has as a witness, for it becomes a full replica. What is reconciled meanwhile
        is held by all sources before their snapshots are taken."""
        ring = self._context.cluster().placements.by_id.get(task.group)
        if ring is None or not ring.replication.has_witnesses:
            return
        for placed in self._placed(task.group, task.range):
            shard = task.group, placed.range.right
            if self._journal.keeps(shard):
                await self._journal.store_again(shard)
                self._runtime.probes.reach("tracked.promoted")

    async def take(
        self, session_id: str, task: StreamTask, surveyed: Streamed, epoch: int, require: Callable[[], object]
    ) -> None:
        """All tables of the task are streamed: claim what was reconciled before, and fetch the rest.
        `require` raises when the work has ended."""
        if not self._has_ids(task.group):
            return
        with self._guards.hold(session_id):
            for placed in self._placed(task.group, task.range):
                shard = task.group, placed.range.right
                self._journal.adopt(shard, surveyed.reconciled)
                self._journal.claim(shard, surveyed.apart)
        for source in task.sources:
            address = self._address(source)
            for holding in await self._ask(source, task, epoch, begins=False):
                await self._fetch(holding, address, require)
        await self._journal.synced()
        self._runtime.probes.reach("tracked.handed_over")

    async def _fetch(self, holding: Holding, source: Address, require: Callable[[], object]) -> None:
        group = holding.shard[0]
        lacking = self._lacking(holding)
        while lacking:
            require()
            before = lacking.count
            await self._tracked.pull(holding.shard, lacking, source, STREAM_TIMEOUT_MS)
            lacking = lacking.intersection(self._lacking(holding))
            if lacking and lacking.count == before:
                break
        is_alike = any(
            placed.range == Range(holding.left, holding.shard[1])
            for placed in self._placed(group, Range(holding.left, holding.shard[1]))
        )
        if lacking and is_alike:
            raise PeerTimeout(f"{source[0]}:{source[1]} has not handed over {lacking.count} mutations")

    def _lacking(self, holding: Holding) -> Held:
        """What of a source's range is not here."""
        group = holding.shard[0]
        own = [
            self._journal.apart((group, placed.range.right))
            for placed in self._placed(group, Range(holding.left, holding.shard[1]))
        ]
        apart = reduce(Held.intersection, own) if own else NOTHING
        return holding.held.difference(self._journal.held_in(group)).difference(apart)

    async def refill(self, task: StreamTask, surveyed: Streamed) -> None:
        """Store again what the journal holds of a range of which this node lost data. What it had without
        entries, and none of its sources, is lost here."""
        self._tracked.refills += 1
        for placed in self._placed(task.group, task.range):
            shard = task.group, placed.range.right
            lost = self._journal.apart(shard).difference(surveyed.apart).difference(surveyed.reconciled)
            if lost:
                self._runtime.probes.reach("cohort.lost")
                self._journal.release(shard, lost)
            if self._journal.keeps(shard):
                await self._journal.store_again(shard)

    async def _ask(self, source: int, task: StreamTask, epoch: int, *, begins: bool) -> tuple[Holding, ...]:
        range_ = task.range
        asked = Survey(epoch, self._context.own_id(), task.group, range_.left, range_.right, begins)
        surveyed: Surveyed = await self._context.internode.request(
            self._address(source), verbs.TRACKED_SURVEY, asked, STREAM_TIMEOUT_MS
        )
        return surveyed.holdings

    def _address(self, node: int) -> Address:
        info = self._context.cluster().directory.by_id[NodeId(node)]
        return info.address, info.internode_port
