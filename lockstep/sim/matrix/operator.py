"""The operator of one cell and the fault that strikes it: asks for the operation, cleans up after a node that
is lost, sees it to its end.

Invariant: he does what a runbook says and nothing else: he waits for what goes on by itself, cancels what
waits for a node that is gone, removes or replaces that node, and asks again. Whatever the fault, the end is
the one that the operation has without it, but for the ids of nodes that others took the place of. The fault
strikes once, at the cell's point of the cell's stage, or not at all: a cell that never struck shows nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Body, Operation, Stage
from lockstep.metadata.requests import Request
from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE
from lockstep.sim.faults.kinds import LAG_PROBE
from lockstep.sim.faults.means import Means
from lockstep.sim.load.operators import Operators
from lockstep.sim.matrix.cells import KINDS, Cell, Fault, Point, Victim
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.invariants import check_restored
from lockstep.topology.kind import body_fields, kind_of, stage_row
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replication import Walk
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.stages import Work
from lockstep.topology.streams import stream_plan
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: Where each work is half done.
WORK_LABELS: dict[Work, str] = {
    Work.WIPE: "work.wipes",
    Work.STREAM: "stream.target.chunk",
    Work.REBUILD: "stream.target.chunk",
    Work.CLEANUP: "work.wipes",
    Work.DISCARD: "work.wipes",
}
#: The coordinator found that it must wait.
WAIT_LABEL = "topology.waits"
_LEAVE_LABEL = "topology.propose"
#: How late nodes apply the stage's entry where its barrier is to wait for them.
_BEHIND_S = 0.3
_DOWN_S = (0.2, 1.0, 3.0)
_CUT_S = (1.0, 4.0, 8.0)


class Strike:
    """`struck` once the fault happened; `victim` is then the name of its node, and `lost` its id when it
    never comes back. `take_back` cancels the operation."""

    def __init__(self, cell: Cell, cluster: SimCluster, means: Means, take_back: Callable[[], None]) -> None:
        self.cell = cell
        self.struck = False
        self.at_ns = 0
        self.victim = ""
        self.lost = NodeId(0)
        self._subject = KINDS[cell.kind]
        self._cluster = cluster
        self._means = means
        self._take_back = take_back
        self._draw = cluster.world.stream("strike")
        self._rule: CrashRule | None = None
        self._armed = False

    # ---- told by the watch

    def stage_entered(self, operation: Operation, stage: Stage | None) -> None:
        if self.struck or self._subject.kind is None or operation.kind != self._subject.kind.name:
            return
        if self._armed:
            self.disarm()
            return
        if stage == self.cell.stage:
            self._armed = True
            self._arm(operation)
        elif self.cell.goes_back and stage is self._turn():
            self._take_back()

    def _turn(self) -> Stage:
        """The last stage that an operation of the kind comes back from."""
        return [row.stage for row in self._subject.rows if row.on_failure is not None][-1]

    def given_up(self, subject: NodeId, targets: list[NodeId]) -> None:
        """An operation of one entry was applied for the first time."""
        if not self.struck:
            self._strike([self._cluster.name_of(node) for node in targets], subject)

    def disarm(self) -> None:
        """The stage is over."""
        if self._rule is not None:
            self._rule.times = 0

    # ---- where

    def _arm(self, operation: Operation) -> None:
        point = self.cell.point
        if point is Point.ENTRY:
            self._at(operation)
        elif point is Point.BARRIER:
            for name in self._cluster.live():
                if name != self._cluster.leader[1]:
                    behind = DelayRule(
                        label=LAG_PROBE, process=name, low_s=_BEHIND_S, high_s=_BEHIND_S, times=1
                    )
                    self._cluster.world.probes.add(behind)
            self._when(WAIT_LABEL, operation)
        elif point is Point.WORK:
            assert self.cell.row is not None
            self._when(WORK_LABELS[self.cell.row.work], operation)
        else:
            self._when(_LEAVE_LABEL, operation)

    def _when(self, label: str, operation: Operation) -> None:
        self._rule = CrashRule(label=label, kind="", probability=1.0, on_fired=lambda _: self._at(operation))
        self._cluster.world.probes.add(self._rule)

    def _at(self, operation: Operation) -> None:
        self._strike(self._names(operation), operation.node)

    def _names(self, operation: Operation) -> list[str]:
        """Nodes that may be the source, or the target."""
        cluster, found = self._cluster, {}
        if self.cell.victim is Victim.SOURCE:
            for task in stream_plan(operation, cluster.newest, ()):
                found.update(dict.fromkeys(task.sources))
        elif self.cell.victim is Victim.TARGET:
            for transition in cluster.newest.transitions.of(operation.id):
                found.update(dict.fromkeys(transition.gained))
        return [cluster.name_of(node) for node in found if node != operation.node]

    # ---- what

    def _strike(self, others: list[str], subject: NodeId) -> None:
        """`others`: names of nodes that have the victim's part, for a source or a target."""
        cell, cluster = self.cell, self._cluster
        leader = cluster.leader[1]
        if cell.fault is Fault.CANCEL:
            self.struck, self.at_ns = True, cluster.world.now_ns
            self._take_back()
            return
        if cell.victim is Victim.COORDINATOR:
            victim = leader
        elif cell.victim is Victim.SUBJECT:
            victim = cluster.name_of(subject)
        else:
            live = [name for name in others if cluster.processes[name].alive]
            victim = self._draw.choice([name for name in live if name != leader] or live or [""])
        if not victim or not cluster.processes[victim].alive:
            return
        self.struck, self.victim, self.at_ns = True, victim, cluster.world.now_ns
        cluster.tell("strike", f"{cell.name} strikes {victim}")
        self._harm(victim)

    def _harm(self, victim: str) -> None:
        cluster, process = self._cluster, self._cluster.processes[self.victim]
        if self.cell.fault is Fault.PARTITION:
            others = [name for name in cluster.in_service() if name != victim]
            hosts = [cluster.processes[name].host for name in others]
            self._means.cut([process.host], hosts, symmetric=True, seconds=self._draw.choice(_CUT_S))
            return
        process.crash(KILL if self._draw.random() < 0.5 else POWER)
        if self.cell.fault is Fault.CRASH:
            process.start_after(self._draw.choice(_DOWN_S))
            return
        self.lost = NodeId(cluster.node_id(victim))
        cluster.retired[self.lost] = None
        # Outside the callback in which it was hit, which may be its own.
        cluster.world.after(0.0, cluster.park, victim, self.lost, label=f"lost {victim}")


