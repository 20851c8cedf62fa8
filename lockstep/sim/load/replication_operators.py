"""Operators who change the replication of the clients' keyspace, and take some of the changes back.

Invariant: there are never less than 2 replicas, so that the loss of one disk loses nothing, nor more than
nodes of the data centre; a change that holds the removal of a dead node up is cancelled.
"""

from __future__ import annotations

import asyncio

from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.runtime.ports import Runtime
from lockstep.schema.model import Replication
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.requests import CancelRequest, EnqueueRequest

_FACTORS = (2, 3, 3, 4)
#: Where there are several data centres, for one of them.
_FACTORS_OF_DC = (0, 1, 2, 3)
_CANCEL = 0.2
_AGAIN_S = 0.5
#: Far longer than a run may take to settle.
_ENDS_MAX = 1000


class ReplicationOperators:
    """`pause_s`: mean pause between two changes."""

    def __init__(self, operators: Operators, pause_s: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_s = pause_s
        self._draw: Stream = operators.cluster.world.stream("replication operators")

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "replication operators")

    async def end(self, runtime: Runtime) -> None:
        """Until no change is under way, and no factor above the number of nodes: clients ask for ALL."""
        for _ in range(_ENDS_MAX):
            if not self._under_way:
                if not self._is_too_large():
                    return
                await self._change(runtime)
            await asyncio.sleep(_AGAIN_S)

    def _is_too_large(self) -> bool:
        replication = self._cluster.newest.schema.by_name[KEYSPACE].replication
        return any(factor > self._nodes(dc) for dc, factor in replication.factors)

    def _nodes(self, dc: str) -> int:
        """How many nodes may be replicas: of a data centre, or in all for ""."""
        normal = self._cluster.newest.directory.in_state(NodeState.NORMAL)
        return sum(dc in ("", node.dc) for node in normal)

    @property
    def _under_way(self) -> bool:
        return KEYSPACE in self._cluster.newest.requests.by_keyspace

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.idle:
            await asyncio.sleep(self._draw.expovariate(1 / self._pause_s))
            if self._operators.stopped:
                if self._under_way:
                    await self._make_way(runtime)
                continue
            request = self._cluster.newest.requests.by_keyspace.get(KEYSPACE)
            if request is None:
                await self._change(runtime)
            elif self._draw.random() < _CANCEL:
                cancel = CancelRequest(request.id, "operator")
                await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
            else:
                await self._make_way(runtime)

    async def _change(self, runtime: Runtime) -> None:
        present = self._cluster.newest.schema.by_name[KEYSPACE].replication
        target = self._in_one_dc(present) if self._cluster.shape.dcs > 1 else self._everywhere(present)
        if target.total < 2 or target == present:
            return
        request = EnqueueRequest(ReplicationChange(KEYSPACE, target), actor="operator")
        await self._operators.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)

    def _everywhere(self, present: Replication) -> Replication:
        factor = self._draw.choice(_FACTORS)
        factors = tuple((dc, min(self._nodes(dc), factor)) for dc, _ in present.factors)
        return Replication(present.strategy, factors)

    def _in_one_dc(self, present: Replication) -> Replication:
        """Another factor for one data centre: maybe its first replicas, maybe none any more."""
        factors = dict(present.factors)
        dc = self._draw.choice(self._cluster.dcs())
        factors[dc] = min(self._nodes(dc), self._draw.choice(_FACTORS_OF_DC))
        # What is too large is made smaller first, or nothing that is wanted can run.
        factors = {dc: min(factor, self._nodes(dc)) for dc, factor in factors.items()}
        return Replication(present.strategy, tuple(sorted((dc, n) for dc, n in factors.items() if n)))

    async def _make_way(self, runtime: Runtime) -> None:
        """A node that is gone for good can take part in nothing: its removal or replacement goes first."""
        requests = self._cluster.newest.requests
        waiting = any(request.about.presumed_dead for request in requests.queue)
        change = requests.by_keyspace.get(KEYSPACE)
        if waiting and change is not None:
            cancel = CancelRequest(change.id, "a dead node is to be removed or replaced")
            await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
