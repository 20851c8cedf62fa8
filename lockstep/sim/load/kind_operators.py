"""Operators of the rarer operations: nodes move, are rebuilt, lose their disks and are removed or replaced;
joins are taken back; the replication of the clients' keyspace changes; the clients' tables are repaired.

Invariant: a disk is destroyed only when its node's removal would begin at once, or as soon as it votes no
more, and never a second one before that node has left and its tablets have other replicas; a voter's only
while both groups survive it, the one that the management group has not taken in yet among them. The run does
not end with one that is still there. There are never less than 2 replicas, so that the loss of one disk loses
nothing, nor more than nodes of the data centre. A deletion is purged some seconds after its repair began at
the earliest, which is longer than any write of a client is under way; so no deleted row is ever seen again. A
cancel may come too late, be refused, or find that the node has joined.
"""

from __future__ import annotations

import asyncio
from functools import partial

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.membership import without_vote
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.repairs import RepairState, parts_by_group
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import AlterOptions
from lockstep.schema.model import Replication
from lockstep.schema.table_options import option
from lockstep.sim.checkers.log import unsettled_voters
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.derived_load import VIEW_TABLE
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream
from lockstep.sim.watch import Watch
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.tablets.drains import left_holders
from lockstep.topology.transformations import PrepareOperation, can_go_back
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

_AGAIN_S = 0.5
_NOBODY = NodeId(0)
#: Between two looks whether there is a new voter: shorter than the management group takes to follow.
_VOTERS_LOOK_S = 0.03
#: Of new voters, how many lose their disk before the management group has them.
_NEW_VOTERS_LOST = 0.3


