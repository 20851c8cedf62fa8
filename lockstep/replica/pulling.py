"""Getting what lacks here of what another replica told that it holds.

Invariant: what is on its way from one of the others, nobody else is asked for meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from lockstep.internode.handshake import Address
from lockstep.replica.tracked import TrackedReplica
from lockstep.runtime.ports import Runtime
from lockstep.storage.shard_logs import Shard
from lockstep.storage.witnessing import has_room
from lockstep.tracking.held import NOTHING, Held
from lockstep.values.errors import LockstepError

#: A range, and what a replica holds of it.
Holding = tuple[Shard, Held]


class Pulling:
    def __init__(self, runtime: Runtime, tracked: TrackedReplica, timeout_ms: Callable[[], float]) -> None:
        """`timeout_ms`: of one question."""
        self._runtime = runtime
        self._tracked = tracked
        self._journal = tracked.journal
        self._timeout_ms = timeout_ms
        #: What is on its way, by range.
        self._under_way: dict[Shard, Held] = {}
        #: Nodes from which something is got in the background: one task each at most.
        self._sources: set[int] = set()

    async def each(self, told: Iterable[Holding], source: Address) -> None:
        for shard, held in told:
            if not self._journal.logs_of(shard).covers(held):
                await self._pull(shard, held, source)

    def begin(self, node: int, told: Iterable[Holding], source: Address) -> None:
        """As `each`, in the background; nothing where a task gets something from the node."""
        lacking = [(shard, held) for shard, held in told if not self._journal.logs_of(shard).covers(held)]
        if lacking and node not in self._sources:
            self._sources.add(node)
            self._runtime.tasks.spawn(self._background(node, lacking, source), "reconcile-pull")

    async def _background(self, node: int, lacking: Sequence[Holding], source: Address) -> None:
        try:
            await self.each(lacking, source)
        finally:
            self._sources.discard(node)

    async def _pull(self, shard: Shard, held: Held, source: Address) -> None:
        pulling = self._under_way.get(shard, NOTHING)
        lacking = held.difference(self._journal.held(shard)).difference(pulling)
        if not lacking or not has_room(self._journal, shard):
            return
        self._under_way[shard] = pulling.union(lacking)
        try:
            await self._tracked.pull(shard, lacking, source, self._timeout_ms())
        except LockstepError:
            self._runtime.probes.reach("reconcile.not_pulled")
        finally:
            left = self._under_way.pop(shard).difference(lacking)
            if left:
                self._under_way[shard] = left
