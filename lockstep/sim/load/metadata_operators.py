"""Submitters that load the metadata service itself, through every node's door, and change the schema at once
and against each other.

Unique values, snapshots and truncations on demand, other voters and changes taken back, freeze and thaw, a
second copy of what a leader recorded, contests about one type, and old ids asked for again. Invariant: every
submission is in the operators' record, also those that must be refused, and what an
operator was told is what the log says: a table that was created at an epoch is there at that epoch with the
id of its creator, and was not there one epoch before. What is done to tables that clients use never touches
their columns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.membership import (
    AdvanceMembership,
    CancelMembership,
    PrepareMembership,
    ServiceWish,
    SetService,
)
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import SetExtension
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

_SUBMITTERS = 5
_PATIENCE_S = 2.0
#: A node has said by then what became of a submission.
_VERDICT_S = 12.0
#: A service change is wanted by an operator about this often, on average.
_SERVICE_PAUSE_S = 0.35
_RETRY_PAUSE_S = 0.25
_THAW_S = 0.6
#: How often, and how many times, it is looked whether a change of voters runs.
_LOOK_S, _LOOKS_MAX = 0.02, 50
#: Few names, so that values replace each other.
_NAMES = 12
#: A type that is made and dropped, each by two at once.
_CONTESTED = "contested"


class MetadataOperators:
    """`pause_ms`: mean pause of each submitter of values."""

    def __init__(self, operators: Operators, pause_ms: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_ms = pause_ms
        self._draw: Stream = operators.cluster.world.stream("metadata operators")
        self._value = 0
        self._tasks: list[asyncio.Task[None]] = []
        #: Whether it is not known of some freeze if it will come.
        self._in_doubt = False

    def start(self, runtime: Runtime) -> None:
        for _ in range(_SUBMITTERS):
            self._tasks.append(runtime.tasks.spawn(self._set_values(runtime), "metadata submitter"))
        self._tasks.append(runtime.tasks.spawn(self._serve(runtime), "service operator"))
        self._tasks.append(runtime.tasks.spawn(self._retry(runtime), "late retries"))

    async def _set_values(self, runtime: Runtime) -> None:
        draw = self._draw
        while not self._operators.stopped:
            await asyncio.sleep(draw.expovariate(1000 / self._pause_ms))
            self._value += 1
            # Without a name it must be refused.
            name = f"x{draw.randrange(_NAMES)}" if draw.random() < 0.9 else ""
            value = SetExtension(name, b"%d" % self._value)
            # Who asks but once is told what is not known, or that nothing happened.
            once = draw.random() < 0.4
            await self._operators.submitting.submit(
                runtime,
                EntryKind.SET_EXTENSION,
                value,
                patience_s=_VERDICT_S if once else _PATIENCE_S,
                tries=1 if once else 3,
            )

    async def _retry(self, runtime: Runtime) -> None:
        """Ids of long ago, on any node."""
        record = self._operators.submitting
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1 / _RETRY_PAUSE_S))
            old = [s for s in record.submissions if s.outcome in ("ok", "unknown") and s not in record.open]
            if old:
                recent = old[-30:] if self._draw.random() < 0.8 else old
                await record.again(runtime, self._draw.choice(recent), _PATIENCE_S)

    async def _serve(self, runtime: Runtime) -> None:
        choices: list[Callable[[Runtime], Awaitable[None]]] = [
            self._snapshot,
            self._truncate,
            self._freeze,
            self._resize,
            self._resize,
            self._reconfigure,
            self._reconfigure,
            self._advance_again,
            self._advance_again,
            self._contest,
            self._contest,
        ]
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1 / _SERVICE_PAUSE_S))
            await self._draw.choice(choices)(runtime)

    async def end(self, runtime: Runtime) -> None:
        """Leave the service to itself: thawed, and of the size that suits the cluster."""
        await asyncio.gather(*self._tasks)
        if self._in_doubt:
            # The node that was asked goes on trying for so long.
            await asyncio.sleep(_VERDICT_S)
        await self._until_ok(runtime, SetService(ServiceWish.THAW))
        await self._until_ok(runtime, SetService(ServiceWish.SIZE, size=0))

    @property
    def _newest(self) -> ClusterMetadata:
        return self._cluster.newest

    async def _snapshot(self, runtime: Runtime) -> None:
        await self._operators.submit(
            runtime, EntryKind.SNAPSHOT, TakeSnapshot("asked for"), patience_s=_PATIENCE_S
        )

    async def _truncate(self, runtime: Runtime) -> None:
        """Up to the latest snapshot, or further, which is refused."""
        epoch = self._newest.service.snapshot_epoch
        if self._draw.random() < 0.2:
            epoch = self._newest.epoch + 1
        if epoch:
            await self._operators.submit(
                runtime, EntryKind.TRUNCATE_LOG, TruncateLog(epoch), patience_s=_PATIENCE_S
            )

    async def _freeze(self, runtime: Runtime) -> None:
        wish = SetService(ServiceWish.FREEZE, text="an exercise")
        submitted = await self._operators.submit(runtime, EntryKind.SET_SERVICE, wish, patience_s=_PATIENCE_S)
        self._in_doubt = self._in_doubt or submitted.outcome == "unknown"
        if submitted.outcome == "ok":
            self._cluster.fact("service: frozen")
        await asyncio.sleep(self._draw.random() * _THAW_S)
        await self._thaw(runtime)

    async def _thaw(self, runtime: Runtime) -> None:
        await self._operators.submit(
            runtime, EntryKind.SET_SERVICE, SetService(ServiceWish.THAW), patience_s=_PATIENCE_S
        )

    async def _until_ok(self, runtime: Runtime, wish: SetService) -> None:
        """Again as a new wish, for what is not known to be granted may come late, or be undone late."""
        while True:
            submitted = await self._operators.submit(
                runtime, EntryKind.SET_SERVICE, wish, patience_s=_PATIENCE_S
            )
            if submitted.outcome == "ok":
                return
            await asyncio.sleep(0.1)

    async def _resize(self, runtime: Runtime) -> None:
        """More members than nodes are refused."""
        wish = SetService(ServiceWish.SIZE, size=self._draw.choice((0, 1, 3, 3, 5, 7)))
        await self._operators.submit(runtime, EntryKind.SET_SERVICE, wish, patience_s=_PATIENCE_S)

    async def _reconfigure(self, runtime: Runtime) -> None:
        """Other voters, also while a change runs (which is refused), or a change taken back."""
        if self._draw.random() < 0.6:
            await self._until_a_change_runs()
        newest = self._newest
        change = newest.service.change
        if change is not None and self._draw.random() < 0.4:
            cancel = CancelMembership(change.id, "an exercise")
            await self._operators.submit(runtime, EntryKind.CANCEL_MEMBERSHIP, cancel, patience_s=_PATIENCE_S)
            return
        normal = [n.id for n in newest.directory.in_state(NodeState.NORMAL)]
        self._draw.shuffle(normal)
        size = self._draw.choice((1, 3))
        wanted = normal[:size]
        additions = tuple(sorted(node for node in wanted if node not in newest.voters))
        removals = tuple(sorted(node for node in newest.voters if node not in wanted))
        if additions or removals:
            entry = PrepareMembership(additions, removals, "an exercise", len(wanted))
            await self._operators.submit(runtime, EntryKind.PREPARE_MEMBERSHIP, entry, patience_s=_PATIENCE_S)

    async def _advance_again(self, runtime: Runtime) -> None:
        """A copy of a sub-step that is over, or of one that is not due: refused by its position."""
        await self._until_a_change_runs()
        service = self._newest.service
        change = service.change
        if change is None:
            entry = AdvanceMembership(max(1, self._newest.epoch - 3), 0, service.voters)
        else:
            index = change.index + (self._draw.choice((-1, 1)) if change.index else 1)
            entry = AdvanceMembership(change.id, index, service.voters)
        submitted = await self._operators.submit(
            runtime, EntryKind.ADVANCE_MEMBERSHIP, entry, patience_s=_PATIENCE_S
        )
        if submitted.outcome == "rejected" and change is not None:
            self._cluster.fact("service: repeated advance refused")

    async def _contest(self, runtime: Runtime) -> None:
        """One thing done twice and undone: whoever comes second is refused for what may not be committed
        yet and perhaps never is; a copy of that submission that comes late would be in order."""
        space, leader = self._newest.schema.by_name[KEYSPACE], self._cluster.leader[1]
        if leader not in self._cluster.in_service():
            return
        there = any(kind.name == _CONTESTED for kind in space.types)
        drop, create = DropType(KEYSPACE, _CONTESTED), CreateType(KEYSPACE, _CONTESTED, (("a", "int"),))
        once, undo = (drop, create) if there else (create, drop)
        draw = self._draw
        second_s = draw.choice((0.001, 0.01, 0.1))
        undo_s = second_s + draw.choice((0.02, 0.1))

        async def submit(change: SchemaChange, pause_s: float, through: str) -> None:
            await asyncio.sleep(pause_s)
            submitted = await self._operators.submitting.submit(
                runtime,
                EntryKind.SCHEMA_CHANGE,
                ChangeSchema(change),
                patience_s=_VERDICT_S,
                tries=1,
                through=through,
            )
            self._cluster.fact(f"contest {submitted.outcome}")

        second = leader if draw.random() < 0.5 else ""
        for change, pause_s, through in ((once, 0.0, leader), (once, second_s, second), (undo, undo_s, "")):
            self._tasks.append(runtime.tasks.spawn(submit(change, pause_s, through), "contest"))

    async def _until_a_change_runs(self) -> None:
        for _ in range(_LOOKS_MAX):
            if self._newest.service.change is not None or self._operators.stopped:
                return
            await asyncio.sleep(_LOOK_S)


_OPERATORS = 4
_SCHEMA_PATIENCE_S = 3.0
#: Few names, so that operators meet.
_SCHEMA_NAMES = ("r1", "r2")
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
                runtime, EntryKind.SCHEMA_CHANGE, ChangeSchema(change), patience_s=_SCHEMA_PATIENCE_S
            )
            self.told.append(Told(change, submitted))
            self._cluster.fact(f"schema change {submitted.outcome}")

    def _change(self, runtime: Runtime) -> SchemaChange:
        draw, name = self._draw, self._draw.choice(_SCHEMA_NAMES)
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
