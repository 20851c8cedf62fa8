"""The operator of a simulated cluster (schema, joins, decommissions, cancels), and submissions to the
metadata log through any node's door.

Invariant: a submission has an entry id of its own that all its tries keep; whatever a try was told, or not
told, is in the record, so that LOG-2 can be judged at the end. What is refused is dropped; what is unknown is
asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.groups.membership import CancelMembership, ServiceWish, SetService
from lockstep.metadata.groups.membership_step import Observed, plan
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import AlterOptions, CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.log import Submitted
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE, Answer, DoorClient, Submission
from lockstep.sim.runtime.streams import Stream
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.values.codec import encode
from lockstep.values.ids import NodeId

_PATIENCE_S = 12.0
#: Submitters of many small entries at once.
_CHURNERS = 3
_CHURN_PATIENCE_S = 1.5
#: A node that left is stopped and emptied this much later.
_PARK_AFTER_S = 0.5


class Operators:
    """One who makes the schema and submits; subclasses say what else in `_run`."""

    def __init__(self, cluster: SimCluster, tables: list[str]) -> None:
        self.cluster = cluster
        self.stopped = False
        self.ready = False
        self._tables = tables
        self._draw: Stream = cluster.world.stream("operators")
        self.submitting = Submitting(cluster, self._draw)
        #: Called when the schema is there: more operators may begin.
        self.when_ready: list[Callable[[Runtime], None]] = []
        #: Awaited before the operator ends.
        self.at_end: list[Callable[[Runtime], Awaitable[None]]] = []

    def start(self) -> None:
        """Create the schema, then go on with operations until `stopped`."""
        self.cluster.world.process("operator", "127.0.2.1").start(self._run)

    @property
    def idle(self) -> bool:
        """Whether nothing more will be submitted."""
        return not self.cluster.world.processes["operator"].alive

    async def _run(self, runtime: Runtime) -> None:
        await self._create_schema(runtime)
        self.ready = True

    async def submit(
        self,
        runtime: Runtime,
        kind: EntryKind,
        transformation: Any,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> Submitted:
        """See Submitting.submit."""
        return await self.submitting.submit(runtime, kind, transformation, patience_s=patience_s)

    async def _create_schema(self, runtime: Runtime) -> None:
        shape = self.cluster.shape
        places = ["replication_factor"] if shape.strategy == "SimpleStrategy" else self.cluster.dcs()
        factor = f"{shape.factor}/{shape.witnesses}" if shape.witnesses else str(shape.factor)
        options = (("class", shape.strategy), *((place, factor) for place in places))
        tablets = (("initial", str(shape.tablets)),) if shape.tablets else None
        tracking = "tracked" if shape.tracked else None
        wanted = CreateKeyspace(KEYSPACE, options, True, True, tablets=tablets, replication_type=tracking)
        keyspace = ChangeSchema(wanted)
        while self.cluster.newest.schema.by_name.get(KEYSPACE) is None:
            await self.submit(runtime, EntryKind.SCHEMA_CHANGE, keyspace)
        while not await self._create_table(runtime, self._tables[0]):
            pass

    async def _create_table(self, runtime: Runtime, name: str) -> bool:
        """Whether the table is there."""
        columns = (
            NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
            NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
            NewColumn("v", "blob"),
        )
        change = ChangeSchema(CreateTable(KEYSPACE, name, runtime.random.uuid(), columns))
        submitted = await self.submit(runtime, EntryKind.SCHEMA_CHANGE, change)
        if submitted.outcome == "ok":
            self.cluster.fact("table created")
        return self.cluster.newest.schema.table(KEYSPACE, name) is not None

    def left(self, node_id: int) -> None:
        """A decommission ended: its node is stopped and emptied, as an operator would."""
        name = self.cluster.name_of(node_id)
        self.cluster.world.after(_PARK_AFTER_S, self._park, name, NodeId(node_id), label=f"park {name}")

    def _park(self, name: str, node_id: NodeId) -> None:
        node = self.cluster.nodes.get(name)
        if name and name not in self.cluster.parked and node is not None:
            self.cluster.on_leave(name, node_id)
            self.cluster.park(name, node_id)


class BusyOperators(Operators):
    """`busy_s`: mean pause between two operations; `cancel`: probability that one is cancelled half-way;
    `churn_ms`: mean pause between two small schema changes of one submitter, 0 for none."""

    def __init__(
        self,
        cluster: SimCluster,
        *,
        busy_s: float,
        cancel: float,
        tables: list[str],
        churn_ms: float = 0.0,
    ) -> None:
        super().__init__(cluster, tables)
        self._busy_s = busy_s
        self._cancel = cancel
        self._churn_ms = churn_ms

    async def _run(self, runtime: Runtime) -> None:
        await super()._run(runtime)
        for begin in self.when_ready:
            begin(runtime)
        if self._churn_ms:
            for number in range(_CHURNERS):
                runtime.tasks.spawn(self._churn(runtime, number), "churn")
        while not self.stopped:
            await asyncio.sleep(self._draw.expovariate(1 / self._busy_s))
            if not self.stopped:
                await self._operate(runtime)
        # What the others wait for at the end may give ranges to a node that is shut out, or that is to leave
        # once another node takes its vote.
        await self._end_wishes(runtime)
        for end in self.at_end:
            await end(runtime)
        await self._end_wishes(runtime)

    async def _churn(self, runtime: Runtime, number: int) -> None:
        """Change a table's comment again and again: many small entries."""
        while not self.stopped:
            await asyncio.sleep(self._draw.expovariate(1000 / self._churn_ms))
            options = (("comment", f"{number}/{self.submitting.number}"),)
            change = ChangeSchema(AlterOptions(KEYSPACE, self._tables[0], options))
            await self.submit(runtime, EntryKind.SCHEMA_CHANGE, change, patience_s=_CHURN_PATIENCE_S)

    async def _operate(self, runtime: Runtime) -> None:
        missing = [t for t in self._tables if self.cluster.newest.schema.table(KEYSPACE, t) is None]
        choices = ["join"] * (2 * bool(self.cluster.parked)) + ["leave"] * 2 + ["cancel"]
        choices += ["table"] * bool(missing) + ["reconfigure", "exclude"]
        chosen = self._draw.choice(choices)
        if chosen == "join":
            self.join()
        elif chosen == "leave":
            await self._leave(runtime)
        elif chosen == "reconfigure":
            await self._reconfigure(runtime)
        elif chosen == "exclude":
            await self._exclude(runtime)
        elif chosen == "table":
            await self._create_table(runtime, missing[0])
        elif self._draw.random() < self._cancel:
            await self._cancel_one(runtime)

    def join(self) -> None:
        """Start a parked node; it registers and bootstraps by itself."""
        name = self._draw.choice(list(self.cluster.parked))
        self.cluster.tell("operator", f"starts {name}")
        self.cluster.start_node(name)

    async def _leave(self, runtime: Runtime) -> None:
        """Ask for a decommission; that of a voter waits in the queue until another node has its vote."""
        newest = self.cluster.newest
        normal = [n.id for n in newest.directory.in_state(NodeState.NORMAL)]
        # One that lost its disk is removed or replaced, and another node may run on its host.
        normal = [node for node in normal if node not in self.cluster.retired]
        if not normal:
            return
        leaving = NodeId(self._draw.choice(normal))
        voter = leaving in newest.service.members
        request = EnqueueRequest(Decommission(leaving), actor="operator")
        submitted = await self.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)
        if submitted.outcome == "ok" and voter:
            self.cluster.fact("voter asked to leave")

    async def _reconfigure(self, runtime: Runtime) -> None:
        """Another number of voters, other voters, or a change of voters taken back."""
        newest = self.cluster.newest
        service, change = newest.service, newest.service.change
        if change is not None:
            cancel = CancelMembership(change.id, "operator")
            await self.submit(runtime, EntryKind.CANCEL_MEMBERSHIP, cancel)
        elif service.paused and self._draw.random() < 0.5:
            await self.submit(runtime, EntryKind.SET_SERVICE, SetService(ServiceWish.RESUME))
        elif self._draw.random() < 0.5:
            size = SetService(ServiceWish.SIZE, size=self._draw.choice((0, 0, 1, 3, 5)))
            await self.submit(runtime, EntryKind.SET_SERVICE, size)
        else:
            await self._exchange(runtime)

    async def _exchange(self, runtime: Runtime) -> None:
        """As many voters as now, drawn anew."""
        newest = self.cluster.newest
        normal = [n.id for n in newest.directory.in_state(NodeState.NORMAL)]
        count = len(newest.voters)
        if count > len(normal):
            return
        self._draw.shuffle(normal)
        wanted = tuple(sorted(normal[:count]))
        entry = plan(newest, wanted, Observed(), "operator", count)
        await self.submit(runtime, EntryKind.PREPARE_MEMBERSHIP, entry)

    async def _exclude(self, runtime: Runtime) -> None:
        """Shut a node without a vote out, or try to take the one back that is."""
        newest = self.cluster.newest
        if newest.excluded:
            await self._include(runtime)
            return
        others = [node.id for node in newest.directory.nodes if node.state is NodeState.NORMAL]
        others = [node for node in others if node not in newest.service.members]
        if others:
            wish = ExcludeNodes((self._draw.choice(others),), "operator")
            submitted = await self.submit(runtime, EntryKind.EXCLUDE_NODES, wish)
            if submitted.outcome == "ok":
                self.cluster.fact("node excluded")

    async def _include(self, runtime: Runtime) -> None:
        for exclusion in self.cluster.newest.excluded:
            node = self.cluster.nodes.get(self.cluster.name_of(exclusion.node))
            reached = node.log.state.epoch if node is not None else 0
            wish = IncludeNodes((exclusion.node,), (reached,))
            await self.submit(runtime, EntryKind.INCLUDE_NODES, wish)

    async def include_all(self, runtime: Runtime) -> None:
        """One whose disk is gone is not taken back; it leaves as it is."""
        while any(one.node not in self.cluster.retired for one in self.cluster.newest.excluded):
            await self._include(runtime)
            await asyncio.sleep(0.1)

    async def _end_wishes(self, runtime: Runtime) -> None:
        """What still waits for a node to leave is withdrawn, and voters are chosen automatically again."""
        await self.include_all(runtime)
        while self.cluster.newest.service.leaving or self.cluster.newest.service.paused:
            service = self.cluster.newest.service
            for node in service.leaving:
                await self.submit(runtime, EntryKind.SET_SERVICE, SetService(ServiceWish.STAY, node=node))
            if service.paused:
                await self.submit(runtime, EntryKind.SET_SERVICE, SetService(ServiceWish.RESUME))
            await asyncio.sleep(0.1)

    async def _cancel_one(self, runtime: Runtime) -> None:
        requests = self.cluster.newest.requests.live
        if requests:
            chosen = self._draw.choice(requests)
            cancel = CancelRequest(chosen.id, "operator")
            await self.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)


