"""Operators who take the clients' keyspace from the ring to tablets, and back, or not, while clients go on.

Invariant: a step is asked for once, and what refuses it stands in the metadata; the run may end anywhere.
"""

from __future__ import annotations

import asyncio

from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.tablet_migration import MigrateKeyspace, Step
from lockstep.runtime.ports import Runtime
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream

#: Of the steps of a keyspace on its way: most go back, so that it begins anew.
_BACK = 0.8


class MigrationOperators:
    """`pause_s`: mean pause between two steps."""

    def __init__(self, operators: Operators, pause_s: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_s = pause_s
        self._draw: Stream = operators.cluster.world.stream("migration operators")

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "migration operators")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1 / self._pause_s))
            keyspace = self._cluster.newest.schema.by_name[KEYSPACE]
            if keyspace.tablets is not None and not keyspace.tablets.from_ring:
                return
            goes_back = self._draw.random() < _BACK
            step = Step.START if keyspace.tablets is None else Step.ROLLBACK if goes_back else Step.FINALIZE
            wanted = MigrateKeyspace(KEYSPACE, step)
            await self._operators.submit(runtime, EntryKind.MIGRATE_KEYSPACE, wanted)
            after = self._cluster.newest.schema.by_name[KEYSPACE].tablets
            if (after is None) is not (keyspace.tablets is None):
                self._cluster.fact("tablets.started" if after is not None else "tablets.taken_back")
