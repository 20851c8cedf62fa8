"""The operator of one cell: asks for the operation, cleans up after a node that is lost, sees it to its end.

Invariant: he does what a runbook says and nothing else: he waits for what goes on by itself, cancels what
waits for a node that is gone, removes or replaces that node, and asks again. Whatever the fault, the end is
the one that the operation has without it, but for the ids of nodes that others took the place of.
"""

from __future__ import annotations

import asyncio

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Body, Operation
from lockstep.metadata.requests import Request
from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.operators import Operators
from lockstep.sim.matrix.cells import KINDS, Cell
from lockstep.sim.matrix.strike import Strike
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.invariants import check_restored
from lockstep.topology.kind import body_fields, kind_of, stage_row
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replication import Walk
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: How long clients write before the operation begins.
_BEFORE_S = 0.6
#: How long an operation may wait for a node that is lost before it is cancelled.
_PATIENCE_S = 12.0
_LOOK_S = 0.1
_NOBODY = NodeId(0)


class CellOperator(Operators):
    """`strike` is None in the undisturbed run that tells the end."""

    def __init__(self, cluster: SimCluster, cell: Cell, tables: list[str]) -> None:
        super().__init__(cluster, busy_s=1.0, cancel=0.0, tables=tables)
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
                for former in before.placements.ring(ring.replication).overlapping(placed.range)
            )
        }
        if self.strike is not None:
            self.strike.given_up(self._subject, list(gained))

    # ---- the script

    async def _run(self, runtime: Runtime) -> None:
        await self._create_schema(runtime)
        self.ready = True
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
        target = msgspec.structs.replace(present, factors=tuple((dc, copies) for dc, _ in present.factors))
        known = {"node": self._subject, "tokens": self._tokens, "keyspace": KEYSPACE, "target": target}
        body = self._kind.body(**{field: known[field] for field in self._fields if field in known})
        if "target" not in self._fields or target != present:
            await self._request(runtime, body)

    async def _request(self, runtime: Runtime, body: Body) -> bool:
        request = EnqueueRequest(body, actor="operator")
        submitted = await self.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)
        return submitted.outcome == "ok"
