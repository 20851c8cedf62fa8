"""What nodes estimate of what they hold: for the balancer, what they can hold and what their tablets weigh;
for plans, how many bytes ranges hold.

Invariant: asking changes nothing. A node that does not answer in time is left out, and nobody guesses for it:
its ranges are unknown, not empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.internode import verbs
from lockstep.node.context import NodeContext
from lockstep.node.work.worker import table_ids
from lockstep.placement.tablets.load import NodeLoad, TabletLoad
from lockstep.replica.replica import RATE_AFTER_S, TabletCounts, load_of
from lockstep.storage.engine import StorageEngine
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.limits import (
    SIZE_PAIRS_PER_QUESTION_MAX,
    SIZE_PAIRS_PER_RANGE_MIN,
    SIZE_RANGES_ASKED_MAX,
)
from lockstep.values.tokens import Range

#: A node that estimates thousands of tablets beside its requests takes seconds; one that takes longer has no
#: room for more tablets either.
LOADS_ASK_TIMEOUT_MS: Final = 30_000


class AskLoads(msgspec.Struct, frozen=True, array_like=True):
    """What do you hold, and how busy are your tablets? As the tablets lie at this epoch, or later."""

    epoch: int = 0


class Loads(msgspec.Struct, frozen=True, array_like=True):
    """`node` says it; `tablets`: by group, (last token, load) of each. `cpu`: processors at work for it, on
    average since it was asked last."""

    node: NodeId
    capacity_bytes: int
    tablets: tuple[tuple[int, tuple[tuple[int, TabletLoad], ...]], ...] = ()
    cpu: float = 0.0

    def value(self) -> NodeLoad:
        return NodeLoad(self.capacity_bytes, self.cpu, {group: dict(loads) for group, loads in self.tablets})


class TabletLoads:
    def __init__(self, context: NodeContext, engine: StorageEngine, counts: TabletCounts) -> None:
        self._context = context
        self._engine = engine
        self._counts = counts
        clock = context.runtime.clock
        #: When the processors' work was read last, what it was, and what that came to.
        self._worked = (clock.monotonic_s(), clock.processor_s(), 0.0)
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
        said = tuple((group_id, tuple(loads)) for group_id, loads in found.items())
        return Loads(own, capacity, said, self._cpu())

    def _cpu(self) -> float:
        clock = self._context.runtime.clock
        now_s, before = clock.monotonic_s(), self._worked
        if now_s - before[0] >= RATE_AFTER_S:
            worked_s = clock.processor_s()
            self._worked = (now_s, worked_s, (worked_s - before[1]) / (now_s - before[0]))
        return self._worked[2]

    async def ask(
        self, nodes: Iterable[NodeId], timeout_ms: int = LOADS_ASK_TIMEOUT_MS
    ) -> dict[NodeId, NodeLoad]:
        """What each of these nodes says; those that do not answer are left out."""
        answers: dict[NodeId, NodeLoad] = {}

        async def one(node: NodeId) -> None:
            info = self._context.cluster().directory.by_id[node]
            if node == self._context.own_id():
                answers[node] = (await self.own()).value()
                return
            try:
                said: Loads = await self._context.internode.request(
                    (info.address, info.internode_port), verbs.TABLET_LOADS, AskLoads(), timeout_ms
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


#: A person waits for the plan: whoever has not answered by then is unknown.
PLAN_ASK_TIMEOUT_MS = 2000

#: One thing to measure: all tables of a placement group, in a range.
Wanted = tuple[int, Range]


class AskSizes(msgspec.Struct, frozen=True, array_like=True):
    """How many bytes do you hold of each of these? At most SIZE_RANGES_ASKED_MAX. With `keyspace`, of that
    one alone: a change of its replication copies nothing else, and gives it a group that is not there yet."""

    ranges: tuple[Wanted, ...]
    keyspace: str = ""


class Sizes(msgspec.Struct, frozen=True, array_like=True):
    """One number for each range asked about, as many as the question's first ones. `rate_bytes_s`: the rate
    of the last stream that this node took in, 0 when it took none since it started."""

    bytes: tuple[int, ...]
    rate_bytes_s: int = 0


class RangeSizes:
    """`rate()` is the rate of the last stream taken in here, bytes a second."""

    def __init__(
        self,
        context: NodeContext,
        engine: StorageEngine,
        rate: Callable[[], int],
    ) -> None:
        self._internode = context.internode
        self._engine = engine
        self._cluster = context.cluster
        self._own_id = context.own_id
        self._rate = rate
        context.internode.register(verbs.RANGE_SIZES, AskSizes, Sizes, self._serve)

    async def _serve(self, _peer: object, question: AskSizes) -> Sizes:
        return await self.own(question.ranges, question.keyspace)

    async def own(self, ranges: Sequence[Wanted], keyspace: str = "") -> Sizes:
        """What this node holds of the ranges; the work is bounded whatever is asked."""
        cluster = self._cluster()
        asked = ranges[:SIZE_RANGES_ASKED_MAX]
        each = max(SIZE_PAIRS_PER_RANGE_MIN, SIZE_PAIRS_PER_QUESTION_MAX // max(1, len(asked)))
        found = []
        named = cluster.schema.by_name.get(keyspace)
        for group, range_ in asked:
            total = 0
            tables = table_ids(cluster, group)
            if keyspace:
                tables = tuple(table.id for table in named.tables) if named is not None else ()
            for table in tables:
                total += self._engine.estimated_bytes(table, range_, each)[0]
                await asyncio.sleep(0)
            found.append(total)
        return Sizes(tuple(found), self._rate())

    async def ask(self, wanted: Mapping[NodeId, Sequence[Wanted]], keyspace: str = "") -> dict[NodeId, Sizes]:
        """What each node says of its ranges; nodes that do not answer are left out."""
        answers: dict[NodeId, Sizes] = {}

        async def one(node: NodeId, ranges: Sequence[Wanted]) -> None:
            info = self._cluster().directory.by_id[node]
            if node == self._own_id():
                answers[node] = await self.own(ranges, keyspace)
                return
            try:
                answers[node] = await self._internode.request(
                    (info.address, info.internode_port),
                    verbs.RANGE_SIZES,
                    AskSizes(tuple(ranges[:SIZE_RANGES_ASKED_MAX]), keyspace),
                    PLAN_ASK_TIMEOUT_MS,
                )
            except LockstepError:
                return  # Unknown, as the plan then says.

        async with asyncio.TaskGroup() as group:
            for node in sorted(wanted):
                group.create_task(one(node, wanted[node]))
        return answers
