"""Operators that change the schema at once and against each other, through any node's door, under load.

Invariant: what an operator was told is what the log says. A table that was created at an epoch is there at
that epoch with the id of its creator, and was not there one epoch before: each race has one winner. What is
done to tables that clients use never touches the columns that they use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import (
    AddColumns,
    CreateTable,
    DropColumns,
    DropTable,
    EmptyTable,
    NewColumn,
    SchemaChange,
)
from lockstep.schema.model import ColumnKind
from lockstep.schema.type_changes import CreateType, DropType
from lockstep.sim.checkers.log import Submitted
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream

_OPERATORS = 4
_PATIENCE_S = 3.0
#: Few names, so that operators meet.
_NAMES = ("r1", "r2")
_TYPE = "kind"


class Told(msgspec.Struct, frozen=True):
    """What an operator was told of a change."""

    change: SchemaChange
    submitted: Submitted


class SchemaOperators:
    """`pause_ms`: mean pause of each operator; `tables`: those that clients use."""

    def __init__(self, operators: Operators, pause_ms: float, tables: Sequence[str]) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_ms = pause_ms
        self._tables = tables
        self._draw: Stream = operators.cluster.world.stream("schema operators")
        self._number = 0
        self.told: list[Told] = []

    def start(self, runtime: Runtime) -> None:
        for _ in range(_OPERATORS):
            runtime.tasks.spawn(self._run(runtime), "schema operator")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1000 / self._pause_ms))
            change = self._change(runtime)
            submitted = await self._operators.submit(
                runtime, EntryKind.SCHEMA_CHANGE, ChangeSchema(change), patience_s=_PATIENCE_S
            )
            self.told.append(Told(change, submitted))
            self._cluster.fact(f"schema change {submitted.outcome}")

    def _change(self, runtime: Runtime) -> SchemaChange:
        draw, name = self._draw, self._draw.choice(_NAMES)
        self._number += 1
        column = f"x{draw.randrange(2)}"
        chosen = draw.randrange(10)
        if chosen < 3:
            kind = draw.choice(("int", f"frozen<{_TYPE}>"))
            columns = (NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0), NewColumn("x0", kind))
            return CreateTable(KEYSPACE, name, runtime.random.uuid(), columns)
        if chosen == 3:
            return DropTable(KEYSPACE, name)
        if chosen == 4:
            return CreateType(KEYSPACE, _TYPE, (("a", "int"),))
        if chosen == 5:
            return DropType(KEYSPACE, _TYPE)
        if chosen == 6:
            return EmptyTable(KEYSPACE, name)
        table = draw.choice((name, *self._tables))
        if chosen == 7:
            return DropColumns(KEYSPACE, table, (column,), self._number)
        return AddColumns(KEYSPACE, table, (NewColumn(column, draw.choice(("int", "text"))),))

    def judge(self, values: Sequence[ClusterMetadata]) -> None:
        """SCH-1 of the tables that were created: `values[e]` is the value of epoch e."""
        for told in self.told:
            change, epoch = told.change, told.submitted.epoch
            if told.submitted.outcome != "ok" or not isinstance(change, CreateTable | DropTable):
                continue
            before = values[epoch - 1].schema.table(KEYSPACE, change.name)
            after = values[epoch].schema.table(KEYSPACE, change.name)
            if isinstance(change, DropTable):
                if before is None or after is not None:
                    raise Violation("SCH-1", f"{change.name} was not dropped at epoch {epoch}")
            elif before is not None or after is None or after.uuid != change.uuid:
                raise Violation("SCH-1", f"two creators of {change.name} won, one at epoch {epoch}")