class KindOperators:
    """`pause_s`: mean pause between two of these operations. `forced`: of the nodes without a vote that lose
    their disk, how many are given up by force, each once nothing is degraded by an earlier one."""

    def __init__(self, operators: Operators, pause_s: float, forced: float = 0.0) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_s = pause_s
        self._forced = forced
        #: Whether the node whose disk is gone is given up by force.
        self._by_force = False
        self._draw: Stream = operators.cluster.world.stream("kind operators")
        self._draw_voters: Stream = operators.cluster.world.stream("new voters")
        #: The node whose disk is gone and that has not left yet; 0 when there is none.
        self._destroyed = _NOBODY
        #: Whether another node takes its place; otherwise it is removed.
        self._replaced = False

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "kind operators")
        runtime.tasks.spawn(self._run_voters(runtime), "new voters")

    async def end(self, runtime: Runtime) -> None:
        """Until the last one that lost its disk has left."""
        while self._destroyed:
            await self._remove(runtime)
            await asyncio.sleep(_AGAIN_S)

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(self._draw.expovariate(1 / self._pause_s))
            if self._operators.stopped:
                return
            if self._destroyed:
                await self._remove(runtime)
            elif self._draw.random() < 0.5:
                await self._destroy(runtime)
            else:
                await self._work_on(runtime)

    async def _run_voters(self, runtime: Runtime) -> None:
        """A node may lose its disk when it votes on the metadata, and not yet in the other group."""
        voters = self._cluster.newest.voters
        while not self._operators.stopped:
            await asyncio.sleep(_VOTERS_LOOK_S)
            newest = self._cluster.newest
            new = [node for node in newest.voters if node not in voters]
            voters = newest.voters
            if not new or self._draw_voters.random() >= _NEW_VOTERS_LOST:
                continue
            node = new[0]
            if self._destroyed or self._operators.stopped or len(newest.voters) < 3 or self._follows(node):
                continue
            if newest.directory.by_id[node].state is NodeState.NORMAL and _may_go(newest, node):
                self._cluster.fact("a new voter's disk destroyed")
                self._by_force = False
                await self._lose(runtime, node)

    def _follows(self, voter: NodeId) -> bool:
        """Whether some member of the management group has a configuration in which the node votes."""
        groups = [node.membership.management.group for node in self._cluster.nodes.values()]
        return any(group.driver.raft.configuration.has_vote(voter) for group in groups if group is not None)

    async def _work_on(self, runtime: Runtime) -> None:
        """Ask for other tokens of a node, or for its data anew."""
        normal = self._cluster.newest.directory.in_state(NodeState.NORMAL)
        if not normal:
            return
        node = self._draw.choice(normal)
        request = EnqueueRequest(Rebuild(node.id), actor="operator")
        if self._draw.random() < 0.6:
            span = TOKEN_MAX - TOKEN_MIN
            tokens = tuple(TOKEN_MIN + 1 + self._draw.randrange(span - 1) for _ in node.tokens)
            request = EnqueueRequest(Move(node.id, tokens), actor="operator")
        elif left_holders(self._cluster.newest):
            # What is doubted is filled from the others, of which one is gone for good: both would wait.
            return
        await self._operators.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)

    async def _destroy(self, runtime: Runtime) -> None:
        """A node that may be removed now loses its disk and never comes back; its removal is asked for."""
        newest = self._cluster.newest
        if newest.operations or newest.requests.live:
            return
        can_force = self._forced > 0 and not newest.degraded
        self._by_force = can_force and self._draw.random() < self._forced
        spared = () if self._groups_are_whole() and not self._by_force else newest.service.members
        normal = (node.id for node in newest.directory.in_state(NodeState.NORMAL))
        removable = [node for node in normal if node not in spared and _may_go(newest, node)]
        if not removable:
            return
        await self._lose(runtime, self._draw.choice(removable))

    async def _lose(self, runtime: Runtime, node: NodeId) -> None:
        assert not self._destroyed, "one disk is lost at a time"
        newest = self._cluster.newest
        self._destroyed = node
        self._cluster.fact("disk destroyed")
        if self._destroyed in newest.voters:
            self._cluster.fact("voter's disk destroyed")
        name = self._cluster.name_of(self._destroyed)
        self._cluster.park(name, self._destroyed)
        self._replaced = not self._by_force and self._draw.random() < 0.6
        if self._replaced:
            self._replace(name)
        await self._remove(runtime)

    def _groups_are_whole(self) -> bool:
        """Whether both groups have the members that they should have, three at least, and survive a loss."""
        newest = self._cluster.newest
        leader = next(
            (node for node in self._cluster.nodes.values() if node.ready and node.log.is_leader), None
        )
        if leader is None or len(newest.voters) < 3 or unsettled_voters(newest, leader):
            return False
        return not leader.membership.management.unsettled()

    def _replace(self, dead: str) -> None:
        """A new node takes the place: on the same host with another disk, or on one of its data centre."""
        cluster = self._cluster
        free = [name for name in cluster.parked if not cluster.node_id(name) and name != dead]
        others = [name for name in free if cluster.dc_of(name) == cluster.dc_of(dead)]
        name = self._draw.choice([dead, *others[:1]])
        cluster.fact("replaced at its address" if name == dead else "replaced at another address")
        cluster.replacing[name] = self._destroyed
        cluster.start_node(name)

    async def _remove(self, runtime: Runtime) -> None:
        """Ask for the removal of the destroyed node, unless it was done, runs or waits."""
        node, newest = self._destroyed, self._cluster.newest
        if newest.directory.by_id[node].state is NodeState.LEFT:
            self._destroyed = _NOBODY
        elif await self._made_way(runtime):
            return
        elif self._by_force:
            wish = ForceRemove(node, "its disk is gone")
            submitted = await self._operators.submit(runtime, EntryKind.FORCE_REMOVE, wish)
            if submitted.outcome == "ok":
                self._cluster.fact("node given up by force")
        elif node not in newest.requests.by_node and not self._replaced:
            request = EnqueueRequest(Remove(node), actor="operator")
            await self._operators.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)

    async def _made_way(self, runtime: Runtime) -> bool:
        """Whether an operation that may wait for the destroyed node was cancelled now: its removal, or what
        takes its place, can only begin afterwards."""
        newest = self._cluster.newest
        for operation in newest.operations:
            waits = any(self._destroyed in one.union for one in newest.transitions.of(operation.id))
            # Asked for just before its disk was gone: other tokens of it, say.
            own = self._destroyed in operation.about.nodes and isinstance(operation.body, Remove | Replace)
            if waits and not own and can_go_back(operation):
                asked = [request for request in newest.requests.live if request.operation_id == operation.id]
                cancel = CancelRequest(asked[0].id, "a node is lost")
                await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
                return True
        return False


