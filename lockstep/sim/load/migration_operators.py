"""Operators who take the clients' keyspace from the ring to tablets, or to tracked replication, and back, or
not, while clients go on.

Invariant: a step is asked for once, and what refuses it stands in the metadata; the run may end anywhere.
"""

from __future__ import annotations

import asyncio
from functools import partial

from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.repairs import RepairPart, RepairState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.tablet_migration import MigrateKeyspace, Step
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import AlterKeyspace
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream
from lockstep.values.errors import LockstepError
from lockstep.values.tokens import FULL_RING

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


class TrackingOperators:
    """`pause_s`: mean pause between two changes of how the keyspace's replicas know what they hold. A repair
    that makes ids tell of everything follows each change to tracked, if it gets that far."""

    def __init__(self, operators: Operators, pause_s: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_s = pause_s
        self._draw: Stream = operators.cluster.world.stream("tracking operators")

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "tracking operators")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1 / self._pause_s))
            was = self._cluster.newest.schema.by_name[KEYSPACE].tracked
            change = AlterKeyspace(KEYSPACE, replication_type="untracked" if was else "tracked")
            await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, ChangeSchema(change))
            if not self._cluster.newest.schema.by_name[KEYSPACE].tracked:
                continue
            ready = [name for name in self._cluster.in_service() if self._cluster.ready(name)]
            if ready:
                name = self._draw.choice(ready)
                self._cluster.processes[name].submit(partial(self._repair, self._cluster.nodes[name]))

    async def _repair(self, node: Node, _runtime: Runtime) -> None:
        keyspace = node.log.cluster.schema.by_name.get(KEYSPACE)
        if keyspace is None or not keyspace.tables:
            return
        parts = [
            RepairPart(KEYSPACE, group, tuple(table.id for table in tables), (FULL_RING,))
            for group, tables in sorted(keyspace.groups.items())
        ]
        try:
            begun = await node.work.repairs.begin(parts)
        except LockstepError as error:
            self._cluster.tell("operator", f"no repair: {error}")
            return
        while (found := node.log.cluster.repairs.find(begun.id)) is not None:
            if found.state is not RepairState.RUNNING:
                tracked = node.log.cluster.schema.by_name[KEYSPACE].tracked
                if tracked and found.state is RepairState.DONE:
                    self._cluster.fact("ids tell of everything")
                return
            await asyncio.sleep(0.1)
