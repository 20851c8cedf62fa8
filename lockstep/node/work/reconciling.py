"""Replicas of tracked ranges tell each other what they hold, and get what they lack.

A round asks replicas of the ranges that are not all reconciled; of two of them one asks the other, which is
told as much by the question as by the answer it gives. Invariant: what a replica tells is
durable there, so what everybody told is lost by nobody, and its entries may go. Tombstones of a range are
purged up to a moment only once everything that anybody held at that moment is reconciled: nothing older comes
after them. While a replica is away for long, what all others told goes to a cohort: it is kept apart, without
entries, and is not reconciled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.work.cohorts import CohortTaking
from lockstep.placement.placements import PlacedRange
from lockstep.replica.lags import Lag, Lagging, lags_of
from lockstep.replica.pulling import Pulling
from lockstep.replica.shard_roles import RolesOfShards, ShardRoles
from lockstep.replica.tracked import TrackedReplica, group_of, placed_at, take_from_others
from lockstep.schema.model import Table
from lockstep.schema.tracking import is_tracked, tracked_groups
from lockstep.storage.journal import Journal
from lockstep.storage.shard_logs import Shard
from lockstep.storage.witnessing import witnessed_count
from lockstep.tracking.asking import Asking, Hearing
from lockstep.tracking.cohorts import are_enough
from lockstep.tracking.held import NOTHING, Held, all_of
from lockstep.tracking.moments import Moments
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import (
    RECONCILE_ALL_EVERY,
    RECONCILE_ENDING_ROUNDS,
    RECONCILE_FOLLOWED_S,
    RECONCILE_INTERVAL_MS,
    RECONCILE_MUTUAL_EVERY,
    RECONCILE_PURGE_MARGIN_S,
    RECONCILE_SHARDS_A_MESSAGE,
    RECONCILE_SHARDS_A_TURN,
)


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a replica holds of a range."""

    shard: Shard
    held: Held
    #: Where the range begins, and the epoch at which its replicas changed last: who says otherwise has heard
    #: of another change, and what it holds counts for nothing here.
    left: int
    since: int
    #: What of it the replica does not know to be held by every other one.
    open: Held
    #: What of it has no entries, for a replica is away.
    apart: Held = NOTHING


class Compare(msgspec.Struct, frozen=True, array_like=True):
    """Told what the sender holds durably, the receiver tells the same."""

    epoch: int
    told: tuple[Told, ...]


