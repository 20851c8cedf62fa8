"""An operator who takes joins back while data is on its way, so that the newcomer begins once more.

Invariant: he is told of the stage by the watch and acts through a node as operators do: a cancel may come too
late, be refused, or find that the node has joined.
"""

from __future__ import annotations

import asyncio

from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Operation, Stage
from lockstep.runtime.ports import Runtime
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream
from lockstep.sim.watch import Watch
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.requests import CancelRequest

_LOOK_S = 0.03


class CancellingOperators:
    """`chance`: of each join, that it is cancelled once its newcomer gets writes."""

    def __init__(self, operators: Operators, watch: Watch, chance: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._chance = chance
        self._draw: Stream = operators.cluster.world.stream("cancelling operators")
        self._wanted: dict[int, float] = {}
        self._cancelled: dict[str, None] = {}
        watch.listeners.append(self._entered)

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "cancelling operators")

    def _entered(self, operation: Operation, stage: Stage | None) -> None:
        if not isinstance(operation.body, Bootstrap):
            return
        name = self._cluster.name_of(operation.node)
        if stage is Stage.WRITE_BOTH_READ_OLD and self._draw.random() < self._chance:
            wait_s = self._draw.choice((0.0, 0.1, 0.5)) * self._draw.random()
            self._wanted[operation.id] = self._cluster.world.now_s() + wait_s
        elif stage is Stage.ROLLBACK_TO_NORMAL:
            self._cancelled[name] = None
        elif stage is None and name in self._cancelled and operation.stage is not Stage.ROLLBACK_TO_NORMAL:
            del self._cancelled[name]
            self._cluster.fact("a cancelled newcomer joined again")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(_LOOK_S)
            now_s = self._cluster.world.now_s()
            for operation_id in [one for one, at_s in self._wanted.items() if at_s <= now_s]:
                del self._wanted[operation_id]
                await self._cancel(runtime, operation_id)

    async def _cancel(self, runtime: Runtime, operation_id: int) -> None:
        for request in self._cluster.newest.requests.live:
            if request.operation_id == operation_id:
                cancel = CancelRequest(request.id, "operator")
                await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
                return
