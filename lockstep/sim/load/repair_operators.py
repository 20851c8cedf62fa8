"""Operators who repair the clients' tables now and then, and let recorded repairs decide what is purged.

Some repairs are of all, some of a part of the ring, of one table, or between some of the replicas only.

Invariant: a deletion is purged some seconds after its repair began at the earliest, which is longer than any
write of a client is under way; so no deleted row may ever be seen again.
"""

from __future__ import annotations

import asyncio
from functools import partial

from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.repairs import RepairPart, RepairState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import AlterOptions
from lockstep.schema.table_options import option
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

#: Above the longest time that a write of a client may take, with what clocks differ.
_DELAY_S = 3
_OPTIONS = (
    ("gc_grace_seconds", "1"),
    ("tombstone_gc", (("mode", "repair"), ("propagation_delay_in_seconds", str(_DELAY_S)))),
)
_INCREMENTAL = 0.5
#: Between two repairs at the end, of which one runs at a time.
_LAST_PAUSE_S = 1.0
#: Share of repairs that are of a part only, where some are, and of those between some replicas only.
_PARTIAL = 0.5
_SOME_REPLICAS = 0.25


class RepairOperators:
    """`pause_s`: mean pause between two repairs. `partial`: some are of a part only."""

    def __init__(self, operators: Operators, pause_s: float, *, partial: bool = False) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._cluster.purges = True
        self._pause_s = pause_s
        self._partial = partial
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

    async def end(self, runtime: Runtime) -> None:
        """Repair until no range is degraded."""
        while self._cluster.newest.degraded:
            ready = [name for name in self._cluster.in_service() if self._cluster.ready(name)]
            if ready:
                node = self._cluster.nodes[self._draw.choice(ready)]
                self._cluster.processes[node.configuration.node.name].submit(partial(self._repair_all, node))
            await asyncio.sleep(_LAST_PAUSE_S)

    async def _set_options(self, runtime: Runtime) -> None:
        keyspace = self._cluster.newest.schema.by_name.get(KEYSPACE)
        for table in keyspace.tables if keyspace is not None else ():
            if option(table.options, "gc_grace_seconds") != "1":
                change = ChangeSchema(AlterOptions(KEYSPACE, table.name, _OPTIONS))
                await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, change)

    async def _repair(self, node: Node, incremental: bool, _runtime: Runtime) -> None:
        keyspace = node.log.cluster.schema.by_name.get(KEYSPACE)
        if keyspace is None or not keyspace.tables:
            return
        tables = tuple(table.id for table in keyspace.tables)
        ranges, nodes = self._drawn_ranges(), self._drawn_nodes(node)
        if self._partial and self._draw.random() < _PARTIAL:
            tables = (self._draw.choice(tables),)
        await self._drive(node, tables, ranges, nodes, incremental)

    async def _repair_all(self, node: Node, _runtime: Runtime) -> None:
        tables = tuple(table.id for table in node.log.cluster.schema.by_name[KEYSPACE].tables)
        await self._drive(node, tables, (FULL_RING,))

    async def _drive(
        self,
        node: Node,
        tables: tuple[int, ...],
        ranges: tuple[Range, ...],
        nodes: tuple[NodeId, ...] = (),
        incremental: bool = False,
    ) -> None:
        keyspace = node.log.cluster.schema.by_name[KEYSPACE]
        part = RepairPart(KEYSPACE, keyspace.replication, tables, ranges)
        try:
            begun = await node.work.repairs.begin((part,), nodes, incremental=incremental)
        except LockstepError as error:
            self._cluster.tell("operator", f"no repair: {error}")
            return
        while (found := node.log.cluster.repairs.find(begun.id)) is not None:
            if found.state is not RepairState.RUNNING:
                self._cluster.fact(f"repair {found.state.value}")
                if found.state is RepairState.DONE and (nodes or ranges != (FULL_RING,)):
                    self._cluster.fact(
                        "a repair between some replicas done" if nodes else "a partial repair done"
                    )
                self._cluster.tell("operator", f"repair {found.id} {found.state.value} {found.reason}")
                return
            await asyncio.sleep(0.1)

    def _drawn_ranges(self) -> tuple[Range, ...]:
        """The whole ring, or a part of it."""
        if not self._partial or self._draw.random() >= _PARTIAL:
            return (FULL_RING,)
        bounds = sorted(self._draw.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(2))
        first, last = bounds
        if self._draw.random() < 0.5:
            return (Range(first, last),)
        return (Range(TOKEN_MIN, first), Range(last, TOKEN_MAX))

    def _drawn_nodes(self, node: Node) -> tuple[NodeId, ...]:
        """Who takes part; empty is all replicas."""
        if not self._partial or self._draw.random() >= _SOME_REPLICAS:
            return ()
        normal = [info.id for info in node.log.cluster.directory.in_state(NodeState.NORMAL)]
        return tuple(sorted(self._draw.sample(normal, min(2, len(normal)))))
