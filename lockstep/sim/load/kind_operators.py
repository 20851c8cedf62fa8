"""Operators of the rarer operations: nodes move, are rebuilt, lose their disks and are removed or replaced.

Invariant: a disk is destroyed only when its node's removal would begin at once, or as soon as it votes no
more, and never a second one before that node has left; a voter's only while both groups survive it. The run
does not end with one that is still there.
"""

from __future__ import annotations

import asyncio

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.membership import without_vote
from lockstep.metadata.log.registry import EntryKind
from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.service import unsettled_voters
from lockstep.sim.load.operators import Operators
from lockstep.sim.runtime.streams import Stream
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.transformations import PrepareOperation, can_go_back
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

_AGAIN_S = 0.5
_NOBODY = NodeId(0)


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
        #: The node whose disk is gone and that has not left yet; 0 when there is none.
        self._destroyed = _NOBODY
        #: Whether another node takes its place; otherwise it is removed.
        self._replaced = False

    def start(self, runtime: Runtime) -> None:
        runtime.tasks.spawn(self._run(runtime), "kind operators")

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
        self._destroyed = self._draw.choice(removable)
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
        """A new node takes the place: on the same host with another disk, or on a host of its own."""
        cluster = self._cluster
        others = [name for name in cluster.parked if not cluster.node_id(name) and name != dead]
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
        for operation in self._cluster.newest.operations:
            waits = any(self._destroyed in transition.union for transition in operation.transitions)
            if waits and self._destroyed not in operation.about.nodes and can_go_back(operation):
                requests = self._cluster.newest.requests.live
                asked = [request for request in requests if request.operation_id == operation.id]
                cancel = CancelRequest(asked[0].id, "a node is lost")
                await self._operators.submit(runtime, EntryKind.CANCEL_REQUEST, cancel)
                return True
        return False


def _may_go(cluster: ClusterMetadata, node: NodeId) -> bool:
    """Whether its removal would begin now, or once its vote is another node's."""
    judged = without_vote(cluster, node) if node in cluster.service.members else cluster
    try:
        PrepareOperation(Remove(node)).apply(judged, cluster.epoch + 1)
    except Rejected:
        return False
    return True
