"""What this node lacks of its own data: who asks for it is refused, it is filled again, and what it owns at
once, because another was given up by force, is wiped.

Invariant: what is lacking is known before the first request is answered, and forgotten only when it was
filled from other replicas, or when an operator gives up what no other replica has; meanwhile nothing is
answered from it. No stage wiped them before, so it happens in the very step in which the entry is applied,
before anything is sent to this node as an owner. A mark in the same store, written behind the wipes, says up
to which epoch that is done: a crash that takes a wipe back takes the mark back, and all that came later, so
starting again does it again. As long as other replicas have something that this node lacks, a rebuild of it
runs, waits in the queue, or is asked for again soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rows import keys
from lockstep.storage.rows.keys import with_ballots
from lockstep.storage.store_position import Lack, Lacking, tokens_between
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import DiskRefused, LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


def of_sole_replica(lacks: Iterable[Lack], cluster: ClusterMetadata, own: NodeId) -> Iterator[Lack]:
    """What of them only this node was to have, by table and range; nothing where that was given up."""
    for lack in lacks:
        if not lack.given_up:
            yield from _sole_in(lack, cluster, own)


def _sole_in(lack: Lack, cluster: ClusterMetadata, own: NodeId) -> Iterator[Lack]:
    groups = (group for keyspace in cluster.schema.keyspaces for group in keyspace.groups.items())
    for group, tables in groups:
        ranges = [
            placed.range for placed in cluster.placements.ring(group).ranges if placed.group.reads == (own,)
        ]
        for stored_id in with_ballots(table.id for table in tables):
            between = tokens_between(lack.first_key, lack.last_key, stored_id)
            for range_ in ranges if between is not None else ():
                shared = range_.intersection(between) if between is not None else None
                if shared is not None:
                    first_key, above = keys.token_bounds(stored_id, shared)
                    yield replace(lack, first_key=first_key, last_key=above, sole=True)


#: Where the newest epoch is kept whose inherited ranges are wiped: eight bytes, big-endian.
_MARK = b"inherited"


class InheritedRanges:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        engine: StorageEngine,
    ) -> None:
        self._runtime = context.runtime
        self._engine = engine
        self._own_id = context.own_id
        kept = engine.local_fact(_MARK)
        self._done_epoch = int.from_bytes(kept, "big") if kept is not None else 0
        self._settle(state.current)
        state.listen(lambda _before, after, _entry: self._settle(after), parts_only=True)

    def _settle(self, cluster: ClusterMetadata) -> None:
        """Wipe what has been inherited since the last time."""
        if all(line.since_epoch <= self._done_epoch for line in cluster.degraded):
            return
        try:
            for tables, range_ in inherited_ranges(cluster, self._own_id(), self._done_epoch):
                self._engine.forget(tables, range_)
                self._runtime.probes.reach("inherited.wiped")
            sequence = self._engine.keep_local_fact(_MARK, cluster.epoch.to_bytes(8, "big"))
        except DiskRefused:
            return  # The store has said that it failed, and this node stops.
        self._done_epoch = cluster.epoch
        self._runtime.tasks.spawn(self._synced(sequence), f"inherited.synced.{cluster.epoch}")

    async def _synced(self, sequence: int) -> None:
        try:
            await self._engine.synced(sequence)
        except DiskRefused:
            self._runtime.probes.reach("inherited.not_synced")


def inherited_ranges(
    cluster: ClusterMetadata, node: int, after_epoch: int
) -> list[tuple[tuple[int, ...], Range]]:
    """Tables, and what of them the node has owned at once since then.

    Not tables of keyspaces that came to be replicated this way later: they owed nothing to who was given up,
    and a node that was away hears of both at once.
    """
    return [
        (
            tuple(
                table.id for table in cluster.schema.tables_in(line.group) if line.is_about(table.keyspace)
            ),
            line.range,
        )
        for line in cluster.degraded
        if line.since_epoch > after_epoch and node in line.inherited
    ]


#: Between two looks at whether a rebuild is under way.
LOOK_S: Final = 2
SUBMIT_TIMEOUT_MS: Final = 10_000


def refill_actor(node: int) -> str:
    """Who asks for the rebuild of a node that lost something, as requests tell it."""
    return f"node {node}, which lost a part of its store"


def has_ranges(cluster: ClusterMetadata, node: NodeId) -> bool:
    """Whether it has any range, or may get or give up one."""
    placed = (one for ring in cluster.placements.rings for one in ring.ranges)
    moving = (one for _, one in cluster.transitions.tree.items())
    return any(node in one.group.writes for one in placed) or any(node in one.union for one in moving)


class Refill:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        lacking: Lacking,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._submitter = submitter
        self._lacking = lacking
        self._own_id = context.own_id
        self._log = context.log
        self._refused = ""

    def start(self) -> None:
        if self._lacking.fillable:
            for lack in self._lacking.fillable:
                self._log("storage.lacking", lost=lack.lost or "the whole store")
            self._runtime.tasks.spawn(self._run(), "node.refill")

    async def _run(self) -> None:
        while self._lacking.fillable:
            own, cluster = NodeId(self._own_id()), self._state.current
            if not has_ranges(cluster, own):
                # A rebuild would find nothing to do, and end before it reaches this node.
                await self._lacking.filled(self._lacking.fillable, ())
                break
            if own not in cluster.requests.by_node:
                await self._ask(own)
            await asyncio.sleep(LOOK_S)
        self._runtime.probes.reach("refill.done")
        left = sum(lack.sole for lack in self._lacking.current)
        self._log("storage.filled", lost_for_good=left)

    async def _ask(self, own: NodeId) -> None:
        wanted = EnqueueRequest(Rebuild(own), actor=refill_actor(own))
        try:
            await self._submitter.submit(wanted, SUBMIT_TIMEOUT_MS)
            self._refused = ""
        except LockstepError as error:
            # It is asked again, until it can be; the reason is told when it is another one.
            if error.message != self._refused:
                self._log("storage.refill_waits", reason=error.message)
            self._refused = error.message