def _may_go(cluster: ClusterMetadata, node: NodeId) -> bool:
    """Whether its removal would begin now, or once its vote is another node's. A node that has left and still
    counts as a replica of tablets is a loss that lasts: two of three copies must not be gone."""
    if left_holders(cluster):
        return False
    judged = without_vote(cluster, node) if node in cluster.service.members else cluster
    try:
        PrepareOperation(Remove(node)).apply(judged, cluster.epoch + 1)
    except Rejected:
        return False
    return True


_LOOK_S = 0.03


class CancellingOperators:
    """`chance`: of each join, that it is cancelled once its newcomer gets writes."""

    def __init__(self, operators: Operators, watch: Watch, chance: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._chance = chance
        self._draw: Stream = operators.cluster.world.stream("cancelling operators")
        self._wanted: dict[int, float] = {}
        self._cancelled: dict[str, None] = {}
        watch.listeners.append(self._entered)

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "cancelling operators")

    def _entered(self, operation: Operation, stage: Stage | None) -> None:
        if not isinstance(operation.body, Bootstrap):
            return
        name = self._cluster.name_of(operation.node)
        if stage is Stage.WRITE_BOTH_READ_OLD and self._draw.random() < self._chance:
            wait_s = self._draw.choice((0.0, 0.1, 0.5)) * self._draw.random()
            self._wanted[operation.id] = self._cluster.world.now_s() + wait_s
        elif stage is Stage.ROLLBACK_TO_NORMAL:
            self._cancelled[name] = None
        elif stage is None and name in self._cancelled and operation.stage is not Stage.ROLLBACK_TO_NORMAL:
            del self._cancelled[name]
            self._cluster.fact("a cancelled newcomer joined again")

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.stopped:
            await asyncio.sleep(_LOOK_S)
            now_s = self._cluster.world.now_s()
            for operation_id in [one for one, at_s in self._wanted.items() if at_s <= now_s]:
                del self._wanted[operation_id]
                await self._cancel(runtime, operation_id)

    async def _cancel(self, runtime: Runtime, operation_id: int) -> None:
        for request in self._cluster.newest.requests.live:
            if request.operation_id == operation_id:
                cancel = CancelRequest(request.id, "operator")
                await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
                return


_FACTORS = (2, 3, 3, 4)
#: Where there are several data centres, for one of them.
_FACTORS_OF_DC = (0, 1, 2, 3)
_CANCEL = 0.2
#: Far longer than a run may take to settle.
_ENDS_MAX = 1000