_CONNECT_MS = 500
#: How long one submission is retried before its outcome stays unknown.
_TRIES_MAX = 4
_REFUSALS = ("REJECTED", "OPERATION_RUNNING", "VERSION_MISMATCH")


class Submitting:
    """`submissions` is the record, in the order in which they began."""

    def __init__(self, cluster: SimCluster, draw: Stream) -> None:
        self.submissions: list[Submitted] = []
        self._cluster = cluster
        self._draw = draw
        self.number = 0
        #: Those that are being tried now.
        self.open: list[Submitted] = []

    async def submit(
        self,
        runtime: Runtime,
        kind: EntryKind,
        transformation: Any,
        *,
        patience_s: float = _PATIENCE_S,
        tries: int = _TRIES_MAX,
        through: str = "",
    ) -> Submitted:
        """Retried with one entry id; `patience_s` bounds each try, `through` is the node asked, any one
        without it. A refusal says nothing of a try before it
        whose answer was lost: that one may be judged later, when the change is in order."""
        self.number += 1
        submitted = Submitted(
            entry_id=self.number.to_bytes(4, "big") + runtime.random.bytes(12),
            outcome="unknown",
            kind=int(kind),
            body=encode(transformation),
            base_epoch=self._cluster.newest.epoch,
        )
        self.submissions.append(submitted)
        self.open.append(submitted)
        try:
            await self._until_known(runtime, submitted, patience_s, tries, through)
        finally:
            self.open.remove(submitted)
        name = type(transformation).__name__
        self._cluster.tell("operator", f"{name} {submitted.outcome} {submitted.epoch or ''}")
        return submitted

    async def _until_known(
        self, runtime: Runtime, submitted: Submitted, patience_s: float, tries: int, through: str
    ) -> None:
        doubt = lost = False
        for _ in range(tries):
            answer = await self._ask(runtime, submitted, patience_s, through)
            if answer is None:
                # The node that was asked may still be at it.
                lost = True
            elif not answer.code:
                submitted.outcome, submitted.epoch = "ok", answer.epoch
                break
            elif answer.code in _REFUSALS:
                submitted.outcome = "unknown" if lost else "rejected"
                submitted.refusals.append((answer.epoch, answer.text))
                break
            else:
                doubt = doubt or not answer.known
            await asyncio.sleep(0.2 + self._draw.random())
        else:
            submitted.outcome = "unknown" if lost or doubt else "failed"

    async def again(self, runtime: Runtime, submitted: Submitted, patience_s: float) -> None:
        """Ask once more, through any node, for what was done or may have been done long ago."""
        assert submitted.outcome in ("ok", "unknown"), "what is refused or failed is over"
        answer = await self._ask(runtime, submitted, patience_s)
        if answer is None:
            return
        fact = self._cluster.fact
        if not answer.code:
            if submitted.outcome == "unknown":
                fact("retry: unknown no more")
            elif answer.epoch != submitted.epoch:
                raise Violation("LOG-2", f"acknowledged at epoch {submitted.epoch}, later at {answer.epoch}")
            else:
                fact("retry: same epoch again")
                if self._cluster.newest.service.snapshot_epoch > answer.epoch:
                    fact("retry: same epoch after a snapshot")
            submitted.outcome, submitted.epoch = "ok", answer.epoch
        elif answer.code in _REFUSALS and submitted.outcome == "ok":
            raise Violation("LOG-2", f"acknowledged at epoch {submitted.epoch}, later refused: {answer.text}")
        elif "no longer kept" in answer.text:
            fact("retry: id expired")

    async def _ask(
        self, runtime: Runtime, submitted: Submitted, patience_s: float, through: str = ""
    ) -> Answer | None:
        """None when the outcome is unknown."""
        name = through or self._draw.choice(self._cluster.in_service())
        host = self._cluster.processes[name].host
        try:
            door = await DoorClient.connect(runtime, host, _CONNECT_MS)
        except (OSError, TimeoutError):
            return None
        request = Submission(submitted.entry_id, submitted.kind, submitted.body, submitted.base_epoch)
        try:
            async with asyncio.timeout(patience_s):
                return await door.ask(request)
        except (TimeoutError, ConnectionError):
            return None
        finally:
            door.close()
