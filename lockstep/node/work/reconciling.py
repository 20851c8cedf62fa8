"""Replicas of tracked ranges tell each other what they hold, and get what they lack.

A round asks each replica of the ranges that are not all reconciled. Invariant: what a replica tells is
durable there, so what everybody told is lost by nobody, and its entries may go. Tombstones of a range are
purged up to a moment only once everything that anybody held at that moment is reconciled: nothing older comes
after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import reduce

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.replica.tracked import TrackedReplica, group_of
from lockstep.schema.model import Table
from lockstep.schema.tracking import is_tracked, tracked_tables
from lockstep.storage.journal import Shard
from lockstep.tracking.held import NOTHING, Held, all_of
from lockstep.values.errors import LockstepError, NotReplica
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import (
    RECONCILE_ALL_EVERY,
    RECONCILE_INTERVAL_MS,
    RECONCILE_PURGE_MARGIN_S,
    RECONCILE_SHARDS_A_MESSAGE,
)


class Told(msgspec.Struct, frozen=True, array_like=True):
    """What a replica holds of a range."""

    shard: Shard
    held: Held


class Compare(msgspec.Struct, frozen=True, array_like=True):
    """Told what the sender holds durably, the receiver tells the same."""

    epoch: int
    told: tuple[Told, ...]


class Compared(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    told: tuple[Told, ...]


class Lag(msgspec.Struct, frozen=True):
    """What one replica of a range is not known to hold of what this node holds, or this node of that."""

    shard: Shard
    node: int
    lacks: int
    is_lacked: int
    heard: bool


class Reconciler:
    """`is_paused`: nothing is asked or pulled; others are answered."""

    def __init__(self, context: NodeContext, tracked: TrackedReplica) -> None:
        self._context = context
        self._runtime = context.runtime
        self._tracked = tracked
        self.journal = tracked.journal
        self.is_paused = False
        self.rounds = 0
        self.reconciled = 0
        #: What replicas told last, by range.
        self._told: dict[Shard, dict[int, Held]] = {}
        #: (moment, what anybody held then) of a range; and the last moment of which all is reconciled.
        self._watched: dict[Shard, tuple[int, Held]] = {}
        self._complete_us: dict[Shard, int] = {}
        self._seen: ClusterMetadata | None = None
        context.internode.register(verbs.TRACKED_COMPARE, Compare, Compared, self._serve)

    @property
    def pulled(self) -> int:
        """Mutations that this node got from other replicas."""
        return self._tracked.pulled

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "reconcile")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(RECONCILE_INTERVAL_MS / 1000)
            if self.is_paused:
                continue
            try:
                await self.round()
            except LockstepError as error:
                self._context.log("reconcile.failed", error=str(error))

    # -- one round --------------------------------------------------------------------------------

    async def round(self) -> None:
        """Ask the replicas of what is not reconciled, get what lacks, let go of what all hold."""
        cluster = self._context.cluster()
        self._forget(cluster)
        self.rounds += 1
        shards = list(self._asked_about(cluster))
        if not shards:
            return
        began_us = self._runtime.clock.wall_us()
        own = await self._durable(shards)
        by_node: dict[int, list[Told]] = {}
        for shard in shards:
            for node in self._others(cluster, shard):
                by_node.setdefault(node, []).append(Told(shard, own[shard]))
        fresh: dict[Shard, set[int]] = {shard: set() for shard in shards}
        await asyncio.gather(*(self._compare(node, told, fresh) for node, told in by_node.items()))
        for shard in shards:
            self._settle(cluster, shard, own[shard], fresh[shard], began_us)

    def _asked_about(self, cluster: ClusterMetadata) -> Iterable[Shard]:
        """Ranges of which something is not reconciled, or lacks here; sometimes all."""
        everything = self.rounds % RECONCILE_ALL_EVERY == 0
        for shard in sorted({*self.journal.shards, *self._told}):
            if everything or self._is_open(shard):
                yield shard

    def _is_open(self, shard: Shard) -> bool:
        held = self.journal.held(shard)
        if held != self.journal.reconciled(shard):
            return True
        return any(not held.covers(told) for told in self._told.get(shard, {}).values())

    async def _durable(self, shards: Sequence[Shard]) -> dict[Shard, Held]:
        found = {shard: self.journal.held(shard) for shard in shards}
        await self.journal.synced()
        return found

    def _others(self, cluster: ClusterMetadata, shard: Shard) -> list[int]:
        group, own = group_of(cluster, shard), self._context.own_id()
        return [node for node in group.writes if node != own] if group is not None else []

    async def _compare(self, node: int, told: Sequence[Told], fresh: dict[Shard, set[int]]) -> None:
        info = self._context.cluster().node(NodeId(node))
        if info is None or not self._context.alive(node):
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
                return
            for one in compared.told:
                self._told.setdefault(one.shard, {})[node] = one.held
                if one.shard in fresh:
                    fresh[one.shard].add(node)
            for one in compared.told:
                await self._pull(one.shard, one.held, address, timeout_ms)

    async def _pull(self, shard: Shard, held: Held, address: Address, timeout_ms: float) -> None:
        lacking = held.difference(self.journal.held(shard))
        if not lacking:
            return
        try:
            await self._tracked.pull(shard, lacking, address, timeout_ms)
        except LockstepError:
            self._runtime.probes.reach("reconcile.not_pulled")

    def _settle(
        self, cluster: ClusterMetadata, shard: Shard, own: Held, fresh: set[int], began_us: int
    ) -> None:
        others, told = self._others(cluster, shard), self._told.get(shard, {})
        if group_of(cluster, shard) is None or not all(node in told for node in others):
            return
        everywhere = reduce(Held.intersection, (told[node] for node in others), own)
        self.reconciled += self.journal.reconcile(shard, everywhere)
        if not fresh.issuperset(others):
            return
        watched = self._watched.get(shard)
        if watched is not None and self.journal.reconciled(shard).covers(watched[1]):
            self._complete_us[shard] = watched[0]
            watched = None
        if watched is None:
            self._watched[shard] = began_us, all_of((own, *(told[node] for node in others)))

    def _forget(self, cluster: ClusterMetadata) -> None:
        """Let go of ranges that are none any more, or of which no table is tracked."""
        seen, self._seen = self._seen, cluster
        if seen is not None and seen.schema is cluster.schema and seen.placements is cluster.placements:
            return
        groups = {
            cluster.schema.by_name[table.keyspace].group_of(table) for table in tracked_tables(cluster.schema)
        }
        gone = [
            shard
            for shard in self.journal.shards
            if shard[0] not in groups or group_of(cluster, shard) is None
        ]
        self.journal.forget(gone)
        for shard in (*gone, *(shard for shard in self._told if shard[0] not in groups)):
            for known in (self._told, self._watched, self._complete_us):
                known.pop(shard, None)

    # -- others -----------------------------------------------------------------------------------

    async def _serve(self, peer: PeerInfo, request: Compare) -> Compared:
        if request.epoch > self._context.cluster().epoch:
            await self._context.catch_up.reach(request.epoch, peer.endpoint)
        cluster = self._context.cluster()
        shards = [one.shard for one in request.told if peer.node_id in self._others(cluster, one.shard)]
        if len(shards) != len(request.told):
            raise NotReplica(
                f"node {peer.node_id} holds none of these ranges with node {self._context.own_id()}"
            )
        for one in request.told:
            self._told.setdefault(one.shard, {})[peer.node_id] = one.held
        held = await self._durable(shards)
        return Compared(cluster.epoch, tuple(Told(shard, held[shard]) for shard in shards))

    # -- looking ----------------------------------------------------------------------------------

    def purge_before_s(self, table: Table, token: int) -> int | None:
        """The second before which nothing can come any more of a tracked table's token; None: it is none."""
        cluster = self._context.cluster()
        keyspace = cluster.schema.by_name[table.keyspace]
        if not is_tracked(keyspace, table):
            return None
        ring = cluster.placements.ring(keyspace.group_of(table))
        complete_us = self._complete_us.get((ring.id, ring.range_at(token).range.right), 0)
        return max(0, complete_us // 1_000_000 - RECONCILE_PURGE_MARGIN_S)

    def lags(self) -> list[Lag]:
        """Of each range and other replica, in order."""
        cluster, found = self._context.cluster(), []
        for shard in sorted({*self.journal.shards, *self._told}):
            held, told = self.journal.held(shard), self._told.get(shard, {})
            for node in self._others(cluster, shard):
                theirs = told.get(node, NOTHING)
                lacks, lacked = held.difference(theirs).count, theirs.difference(held).count
                found.append(Lag(shard, node, lacks, lacked, node in told))
        return found
