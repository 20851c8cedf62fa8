"""What nodes tell the balancer of themselves: what they can hold, and what their tablets weigh.

Invariant: asking changes nothing. A node that does not answer in time is left out, and nobody guesses for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from lockstep.internode import verbs
from lockstep.node.context import NodeContext
from lockstep.node.work.worker import table_ids
from lockstep.placement.tablets.load import NodeLoad, TabletLoad
from lockstep.replica.tablet_counts import TabletCounts, load_of
from lockstep.storage.engine import StorageEngine
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.limits import SIZE_PAIRS_PER_QUESTION_MAX, SIZE_PAIRS_PER_RANGE_MIN

#: A node that estimates thousands of tablets beside its requests takes seconds; one that takes longer has no
#: room for more tablets either.
ASK_TIMEOUT_MS: Final = 30_000


class AskLoads(msgspec.Struct, frozen=True, array_like=True):
    """What do you hold, and how busy are your tablets? As the tablets lie at this epoch, or later."""

    epoch: int = 0


class Loads(msgspec.Struct, frozen=True, array_like=True):
    """`node` says it; `tablets`: by group, (last token, load) of each."""

    node: NodeId
    capacity_bytes: int
    tablets: tuple[tuple[int, tuple[tuple[int, TabletLoad], ...]], ...] = ()

    def value(self) -> NodeLoad:
        return NodeLoad(self.capacity_bytes, tablets={group: dict(loads) for group, loads in self.tablets})


class TabletLoads:
    def __init__(self, context: NodeContext, engine: StorageEngine, counts: TabletCounts) -> None:
        self._context = context
        self._engine = engine
        self._counts = counts
        context.internode.register(verbs.TABLET_LOADS, AskLoads, Loads, self._serve)

    async def _serve(self, _peer: object, _question: AskLoads) -> Loads:
        return await self.own()

    async def own(self) -> Loads:
        """What this node holds; the work is bounded, so that estimates get rougher with more tablets."""
        cluster, own = self._context.cluster(), NodeId(self._context.own_id())
        held = [
            (group.id, placed.range)
            for group in cluster.tablets.groups
            for placed in cluster.placements.ring(group.id).ranges
            if own in placed.group.writes
        ]
        each = max(SIZE_PAIRS_PER_RANGE_MIN, SIZE_PAIRS_PER_QUESTION_MAX // max(1, len(held)))
        rates = self._counts.rates(self._context.runtime.clock.monotonic_s())
        found: dict[int, list[tuple[int, TabletLoad]]] = {}
        for group_id, range_ in held:
            size = 0
            for table in table_ids(cluster, group_id):
                size += self._engine.estimated_bytes(table, range_, each)[0]
                await asyncio.sleep(0)
            load = load_of(size, rates.get((group_id, range_.right), (0.0, 0.0)))
            found.setdefault(group_id, []).append((range_.right, load))
        capacity = self._context.runtime.disk.free_bytes() + self._engine.size_bytes()
        return Loads(own, capacity, tuple((group_id, tuple(loads)) for group_id, loads in found.items()))

    async def ask(self, nodes: Iterable[NodeId]) -> dict[NodeId, NodeLoad]:
        """What each of these nodes says; those that do not answer are left out."""
        answers: dict[NodeId, NodeLoad] = {}

        async def one(node: NodeId) -> None:
            info = self._context.cluster().directory.by_id[node]
            if node == self._context.own_id():
                answers[node] = (await self.own()).value()
                return
            try:
                said: Loads = await self._context.internode.request(
                    (info.address, info.internode_port), verbs.TABLET_LOADS, AskLoads(), ASK_TIMEOUT_MS
                )
            except LockstepError as error:
                self._context.log("tablets.load_unknown", node=node, error=error.message)
                return
            if said.node == node:
                answers[node] = said.value()

        async with asyncio.TaskGroup() as group:
            for node in sorted(nodes):
                group.create_task(one(node))
        return answers