#: How long clients write before the operation begins.
_BEFORE_S = 0.6
#: How long an operation may wait for a node that is lost before it is cancelled.
_PATIENCE_S = 12.0
_LOOK_S = 0.1
_NOBODY = NodeId(0)


class CellOperator(Operators):
    """`strike` is None in the undisturbed run that tells the end."""

    def __init__(self, cluster: SimCluster, cell: Cell, tables: list[str]) -> None:
        super().__init__(cluster, tables)
        self.strike: Strike | None = None
        self.completed = False
        #: How many operations were taken back, each found to leave everything as before.
        self.restored = 0
        #: What a refused cancel said, where the operation could only go on.
        self.refused = ""
        self._cell = cell
        self._drill, self._kind = KINDS[cell.kind].drill, KINDS[cell.kind].kind
        ring = self._kind.ring if self._kind is not None else None
        #: Whether a new node asks for it by itself.
        self._by_itself = ring is not None and ring.is_newcomers
        #: What there is to say when one asks for it.
        self._fields = body_fields(self._kind) if self._kind is not None else ()
        self._subject = _NOBODY
        self._tokens: tuple[int, ...] = ()
        self._before: dict[int, ClusterMetadata] = {}
        self.cancelled = False
        self._superseded = False

    # ---- told by the watch

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """Each new epoch."""
        for operation in after.operations:
            if operation.id not in before.operations_by_id:
                self._before[operation.id] = before
        for operation in before.operations:
            if operation.id not in after.operations_by_id:
                self._ended(operation, after)
        if self._kind is None and self._subject:
            self._given_up(before, after)

    def _ended(self, operation: Operation, after: ClusterMetadata) -> None:
        walk = operation.body
        if isinstance(walk, Walk) and walk.is_stopped:
            return  # Taken back a second time, it ends between two steps: the watch knows where.
        if kind_of(operation).is_taken_back(operation):
            found = check_restored(self._before[operation.id], after)
            if found:
                invariant, _, text = found[0].partition(": ")
                raise Violation(invariant, text)
            self.restored += 1
        elif self._kind is not None and operation.kind == self._kind.name:
            self.completed = True

    def _given_up(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        one, other = (value.directory.by_id[self._subject] for value in (before, after))
        if one.state is NodeState.LEFT or other.state is not NodeState.LEFT:
            return
        self.completed = True
        gained = {
            node: None
            for ring in after.placements.rings
            for placed in ring.ranges
            for node in placed.group.reads
            if all(
                node not in former.group.reads
                for former in before.placements.ring(ring.id).overlapping(placed.range)
            )
        }
        if self.strike is not None:
            self.strike.given_up(self._subject, list(gained))

    # ---- the script

    async def _run(self, runtime: Runtime) -> None:
        await super()._run(runtime)
        await asyncio.sleep(_BEFORE_S)
        await self._begin(runtime)
        while not self._over():
            await self._look(runtime)
            await asyncio.sleep(_LOOK_S)

    def _over(self) -> bool:
        if not self.completed or (self.strike is not None and self.strike.lost):
            return False
        newest = self.cluster.newest
        return not newest.operations and not newest.requests.live

    def _request_of(self, operation: Operation) -> Request:
        return next(r for r in self.cluster.newest.requests.live if r.operation_id == operation.id)

    async def _begin(self, runtime: Runtime) -> None:
        newest, drill = self.cluster.newest, self._drill
        if self._by_itself and not drill.dead:
            self.join()
            return
        if drill.nobodys:
            await self._ask_again(runtime)
            return
        normal = [node.id for node in newest.directory.in_state(NodeState.NORMAL)]
        others = [node for node in normal if node not in newest.service.members]
        self._subject = (others or normal)[-1]
        if "tokens" in self._fields and not self._by_itself:
            span = TOKEN_MAX - TOKEN_MIN
            count = len(newest.directory.by_id[self._subject].tokens)
            tokens = (TOKEN_MIN + 1 + self._draw.randrange(span - 1) for _ in range(count))
            self._tokens = tuple(sorted(tokens))
        if drill.dead:
            self.cluster.park(self.cluster.name_of(self._subject), self._subject)
        if self._by_itself:
            same = self.cluster.name_of(self._subject) if drill.name == "replace_same_address" else ""
            self.replace(self._subject, same)
        else:
            await self._ask_again(runtime)

    def replace(self, dead: NodeId, name: str = "") -> None:
        """Start a new node that takes the dead one's place, by default on a host of its own."""
        name = name or self._unused()
        self.cluster.tell("operator", f"starts {name} to replace node {dead}")
        self.cluster.replacing[name] = dead
        self.cluster.start_node(name)

    def _unused(self) -> str:
        """The name of a host that was never a node."""
        known = {node.address for node in self.cluster.newest.directory.nodes}
        cluster = self.cluster
        fresh = [n for n in cluster.parked if n not in cluster.replacing]
        return next(name for name in fresh if cluster.processes[name].host not in known)

    def join(self) -> None:
        name = self._unused()
        self.cluster.tell("operator", f"starts {name}")
        self.cluster.start_node(name)

    async def _look(self, runtime: Runtime) -> None:
        """One look at what goes on, and the one thing there is to do about it."""
        strike, newest = self.strike, self.cluster.newest
        running = next(iter(newest.operations), None)
        if strike is not None and strike.lost:
            await self._clear_up(runtime, strike, running)
        elif not self.completed and not newest.requests.live and running is None:
            await self._ask_again(runtime)

    def take_back(self) -> None:
        """Cancel the running operation at this very moment, through the coordinator itself."""
        name = self.cluster.leader[1]
        running = next(iter(self.cluster.newest.operations), None)
        if running is None or not self.cluster.processes[name].alive:
            return
        request = self._request_of(running)
        node = self.cluster.nodes[name]

        async def submit(_: Runtime) -> None:
            try:
                await node.log.submit(CancelRequest(request.id, "operator"))
                self.cancelled = True
            except Rejected as refusal:
                self.refused = str(refusal)
            except LockstepError as error:
                self.cluster.tell("operator", f"cannot cancel: {error}")

        self.cluster.processes[name].submit(submit, "cancel")

    async def _clear_up(self, runtime: Runtime, strike: Strike, running: Operation | None) -> None:
        """After a node was lost for good."""
        newest, lost = self.cluster.newest, strike.lost
        info = newest.directory.by_id[lost]
        if running is not None:
            waited_s = (self.cluster.world.now_ns - strike.at_ns) / 1e9
            back = stage_row(running).on_failure
            hopeless = lost in running.about.nodes and running.about.departing != lost
            if back is not None and (hopeless or waited_s > _PATIENCE_S):
                cancel = CancelRequest(self._request_of(running).id, "a node is lost")
                await self.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
        elif info.state is NodeState.LEFT:
            strike.lost = _NOBODY
        elif info.state is NodeState.NONE:
            await self._forget(runtime, lost)
        elif lost not in newest.requests.by_node:
            await self._supersede(runtime, lost)

    async def _forget(self, runtime: Runtime, lost: NodeId) -> None:
        """A newcomer never came to be: it is struck off, and the next one takes its part."""
        await self._wait_no_request(runtime, lost)
        submitted = await self.submit(runtime, EntryKind.FORCE_REMOVE, ForceRemove(lost, "it never joined"))
        if submitted.outcome != "ok":
            return
        replaced = self.cluster.newest.directory.by_id[lost].replaces
        if replaced:
            name = self.cluster.name_of(lost)
            same = self._drill.name == "replace_same_address"
            self.replace(replaced, name if same else "")
        elif not self.completed:
            self.join()

    async def _wait_no_request(self, runtime: Runtime, node: NodeId) -> None:
        request = self.cluster.newest.requests.by_node.get(node)
        if request is not None:
            await self.submit(
                runtime, EntryKind.CANCEL_REQUEST, CancelRequest(request.id, "its node is lost")
            )

    async def _supersede(self, runtime: Runtime, lost: NodeId) -> None:
        """A member is gone: one that was leaving is removed, the place of any other is taken."""
        if self._drill.gives and lost == self._subject:
            submitted = await self._request(runtime, Remove(lost))
            self.completed = self.completed or submitted
        elif not self._superseded:
            self._superseded = True
            if lost == self._subject:
                self._subject = NodeId(self.cluster.newest.directory.next_node_id)
            self.replace(lost)

    async def _ask_again(self, runtime: Runtime) -> None:
        """With two copies more, or two less, where it changes a replication."""
        if self._by_itself:
            return  # As often as it takes.
        if self._kind is None:
            await self.submit(runtime, EntryKind.FORCE_REMOVE, ForceRemove(self._subject, "its disk is gone"))
            return
        present = self.cluster.newest.schema.by_name[KEYSPACE].replication
        copies = 5 if self._drill.factor == 3 else 3
        target = msgspec.structs.replace(present, counts=tuple((dc, copies) for dc, _ in present.factors))
        known = {"node": self._subject, "tokens": self._tokens, "keyspace": KEYSPACE, "target": target}
        said = {field: known[field] for field in self._fields if field in known}
        body = self._kind.body(**said, **dict(self._drill.says))
        if "target" not in self._fields or target != present:
            await self._request(runtime, body)

    async def _request(self, runtime: Runtime, body: Body) -> bool:
        request = EnqueueRequest(body, actor="operator")
        submitted = await self.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)
        return submitted.outcome == "ok"