class Compared(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    told: tuple[Told, ...]


class Reconciler:
    """`is_paused`: nothing is asked or pulled; others are answered."""

    def __init__(self, context: NodeContext, tracked: TrackedReplica, cohorts: CohortTaking) -> None:
        self._context = context
        self._runtime = context.runtime
        self._tracked = tracked
        self.cohorts = cohorts
        self.journal = tracked.journal
        #: After how long a silent replica is away.
        self.cohort_after_s = context.configuration.tracking.cohort_after_ms / 1000
        #: What this node keeps at most as a witness, in bytes.
        self.witness_bytes_max = context.configuration.tracking.witness_journal_mib << 20
        self.is_paused = False
        #: How often what was told was void.
        self._voids = 0
        self.rounds, self.reconciled = 0, 0
        self._pulling = Pulling(context.runtime, tracked, lambda: context.configuration.timeouts.write_ms)
        #: What replicas told last, by range; and what of that they have no entries of.
        self._told = self.journal.told
        self._apart: dict[Shard, dict[int, Held]] = {}
        #: Replicas that have asked since the start, so that they told of all that is open there.
        self._asked: set[int] = set()
        #: Mutations that went to a cohort.
        self.set_apart = 0
        self.moments = Moments()
        self._asking, self._hearing, self._roles = Asking(), Hearing(), RolesOfShards()
        #: When the replicas of a range changed last, as far as this was taken up.
        self._since: dict[Shard, int] = {}
        self._lagging = Lagging()
        #: Tables that are tracked no more, with the placement group of each; and the round in which something
        #: of such a group was open last.
        self._ended: dict[int, int] = {}
        self._open_at: dict[int, int] = {}
        context.internode.register(verbs.TRACKED_COMPARE, Compare, Compared, self._serve)

    @property
    def pulled(self) -> int:
        """Mutations that this node got from other replicas."""
        return self._tracked.pulled

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "reconcile")
        self.cohorts.start()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(RECONCILE_INTERVAL_MS / 1000)
            self.journal.is_full = self.witness_bytes >= self.witness_bytes_max
            try:
                if not self.is_paused:
                    await self.round()
            except LockstepError as error:
                self._context.log("reconcile.failed", error=str(error))

    # -- one round --------------------------------------------------------------------------------

    async def round(self) -> None:
        """Ask the replicas of what is not reconciled, get what lacks, let go of what all hold."""
        cluster = self._context.cluster()
        self.rounds += 1
        self._let_go(cluster)
        shards = list(self._asked_about(cluster))
        now_s = self._runtime.clock.monotonic_s()
        self._lagging.note_now(partial(self._roles_of, cluster), self.journal, self._is_heard, now_s)
        if not shards:
            return
        began_us = self._runtime.clock.wall_us()
        own = {shard: self.journal.held(shard) for shard in shards}
        await self.journal.synced()
        by_node, spared = self._questions(cluster, own, now_s)
        answered: dict[Shard, set[int]] = {shard: set() for shard in shards}
        await asyncio.gather(*(self._compare(node, told, answered) for node, told in by_node.items()))
        heard = {shard: answered[shard] | spared[shard] for shard in shards}
        for number, shard in enumerate(shards):
            if number and number % RECONCILE_SHARDS_A_TURN == 0:
                await asyncio.sleep(0)
            now = self._context.cluster()
            if now is cluster or placed_at(now, shard) == placed_at(cluster, shard):
                self._settle(cluster, shard, own[shard], answered[shard], began_us)
                self._part(cluster, shard, own[shard], heard[shard])
        self.cohorts.offers = self._offers(self._context.cluster(), heard)

    def _questions(
        self, cluster: ClusterMetadata, own: Mapping[Shard, Held], now_s: float
    ) -> tuple[dict[int, list[Told]], dict[Shard, set[int]]]:
        """What each of the others is told, and asked, in a round; and of each range who has just asked this
        node and need not be asked."""
        own_id, followed = self._context.own_id(), self.moments.followed(now_s)
        is_mutual = self.rounds % RECONCILE_MUTUAL_EVERY == 0
        by_node: dict[int, list[Told]] = {}
        spared: dict[Shard, set[int]] = {}
        for shard, held in own.items():
            asks_all = is_mutual or shard[0] in followed
            told, known = None, self._told.get(shard, {})
            spared[shard] = set()
            for node in self._others(cluster, shard):
                if not asks_all and node in known and self._asking.spares(own_id, node, shard, now_s):
                    spared[shard].add(node)
                    continue
                told = told or self._told_of(cluster, shard, held)
                by_node.setdefault(node, []).append(told)
        return by_node, spared

    def _told_of(self, cluster: ClusterMetadata, shard: Shard, held: Held) -> Told:
        placed = self._roles_of(cluster, shard).placed
        assert placed is not None, "a range that others hold is one"
        apart, taking = self.journal.apart(shard), self.journal.taking(shard)
        opened = held.difference(self.journal.reconciled(shard))
        if taking is not None and taking.is_joined:
            # What there are entries of is here for sure.
            held = opened = opened.difference(apart)
            apart = NOTHING
        return Told(shard, held, placed.range.left, placed.group.epoch, opened, apart)

    def _hear(self, cluster: ClusterMetadata, node: int, told: Told) -> bool:
        """Keep what a replica told of a range; False when one of both has not heard of its last change."""
        placed = self._roles_of(cluster, told.shard).placed
        if placed is None or not _is_same(placed, told):
            self._runtime.probes.reach("reconcile.other_range")
            return False
        if node not in placed.group.writes or self._context.own_id() not in placed.group.writes:
            return False
        self._told.setdefault(told.shard, {})[node] = told.held
        self._apart.setdefault(told.shard, {})[node] = told.apart
        self._since[told.shard] = told.since
        everywhere = told.held.difference(told.open)
        if not (self._settles(told.shard) and self.journal.logs_of(told.shard).covers(everywhere)):
            self._tracked.learn(told.shard, everywhere)
        return True

    def _settles(self, shard: Shard) -> bool:
        """Whether the next round lets go of what all replicas hold, for all of them tell it."""
        told = self._told[shard]
        keeping = self._roles_of(self._context.cluster(), shard).keeping
        return all(node in told and self._is_heard(node) for node in keeping)

    def _is_heard(self, node: int) -> bool:
        return self._hearing.is_recent(node, self._runtime.clock.monotonic_s())

    async def _heard(self, node: int, told: Sequence[Told]) -> list[Told]:
        """What was kept of what a replica told; requests have turns meanwhile."""
        kept, voids = list[Told](), self._voids
        for number, one in enumerate(told):
            if number and number % RECONCILE_SHARDS_A_TURN == 0:
                await asyncio.sleep(0)
            if self._voids != voids:
                break  # It may have been lost since it was told.
            if self._hear(self._context.cluster(), node, one):
                kept.append(one)
        return kept

    def _asked_about(self, cluster: ClusterMetadata) -> Iterable[Shard]:
        """Ranges of which something is not reconciled, or not known to be alike; sometimes all."""
        everything = self.rounds % RECONCILE_ALL_EVERY == 0
        followed = _own_shards(self._context, self.moments.followed(self._runtime.clock.monotonic_s()))
        for shard in sorted({*self.journal.shards, *self._told, *followed}):
            if everything or shard in followed or self._is_open(cluster, shard):
                yield shard

    def _is_open(self, cluster: ClusterMetadata, shard: Shard) -> bool:
        held = self.journal.held(shard)
        if held != self.journal.reconciled(shard) or self.journal.taking(shard) is not None:
            return True
        told = self._told.get(shard, {})
        return any(told.get(node) != held for node in self._others(cluster, shard))

    def _roles_of(self, cluster: ClusterMetadata, shard: Shard) -> ShardRoles:
        return self._roles.of(cluster, self._context.own_id(), shard)

    def _others(self, cluster: ClusterMetadata, shard: Shard) -> Sequence[int]:
        return self._roles_of(cluster, shard).others

    async def _compare(self, node: int, told: Sequence[Told], fresh: dict[Shard, set[int]]) -> None:
        info = self._context.cluster().node(NodeId(node))
        if info is None or not self._context.alive(node):
            self._asking.is_silent(node)
            return
        address = (info.address, info.internode_port)
        timeout_ms = self._context.configuration.timeouts.write_ms
        for at in range(0, len(told), RECONCILE_SHARDS_A_MESSAGE):
            asked = Compare(self._context.cluster().epoch, tuple(told[at : at + RECONCILE_SHARDS_A_MESSAGE]))
            try:
                compared: Compared = await self._context.internode.request(
                    address, verbs.TRACKED_COMPARE, asked, timeout_ms
                )
            except LockstepError:
                self._runtime.probes.reach("reconcile.unheard")
                self._asking.is_silent(node)
                return
            self._hearing.note(node, self._runtime.clock.monotonic_s())
            heard = await self._heard(node, compared.told)
            for one in heard:
                if one.shard in fresh:
                    fresh[one.shard].add(node)
            await self._pulling.each(_holdings(heard), address)
        self._asking.has_answered(node)

    def _settle(
        self, cluster: ClusterMetadata, shard: Shard, own: Held, fresh: set[int], began_us: int
    ) -> None:
        others, told = self._others(cluster, shard), self._told.get(shard, {})
        is_joined = (taking := self.journal.taking(shard)) is not None and taking.is_joined
        roles = self._roles_of(self._context.cluster(), shard)
        if is_joined or roles.placed is None or not all(node in told for node in roles.keeping):
            return
        held = [*(told[node] for node in roles.keeping), *((own,) if roles.is_keeper else ())]
        everywhere = reduce(Held.intersection, held)
        self.reconciled += self.journal.reconcile(shard, everywhere)
        if not roles.is_keeper:
            self.journal.adopt(shard, everywhere)
        # What a witness told may be void since.
        if not fresh.intersection(told).issuperset(others):
            return
        if self.moments.is_due(shard, self.journal.reconciled(shard)):
            self.moments.watch(shard, began_us, all_of((own, *(told[node] for node in others))))

    # -- while a replica is away ------------------------------------------------------------------

    def _part(self, cluster: ClusterMetadata, shard: Shard, own: Held, fresh: set[int]) -> None:
        """Keep apart what all replicas but those that are away hold, if enough are there that each read at a
        quorum asks one of them."""
        others = self._others(cluster, shard)
        _note_away(self.journal, shard, not all(map(self._context.alive, others)))
        if fresh.issuperset(others):
            return
        group, own_id = group_of(cluster, shard), self._context.own_id()
        if group is None or own_id not in group.reads or not self._tracked.is_filled():
            return
        if cluster.placements.ring(shard[0]).replication.has_witnesses:
            # A witness has no tables that ids could go to: its journal grows, and so do the others'.
            return
        gone = {node for node in others if node not in fresh and self._is_away(node)}
        there = [node for node in others if node not in gone]
        told = self._told.get(shard, {})
        heard = fresh.intersection(told)  # Not who told in this round, and is being filled since.
        if not gone or not heard.issuperset(there) or self.journal.taking(shard) is not None:
            return
        dcs = cluster.directory.dc_by_id
        near = frozenset(node for node in group.reads if dcs.get(node) == dcs.get(NodeId(own_id)))
        if not are_enough(frozenset((own_id, *there)), frozenset(group.reads), near):
            self._runtime.probes.reach("cohort.too_few")
            return
        common = reduce(Held.intersection, (told[node] for node in there), own)
        count = self.journal.set_apart(shard, common)
        self.set_apart += count
        if count:
            self._runtime.probes.reach("cohort.set_apart")

    def _is_away(self, node: int) -> bool:
        silent_s = self._hearing.silent_s(node, self._runtime.clock.monotonic_s())
        return silent_s >= self.cohort_after_s and not self._context.alive(node)

    def _offers(self, cluster: ClusterMetadata, told: Mapping[Shard, set[int]]) -> dict[Shard, int]:
        """Ranges of which this node lacks what others have no entries of, or has begun to get that; each with
        a replica that has just told what it holds."""
        found: dict[Shard, int] = {}
        for shard, heard in told.items():
            taking, apart = self.journal.taking(shard), self._apart.get(shard, {})
            if taking is None and not any(apart.values()):
                continue
            group, held = group_of(cluster, shard), self.journal.held(shard)
            if group is None or self._context.own_id() not in group.reads:
                continue
            wanted = [
                node
                for node in sorted(heard & set(group.reads) & set(self._roles_of(cluster, shard).keeping))
                if (taking and node in taking.sources)
                or (node in self._asked and not held.covers(apart.get(node, NOTHING)))
            ]
            if wanted:
                found[shard] = wanted[self.rounds % len(wanted)]
        return found

    # -- when tables and ranges change ------------------------------------------------------------

    def fit(self, cluster: ClusterMetadata, let_go: Collection[int] = ()) -> None:
        """Take up where ranges are now, and which tables there are whose ids are kept: those that are
        tracked, and those that were, but for those of the groups `let_go`."""
        tracked = tracked_groups(cluster.schema)
        ended = _not_let_go(self.journal, cluster)
        self._ended = {
            table: group for table, group in ended.items() if table not in tracked and group not in let_go
        }
        changed = self.journal.fit({**tracked, **self._ended})
        if changed:
            self._runtime.probes.reach("tracked.ranges_changed")
        take_from_others(self.journal, cluster, self._context.own_id(), changed)
        self._fitted(cluster, changed)

    def _let_go(self, cluster: ClusterMetadata) -> None:
        """Let go of tables that are tracked no more once all of their group is reconciled, and has been for
        some rounds: another replica that does not know that yet is told."""
        groups = set(self.journal.tables.values())
        if any(shard[0] not in groups for shard in self.journal.shards):
            self.fit(cluster)
        if not self._ended:
            return
        ending = set(self._ended.values())
        shards = {shard for shard in (*self.journal.shards, *self._told) if shard[0] in ending}
        opened = {shard[0] for shard in shards if self._is_open(cluster, shard)}
        self._open_at = {
            group: self.rounds if group in opened else self._open_at.get(group, self.rounds)
            for group in sorted(ending)
        }
        quiet = {group for group, at in self._open_at.items() if self.rounds - at > RECONCILE_ENDING_ROUNDS}
        if quiet:
            self._runtime.probes.reach("tracked.let_go")
            self.fit(cluster, quiet)

    def _fitted(self, cluster: ClusterMetadata, changed: Sequence[Shard]) -> None:
        """Of ranges that are others now nothing was told yet, nor of those that are let go of, and of those
        with other replicas nothing by those that are none any more."""
        groups = set(self.journal.tables.values())
        for shard in sorted({*changed, *self._told}):
            placed = placed_at(cluster, shard)
            told = self._told.get(shard, {})
            is_kept = shard[0] in groups and shard not in changed
            if not is_kept or placed is None or self._context.own_id() not in placed.group.writes:
                told = {}
            elif placed.group.epoch == self._since.get(shard):
                continue
            else:
                told = {node: held for node, held in told.items() if node in placed.group.writes}
            self.moments.forget(shard)
            self._asking.forget(shard)
            for known in (self._told, self._since, self._apart):
                known.pop(shard, None)
            if told and placed is not None:
                self._told[shard], self._since[shard] = told, placed.group.epoch

    def void(self, shard: Shard, node: int) -> None:
        """A replica is filled: what it told it held may be lost."""
        self._voids += 1
        self._told.get(shard, {}).pop(node, None)
        self._apart.get(shard, {}).pop(node, None)
        self._asking.forget(shard)
        self.moments.void(shard)

    # -- others -----------------------------------------------------------------------------------

    async def _serve(self, peer: PeerInfo, request: Compare) -> Compared:
        if request.epoch > self._context.cluster().epoch:
            await self._context.catch_up.reach(request.epoch, peer.endpoint)
        heard = await self._heard(peer.node_id, request.told)
        now_s = self._runtime.clock.monotonic_s()
        self._hearing.note(peer.node_id, now_s)
        self._asked.add(peer.node_id)
        cluster, journal = self._context.cluster(), self.journal
        # In one step with the ranges as they are now.
        same = [one.shard for one in heard if _is_same(placed_at(cluster, one.shard), one)]
        own = [self._told_of(cluster, shard, journal.held(shard)) for shard in same]
        for shard in same:
            self._asking.was_asked(peer.node_id, shard, now_s)
        await journal.synced()
        if not self.is_paused:
            self._pulling.begin(peer.node_id, _holdings(heard), peer.endpoint)
        return Compared(cluster.epoch, tuple(own))

    # -- looking ----------------------------------------------------------------------------------

    def purge_before_s(self, table: Table, token: int) -> int | None:
        """The second before which nothing can come any more of a tracked table's token, or of one that was
        tracked and is not let go of; None: it is neither."""
        cluster = self._context.cluster()
        keyspace = cluster.schema.by_name[table.keyspace]
        if not is_tracked(keyspace, table) and table.id not in self.journal.tables:
            return None
        ring = cluster.placements.ring(keyspace.group_of(table))
        complete_us = self.moments.complete_us.get((ring.id, ring.range_at(token).range.right), 0)
        return max(0, complete_us // 1_000_000 - RECONCILE_PURGE_MARGIN_S)

    def follow(self, group: int) -> None:
        """Somebody looks on what is complete: ask about all ranges of a placement group in each round, for a
        while."""
        self.moments.follow(group, self._runtime.clock.monotonic_s() + RECONCILE_FOLLOWED_S)

    @property
    def journal_bytes(self) -> int:
        """About what the journal keeps."""
        return self.journal.estimated_bytes(self.journal.entry_count)

    @property
    def witness_bytes(self) -> int:
        """About what of that is of ranges of which this node is a witness."""
        return self.journal.estimated_bytes(witnessed_count(self.journal))

    def oldest_lacking_s(self) -> dict[int, int]:
        """Node -> how long it has lacked something in each of the last rounds, of those that do."""
        now_s = self._runtime.clock.monotonic_s()
        return {node: int(now_s - since_s) for node, since_s in self._lagging.since_s.items()}

    def left_s(self, node: int) -> int | None:
        """When a replica will have all that this node holds, as it went lately; None: nothing says so."""
        return self._lagging.left_s(node)

    def lags(self, *, with_ages: bool = False) -> Iterator[Lag]:
        """Of each range and other replica, in order; `with_ages` says since when each lacks something."""
        roles = partial(self._roles_of, self._context.cluster())
        return lags_of(roles, self.journal, self._is_heard, self.moments.complete_us if with_ages else None)


def _note_away(journal: Journal, shard: Shard, is_away: bool) -> None:
    """Have reads be told what has entries while a replica of the range is away."""
    if (logs := journal.shards.get(shard)) is not None:
        logs.tells_open = is_away


def _own_shards(context: NodeContext, groups: Iterable[int]) -> set[Shard]:
    """The ranges of placement groups of which this node is a replica."""
    rings, own = context.cluster().placements.by_id, context.own_id()
    ranges = [(group, placed) for group in groups if group in rings for placed in rings[group].ranges]
    return {(group, placed.range.right) for group, placed in ranges if own in placed.group.writes}


def _holdings(told: Iterable[Told]) -> list[tuple[Shard, Held]]:
    return [(one.shard, one.held) for one in told]


def _not_let_go(journal: Journal, cluster: ClusterMetadata) -> dict[int, int]:
    """Tables whose ids are kept so far, and those of a group of which this node has only heard since they
    are tracked no more, with the placement group that each has now."""
    schema, kept = cluster.schema, journal.tables
    groups = set(kept.values())
    heard = sorted({shard[0] for shard in journal.shards} - groups)
    found = [table for group in heard for table in schema.tables_in(group)]
    found += [table for id_ in kept if (table := schema.tables_by_id.get(id_)) is not None]
    return {table.id: schema.group_of(table) for table in found}


def _is_same(placed: PlacedRange | None, told: Told) -> bool:
    """Whether a replica that told of a range knows it as it is here."""
    return placed is not None and (placed.range.left, placed.group.epoch) == (told.left, told.since)
