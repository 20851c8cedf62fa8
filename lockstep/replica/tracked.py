"""Replicas of tracked ranges among themselves: who lacks a mutation gets it from one that holds it.

Invariant: what is brought is stored whole, with its id, in one batch, and counts as brought once durable. It
is taken whenever it comes: an id that one replica holds is to be held by all, also once its table is tracked
no more. Its table may be gone by then: the id is held all the same, of nothing. It is kept in the range that
has its token here, for those who bring and take may have heard of different cuts; who is no replica of that
keeps nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.placement.placements import PlacedRange, ReplicaGroup, RingPlacement
from lockstep.quorum.failure_codes import NOT_REPLICA, READ, STALE_TABLE, Refusals
from lockstep.runtime.ports import Runtime
from lockstep.schema.tracking import is_tracked
from lockstep.storage.journal import Journal
from lockstep.storage.journal_records import Named
from lockstep.storage.shard_logs import Shard, Taking
from lockstep.topology.roles import keepers
from lockstep.tracking.held import NOTHING, Held, MutationId, is_beside, whole_of
from lockstep.values.errors import LockstepError, NotReplica, PeerTimeout, StaleEpoch
from lockstep.values.node_limits import JOURNAL_PULL_BYTES, JOURNAL_PULLS_MAX
from lockstep.values.rows import Mutation, without_log
from lockstep.values.tokens import Range


class Pull(msgspec.Struct, frozen=True, array_like=True):
    """Ask for mutations of a range: those of `wanted` that the receiver holds, the first ones."""

    epoch: int
    shard: Shard
    wanted: Held


class Pulled(msgspec.Struct, frozen=True, array_like=True):
    """Of an answer without entries: what was wanted is held by every replica, or not by this one."""

    epoch: int
    entries: tuple[Named, ...]


class Bring(msgspec.Struct, frozen=True, array_like=True):
    """Hold these, durably, for a read of a table: `sources` hold each of them between them. `everywhere`:
    those of which one of them knows that every replica holds them."""

    epoch: int
    needs_epoch: int
    table_id: int
    shard: Shard
    wanted: Held
    sources: tuple[Address, ...]
    timeout_ms: int
    everywhere: Held = NOTHING


class Brought(msgspec.Struct, frozen=True, array_like=True):
    epoch: int


def placed_at(cluster: ClusterMetadata, shard: Shard) -> PlacedRange | None:
    """The range with its replicas; None when it is no range any more."""
    ring = cluster.placements.by_id.get(shard[0])
    if ring is None:
        return None
    placed = ring.range_at(shard[1])
    return placed if placed.range.right == shard[1] else None


def group_of(cluster: ClusterMetadata, shard: Shard) -> ReplicaGroup | None:
    """The replicas of a range; None when it is no range any more."""
    placed = placed_at(cluster, shard)
    return placed.group if placed is not None else None


def range_for(cluster: ClusterMetadata, own: int, group: int, token: int) -> tuple[Range, bool] | None:
    """As `RangeAt` of the journal, for this node."""
    ring = cluster.placements.by_id.get(group)
    if ring is None:
        return None
    placed = ring.range_at(token)
    return placed.range, own in placed.group.writes


def followed_at(cluster: ClusterMetadata, own: int, shard: Shard) -> int | None:
    """What `apply` of the engine is handed with a mutation that another replica brings: None, nothing follows
    from it here for views, while this node is being filled. It may lack newer values of the row, which
    streams bring and nothing is derived from; those that it has the range from have derived."""
    group = group_of(cluster, shard)
    return 0 if group is not None and own in group.reads else None


def keeps_data(cluster: ClusterMetadata, own: int, shard: Shard) -> bool:
    """Whether this node has the data of a range in its tables, for all that is known of the range."""
    ring = cluster.placements.by_id.get(shard[0])
    if ring is None or not ring.replication.has_witnesses:
        return True
    return own in keepers(cluster, ring, ring.range_at(shard[1]))


def require_kept(journal: Journal | None, ring: RingPlacement, tokens: Range, refusals: Refusals) -> None:
    """NotReplica where this node is a witness of some of the tokens: it has no rows of them."""
    assert journal is not None, "witnesses are of tracked tables"
    for placed in ring.overlapping(tokens):
        if not journal.keeps((ring.id, placed.range.right)):
            refusals.refused(READ, NOT_REPLICA)
            raise NotReplica(f"this node is a witness of tokens up to {placed.range.right}")


def take_from_others(
    journal: Journal, cluster: ClusterMetadata, own: int, changed: Collection[Shard]
) -> None:
    """Name who else is to give what this node is getting: of a range that was joined (`changed`) it may be of
    either side, and what somebody held who left, others were handed."""
    takings = [(shard, logs.taking) for shard, logs in journal.shards.items() if logs.taking is not None]
    for shard, taking in sorted(takings, key=lambda one: one[0]):
        group = group_of(cluster, shard)
        others = tuple(sorted({*group.writes} - {own})) if group is not None else ()
        is_cut = taking.is_joined and shard in changed and taking.sources != others
        if others and (is_cut or not {*taking.sources} <= {*others}):
            journal.take_from(shard, Taking(others, taking.is_joined))


class TrackedReplica:
    def __init__(
        self,
        runtime: Runtime,
        internode: Internode,
        journal: Journal,
        metadata: Callable[[], ClusterMetadata],
        catch_up: Callable[[int, Address], Awaitable[None]],
        own_id: Callable[[], int],
        is_filled: Callable[[], bool],
    ) -> None:
        """`is_filled`: whether this node has lost nothing that it held."""
        self.journal = journal
        self.is_filled = is_filled
        #: Ranges of which this node filled its tables again, after it lost some.
        self.refills = 0
        self._runtime = runtime
        self._internode = internode
        self._metadata = metadata
        self._catch_up = catch_up
        self._own_id = own_id
        #: Mutations that other replicas brought, and what they take up as they are sent.
        self.pulled = 0
        internode.register(verbs.TRACKED_PULL, Pull, Pulled, self._serve_pull)
        internode.register(verbs.TRACKED_BRING, Bring, Brought, self._serve_bring)

    async def _serve_pull(self, _peer: PeerInfo, request: Pull) -> Pulled:
        self._require_replica(request.shard)
        entries = self.journal.entries(request.shard[0], request.wanted, JOURNAL_PULL_BYTES)
        return Pulled(self._metadata().epoch, tuple(entries))

    async def _serve_bring(self, peer: PeerInfo, request: Bring) -> Brought:
        if request.needs_epoch > self._metadata().epoch:
            await self._catch_up(request.needs_epoch, peer.endpoint)
        await self.bring(request)
        return Brought(self._metadata().epoch)

    def _require_replica(self, shard: Shard) -> None:
        at = range_for(self._metadata(), self._own_id(), *shard)
        if at is None or not at[1]:
            raise NotReplica(f"node {self._own_id()} is no replica of the range up to {shard[1]}")

    def learn(self, shard: Shard, everywhere: Held) -> None:
        """Take up what another replica knows to be held by every replica of a range. So it is held here,
        unless this node is being filled; what there is no entry of was reconciled before the range was cut,
        and may be of the other side."""
        ring = self._metadata().placements.by_id.get(shard[0])
        placed = ring.range_at(shard[1]) if ring is not None else None
        if placed is not None and self._own_id() in placed.group.reads and self.is_filled():
            self.journal.adopt((shard[0], placed.range.right), everywhere)

    async def bring(self, request: Bring) -> None:
        """Return when this node holds all that is wanted, durably. StaleEpoch when the table is not tracked
        any more, PeerTimeout when nobody has brought it."""
        self._require_replica(request.shard)
        if not self._is_tracked(request.table_id):
            raise StaleEpoch(self._metadata().epoch, STALE_TABLE)
        self.learn(request.shard, request.everywhere)
        deadline_s = self._runtime.clock.monotonic_s() + request.timeout_ms / 1000
        last: LockstepError | None = None
        for asked, source in enumerate(request.sources):
            lacking = self._lacking(request)
            if not lacking:
                break
            left_s = deadline_s - self._runtime.clock.monotonic_s()
            if left_s <= 0:
                break
            # One that is silent leaves time for those behind it, and for what the read does with it all.
            share_ms = left_s * 1000 / (len(request.sources) - asked + 1)
            try:
                await self.pull(request.shard, lacking, source, share_ms)
            except LockstepError as error:
                last = error
        if self._lacking(request):
            raise last or PeerTimeout("nobody brought what a read needs")
        await self.journal.synced()

    def _lacking(self, request: Bring) -> Held:
        lacking = request.wanted.difference(self.journal.held(request.shard))
        # Whoever wants it may have heard of another cut of the range.
        return lacking.difference(self.journal.held_in(request.shard[0])) if lacking else lacking

    async def pull(self, shard: Shard, wanted: Held, source: Address, timeout_ms: float) -> None:
        """Get what is wanted as far as one replica holds it."""
        for _ in range(JOURNAL_PULLS_MAX):
            asked = Pull(self._metadata().epoch, shard, wanted)
            pulled: Pulled = await self._internode.request(source, verbs.TRACKED_PULL, asked, timeout_ms)
            if not pulled.entries:
                return
            await self._take(shard, pulled, source)
            wanted = wanted.difference(self.journal.held_in(shard[0]))
            if not wanted:
                return

    async def _take(self, shard: Shard, pulled: Pulled, source: Address) -> None:
        if self._metadata().epoch < pulled.epoch and self._is_behind(pulled.entries):
            await self._catch_up(pulled.epoch, source)
        cluster, own = self._metadata(), self._own_id()
        for entry in pulled.entries:
            table = cluster.schema.tables_by_id.get(entry.table_id)
            group = cluster.schema.group_of(table) if table is not None else shard[0]
            self._take_entry(cluster, own, group, entry)
        self._runtime.probes.reach("tracked.pulled")

    def _take_entry(self, cluster: ClusterMetadata, own: int, group: int, entry: Named) -> None:
        """Hold what of an entry is of this node's ranges. Of a table that is gone it is held as nothing, or
        as what it adds to a log of changes that is there."""
        mutation, known = entry.mutation, cluster.schema.tables_by_id
        captured = mutation.captured if mutation is not None else None
        if captured is not None and captured.table_id not in known:
            captured = None
        if is_beside(entry.id.start) and mutation is not None and captured is not None:
            self._take_part(cluster, own, group, entry.id, mutation, captured)
            return
        at = range_for(cluster, own, group, entry.token)
        if at is None:
            return
        is_beside_it = captured is not None and not at[0].contains(captured.token)
        if mutation is None or entry.table_id not in known:
            mutation = None if is_beside_it else captured
        elif captured is None:
            mutation = without_log(mutation)
        if at[1]:
            shard = (group, at[0].right)
            place, follows = (entry.table_id, entry.token), followed_at(cluster, own, shard)
            self.journal.take(shard, entry.id, mutation, *place, first_epoch=follows)
            self.pulled += 1

    def _take_part(
        self,
        cluster: ClusterMetadata,
        own: int,
        group: int,
        part: MutationId,
        mutation: Mutation,
        captured: Mutation,
    ) -> None:
        """As `_take_entry`, by the id of what a mutation adds to a log of changes in another range; with the
        mutation, where that is of this node too."""
        there = range_for(cluster, own, group, captured.token)
        at = range_for(cluster, own, group, mutation.token)
        if there is None or at is None or not there[1]:
            return
        is_known = mutation.table_id in cluster.schema.tables_by_id
        if is_known and at[1] and at[0].right != there[0].right:
            shard = (group, at[0].right)
            self.journal.take(shard, whole_of(part), mutation, first_epoch=followed_at(cluster, own, shard))
        else:
            self.journal.take_captured(group, part, mutation)
        self.pulled += 1

    def _is_tracked(self, table_id: int) -> bool:
        schema = self._metadata().schema
        table = schema.tables_by_id.get(table_id)
        return table is not None and is_tracked(schema.by_name[table.keyspace], table)

    def _is_behind(self, entries: Sequence[Named]) -> bool:
        """Whether some are of a table, or of a log of changes, that is not known here."""
        known = self._metadata().schema.tables_by_id
        changes = [one.mutation for one in entries if one.mutation is not None]
        logged = [one.captured for one in changes if one.captured is not None]
        return any(one.table_id not in known for one in (*changes, *logged))
