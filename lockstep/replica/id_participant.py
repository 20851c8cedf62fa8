"""A participant of repairs of tracked tables: it tells which mutations it holds.

Invariant: what is told is durable here, of the range as the asker knows it, and of tables that lost nothing;
while this node is getting rows of mutations that it cannot name yet it tells nothing of their range.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replica.messages import AskedRange, AskIds, ToldIds
from lockstep.replica.session_guards import SessionGuards
from lockstep.replica.tracked import TrackedReplica, placed_at
from lockstep.tracking.held import Held
from lockstep.values.errors import NotReplica, RangeLacking
from lockstep.values.node_limits import RECONCILE_SHARDS_A_TURN


class IdParticipant:
    def __init__(
        self,
        internode: Internode,
        tracked: TrackedReplica,
        guards: SessionGuards,
        metadata: Callable[[], ClusterMetadata],
        catch_up: Callable[[int, Address], Awaitable[None]],
        own_id: Callable[[], int],
    ) -> None:
        self._tracked = tracked
        self._guards = guards
        self._metadata = metadata
        self._catch_up = catch_up
        self._own_id = own_id
        internode.register(verbs.REPAIR_IDS, AskIds, ToldIds, self._serve)

    async def _serve(self, peer: PeerInfo, ask: AskIds) -> ToldIds:
        await self._catch_up(ask.epoch, peer.endpoint)
        return await self.ids(ask)

    async def ids(self, ask: AskIds) -> ToldIds:
        """Also for the driver on this node. SessionClosed; NotReplica where a range is another one by now;
        RangeLacking while a part of this node's tables is lost."""
        self._guards.require(ask.session_id)
        journal, held = self._tracked.journal, list[Held | None]()
        for number, asked in enumerate(ask.ranges):
            if number and number % RECONCILE_SHARDS_A_TURN == 0:
                await asyncio.sleep(0)
            shard = (ask.group, asked.right)
            require_same(self._metadata(), ask.group, asked)
            if not self._tracked.is_filled():
                raise RangeLacking(f"node {self._own_id()} lost a part of its tables, and is being filled")
            held.append(journal.held(shard) if journal.taking(shard) is None else None)
        await journal.synced()
        return ToldIds(self._metadata().epoch, tuple(held))


def require_same(cluster: ClusterMetadata, group: int, asked: AskedRange) -> None:
    """NotReplica, which ends a wait, unless the range has the replicas and bounds that it was asked about
    with."""
    placed = placed_at(cluster, (group, asked.right))
    if placed is None or (placed.range.left, placed.group.epoch) != (asked.left, asked.since):
        raise NotReplica(
            f"({asked.left}, {asked.right}] got other replicas or bounds while its ids were awaited; "
            "run the repair again once nothing moves",
            hint="lockstep topology requests",
        )