class ReplicationOperators:
    """`pause_s`: mean pause between two changes."""

    def __init__(self, operators: Operators, pause_s: float) -> None:
        self._operators = operators
        self._cluster = operators.cluster
        self._pause_s = pause_s
        self._draw: Stream = operators.cluster.world.stream("replication operators")

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "replication operators")

    async def end(self, runtime: Runtime) -> None:
        """Until no change is under way, and no factor above the number of nodes: clients ask for ALL."""
        for _ in range(_ENDS_MAX):
            if not self._under_way:
                if not self._is_too_large():
                    return
                await self._change(runtime)
            await asyncio.sleep(_AGAIN_S)

    def _is_too_large(self) -> bool:
        replication = self._cluster.newest.schema.by_name[KEYSPACE].replication
        return any(factor > self._nodes(dc) for dc, factor in replication.factors)

    def _nodes(self, dc: str) -> int:
        """How many nodes may be replicas: of a data centre, or in all for ""."""
        normal = self._cluster.newest.directory.in_state(NodeState.NORMAL)
        return sum(dc in ("", node.dc) for node in normal)

    @property
    def _under_way(self) -> bool:
        return KEYSPACE in self._cluster.newest.requests.by_keyspace

    async def _run(self, runtime: Runtime) -> None:
        while not self._operators.idle:
            await asyncio.sleep(self._draw.expovariate(1 / self._pause_s))
            if self._operators.stopped:
                if self._under_way:
                    await self._make_way(runtime)
                continue
            request = self._cluster.newest.requests.by_keyspace.get(KEYSPACE)
            if request is None:
                await self._change(runtime)
            elif self._draw.random() < _CANCEL:
                cancel = CancelRequest(request.id, "operator")
                await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
            else:
                await self._make_way(runtime)

    async def _change(self, runtime: Runtime) -> None:
        present = self._cluster.newest.schema.by_name[KEYSPACE].replication
        if self._cluster.shape.witnesses:
            target = self._turned(present)
        else:
            target = self._in_one_dc(present) if self._cluster.shape.dcs > 1 else self._everywhere(present)
        if target.total < 2 or target == present:
            return
        request = EnqueueRequest(ReplicationChange(KEYSPACE, target), actor="operator")
        await self._operators.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)

    def _turned(self, present: Replication) -> Replication:
        """With witnesses where there are none, and without them where there are."""
        if present.has_witnesses:
            return Replication(present.strategy, present.factors)
        witnesses = tuple((dc, -self._cluster.shape.witnesses) for dc, _ in present.factors)
        return Replication(present.strategy, tuple(sorted((*present.factors, *witnesses))))

    def _everywhere(self, present: Replication) -> Replication:
        factor = self._draw.choice(_FACTORS)
        factors = tuple((dc, min(self._nodes(dc), factor)) for dc, _ in present.factors)
        return Replication(present.strategy, factors)

    def _in_one_dc(self, present: Replication) -> Replication:
        """Another factor for one data centre: maybe its first replicas, maybe none any more."""
        factors = dict(present.factors)
        dc = self._draw.choice(self._cluster.dcs())
        factors[dc] = min(self._nodes(dc), self._draw.choice(_FACTORS_OF_DC))
        # What is too large is made smaller first, or nothing that is wanted can run.
        factors = {dc: min(factor, self._nodes(dc)) for dc, factor in factors.items()}
        return Replication(present.strategy, tuple(sorted((dc, n) for dc, n in factors.items() if n)))

    async def _make_way(self, runtime: Runtime) -> None:
        """A node that is gone for good can take part in nothing: its removal or replacement goes first."""
        requests = self._cluster.newest.requests
        waiting = any(request.about.presumed_dead for request in requests.queue)
        change = requests.by_keyspace.get(KEYSPACE)
        if waiting and change is not None:
            cancel = CancelRequest(change.id, "a dead node is to be removed or replaced")
            await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)


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


def _refuse_disagreement(node: Node, repair: int) -> None:
    """TRK-1, as a repair that compares data with ids sees it."""
    progress = node.work.repairs.progress.get(repair)
    if progress is not None and progress.named:
        raise Violation("TRK-1", f"repair {repair} found that {next(iter(progress.named.values())).text()}")


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
        """Not of views and of what they are of: what is owed to a view is given up after the time of grace,
        and no repair brings that."""
        keyspace = self._cluster.newest.schema.by_name.get(KEYSPACE)
        for table in keyspace.tables if keyspace is not None else ():
            if table.name == VIEW_TABLE or table.view is not None:
                continue
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
        parts = parts_by_group(keyspace, tables, ranges)
        try:
            full = keyspace.tracked and not incremental
            begun = await node.work.repairs.begin(parts, nodes, incremental=incremental, full=full)
        except LockstepError as error:
            self._cluster.tell("operator", f"no repair: {error}")
            return
        while (found := node.log.cluster.repairs.find(begun.id)) is not None:
            if found.state is not RepairState.RUNNING:
                self._cluster.fact(f"repair {found.state.value}")
                _refuse_disagreement(node, found.id)
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
