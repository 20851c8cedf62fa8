"""Operators who change the replication of the clients' keyspace, and take some of the changes back.

Invariant: factors stay between 2 and the number of nodes, so that the loss of one disk loses nothing; a
change that holds the removal of a dead node up is cancelled.
"""

from __future__ import annotations

import asyncio

from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import OperationKind
from lockstep.metadata.registry import EntryKind
from lockstep.runtime.ports import Runtime
from lockstep.schema.model import Replication
from lockstep.sim.door import KEYSPACE
from lockstep.sim.operators import Operators
from lockstep.sim.streams import Stream
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.values.ids import NodeId

_FACTORS = (2, 3, 3, 4)
_CANCEL = 0.2
_AGAIN_S = 0.5
#: Far longer than a run may take to settle.
_ENDS_MAX = 1000
_OF_DEAD_NODES = (OperationKind.REMOVE, OperationKind.REPLACE)


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
        newest = self._cluster.newest
        factor = max(factor for _, factor in newest.schema.by_name[KEYSPACE].replication.factors)
        return factor > len(newest.directory.in_state(NodeState.NORMAL))

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
        newest = self._cluster.newest
        present = newest.schema.by_name[KEYSPACE].replication
        nodes = len(newest.directory.in_state(NodeState.NORMAL))
        factor = min(nodes, self._draw.choice(_FACTORS))
        factors = tuple((dc, factor) for dc, _ in present.factors)
        target = Replication(present.strategy, factors)
        if factor < 2 or target == present:
            return
        request = EnqueueRequest(
            OperationKind.REPLICATION, NodeId(0), actor="operator", keyspace=KEYSPACE, target=target
        )
        await self._operators.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)

    async def _make_way(self, runtime: Runtime) -> None:
        """A node that is gone for good can take part in nothing: its removal or replacement goes first."""
        requests = self._cluster.newest.requests
        waiting = any(request.kind in _OF_DEAD_NODES for request in requests.queue)
        change = requests.by_keyspace.get(KEYSPACE)
        if waiting and change is not None:
            cancel = CancelRequest(change.id, "a dead node is to be removed or replaced")
            await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
