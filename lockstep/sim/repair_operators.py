"""Operators who repair the clients' tables now and then, and let recorded repairs decide what is purged.

Invariant: a deletion is purged some seconds after its repair began at the earliest, which is longer than any
write of a client is under way; so no deleted row may ever be seen again.
"""

from __future__ import annotations

import asyncio
from functools import partial

from lockstep.metadata.registry import EntryKind
from lockstep.metadata.repairs import RepairPart, RepairState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import AlterOptions
from lockstep.schema.table_options import option
from lockstep.sim.door import KEYSPACE
from lockstep.sim.operators import Operators
from lockstep.sim.streams import Stream
from lockstep.values.errors import LockstepError
from lockstep.values.tokens import FULL_RING

#: Above the longest time that a write of a client may take, with what clocks differ.
_DELAY_S = 3
_OPTIONS = (
    ("gc_grace_seconds", "1"),
    ("tombstone_gc", (("mode", "repair"), ("propagation_delay_in_seconds", str(_DELAY_S)))),
)
_INCREMENTAL = 0.5


class RepairOperators:
    """`pause_s`: mean pause between two repairs."""

    def __init__(self, operators: Operators, pause_s: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._cluster.purges = True
        self._pause_s = pause_s
        self._draw: Stream = operators.cluster.world.stream("repair operators")

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "repair operators")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1 / self._pause_s))
            await self._set_options(runtime)
            ready = [name for name in self._cluster.in_service() if self._cluster.ready(name)]
            if ready and not self._operators.stopped:
                name = self._draw.choice(ready)
                work = partial(self._repair, self._cluster.nodes[name], self._draw.random() < _INCREMENTAL)
                self._cluster.processes[name].submit(work)

    async def _set_options(self, runtime: Runtime) -> None:
        keyspace = self._cluster.newest.schema.by_name.get(KEYSPACE)
        for table in keyspace.tables if keyspace is not None else ():
            if option(table.options, "gc_grace_seconds") != "1":
                change = ChangeSchema(AlterOptions(KEYSPACE, table.name, _OPTIONS))
                await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, change)

    async def _repair(self, node: Node, incremental: bool, _runtime: Runtime) -> None:
        keyspace = node.cluster.schema.by_name.get(KEYSPACE)
        if keyspace is None or not keyspace.tables:
            return
        tables = tuple(table.id for table in keyspace.tables)
        part = RepairPart(KEYSPACE, keyspace.replication, tables, (FULL_RING,))
        try:
            begun = await node.repairs.begin((part,), incremental=incremental)
        except LockstepError as error:
            self._cluster.tell("operator", f"no repair: {error}")
            return
        while (found := node.cluster.repairs.find(begun.id)) is not None:
            if found.state is not RepairState.RUNNING:
                self._cluster.fact(f"repair {found.state.value}")
                self._cluster.tell("operator", f"repair {found.id} {found.state.value} {found.reason}")
                return
            await asyncio.sleep(0.1)
