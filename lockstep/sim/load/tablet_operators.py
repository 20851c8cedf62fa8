"""Operators who ask for more tablets of tables, or for fewer, before what they asked for last is done.

Invariant: they only change what is said of tables; the balancer decides, and ends what it has begun.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.table_streams import STREAMS
from lockstep.metadata.tablets import ResizePhase, TabletGroupHead
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import AlterOptions
from lockstep.schema.log_tables import is_log
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream
from lockstep.values.limits import CDC_LEEWAY_MS
from lockstep.values.node_limits import CDC_TABLETS_AHEAD_MS, CDC_TABLETS_POSTPONED_MS

#: What is said of a table, one of these: more than it began with, fewer, an odd end of each, nothing.
_HINTS: Final = (
    (("min_tablet_count", "16"),),
    (("min_tablet_count", "32"),),
    (("max_tablet_count", "4"),),
    (("max_tablet_count", "2"),),
    (),
)
_AGAIN_S: Final = 0.25
_ENDS_S: Final = 100.0
#: Where changes of a table are captured, besides: a map that is new at the end of the faults, whose streams
#: were postponed for a replica that was down, and the merges from 32 tablets to two that may follow, each of
#: which settles as long as its streams count later.
_MERGES: Final = 4
_CAPTURED_ENDS_S: Final = (
    CDC_TABLETS_POSTPONED_MS + CDC_LEEWAY_MS + _MERGES * (CDC_TABLETS_AHEAD_MS + CDC_LEEWAY_MS)
) / 1000


class TabletOperators:
    """`pause_s`: mean pause between two changes."""

    def __init__(self, operators: Operators, pause_s: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_s = pause_s
        self._draw: Stream = operators.cluster.world.stream("tablet operators")

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "tablet operators")

    async def end(self, runtime: Runtime) -> None:
        """Until nothing is decided that is not done: moves and resizes come to an end by themselves.
        Violation where they do not."""
        heads: list[TabletGroupHead] = []
        ends_s = _ENDS_S + (_CAPTURED_ENDS_S if self._cluster.newest.parts[STREAMS] else 0.0)
        for _ in range(int(ends_s / _AGAIN_S)):
            heads = [group.head for group in self._cluster.newest.tablets.groups]
            if all(head.resizing.phase is ResizePhase.NONE for head in heads):
                return
            await asyncio.sleep(_AGAIN_S)
        waiting = [f"{head.keyspace}.{head.table} {head.resizing.phase}" for head in heads]
        raise Violation("LIVENESS", f"{ends_s:.0f} s after settling: {', '.join(waiting)}")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.idle:
            await asyncio.sleep(self._draw.expovariate(1 / self._pause_s))
            if self._operators.stopped:
                continue
            # A view with its base's key lies where that one does, and is asked for nothing of its own; nor is
            # a log of changes, which nobody may alter.
            tables = self._cluster.newest.schema.by_name[KEYSPACE].tables
            there = [table.name for table in tables if table.view is None and not is_log(table)]
            if there:
                name, hints = self._draw.choice(there), self._draw.choice(_HINTS)
                change = ChangeSchema(AlterOptions(KEYSPACE, name, (("tablets", hints),)))
                await self._operators.submit(runtime, EntryKind.SCHEMA_CHANGE, change)
