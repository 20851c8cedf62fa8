"""Runs the topology coordinator's decisions while this node leads the metadata group.

Invariant: this module decides nothing: it asks `topology.step` what is next, gathers the acknowledgements
and work reports that the answer names, and submits the entries it proposes. All that must survive is in
the metadata, so any other leader continues from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.messages import EpochQuery, EpochReply, RunWork, WorkStatus
from lockstep.node.metadata_state import MetadataState
from lockstep.node.submission import Submitter
from lockstep.replication import verbs
from lockstep.replication.handshake import PeerInfo
from lockstep.replication.internode import Internode
from lockstep.runtime.ports import Runtime
from lockstep.topology.step import (
    Idle,
    Propose,
    Reports,
    RunWorkOrders,
    Wait,
    WorkKey,
    WorkOrder,
    WorkReport,
    step,
)
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId

#: One round of questions to nodes that block a barrier.
QUERY_TIMEOUT_MS = 1000
#: Pause between rounds while something blocks.
ROUND_PAUSE_MS = 50
#: Pause while a request waits for the other group to follow the voters: nothing tells of its progress.
FOLLOW_PAUSE_MS = 100
#: One RUN_WORK request; above the target's own hold time.
WORK_TIMEOUT_MS = 5000
#: One submission of a step; a leader that cannot commit in it has probably lost its place.
STEP_TIMEOUT_MS = 10_000


class Blocking(msgspec.Struct, frozen=True):
    """What a running operation waits for, since when (wall clock)."""

    operation_id: int
    node: int
    reason: str
    since_us: int


class TopologyDriver:
    def __init__(
        self,
        runtime: Runtime,
        state: MetadataState,
        internode: Internode,
        submitter: Submitter,
        *,
        own_id: Callable[[], int],
        is_leader: Callable[[], bool],
        alive: Callable[[int], bool],
        follows: Callable[[], str],
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._internode = internode
        self._submitter = submitter
        self._own_id = own_id
        self._is_leader = is_leader
        self._alive = alive
        self._follows = follows
        self._log = log
        self._wake = asyncio.Event()
        self._acknowledged: dict[NodeId, int] = {}
        self._listeners: list[Callable[[int, int], None]] = []
        self._work: dict[WorkKey, WorkReport] = {}
        #: What each unfinished order waits for, as its node last said; a change is logged.
        self._texts: dict[WorkKey, str] = {}
        #: Nodes that did not answer the last question, with the error: asked again often, said once.
        self._unreached: dict[int, str] = {}
        self._since: dict[tuple[int, int, str], int] = {}
        self.blocking: tuple[Blocking, ...] = ()
        self.progress: dict[int, WorkStatus] = {}
        #: What each node said last of its part of a stage's work.
        self.said: dict[WorkKey, WorkStatus] = {}
        state.listen(self._applied)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "topology.coordinator")

    def wake(self) -> None:
        self._wake.set()

    def heard(self, peer: PeerInfo, epoch: int) -> None:
        """An epoch in a message is an acknowledgement: it was durable before it was sent."""
        node = NodeId(peer.node_id)
        if node and epoch > self._acknowledged.get(node, 0):
            self._acknowledged[node] = epoch
            self._wake.set()
            for listener in self._listeners:
                listener(node, epoch)

    def acknowledged(self, node: int) -> int:
        """Newest epoch that this node knows `node` to have applied; 0 when it has not heard from it."""
        return self._acknowledged.get(NodeId(node), 0)

    def listen(self, listener: Callable[[int, int], None]) -> None:
        """Tell (node, epoch) whenever a node is heard to have applied a newer epoch."""
        self._listeners.append(listener)

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.operations is not after.operations:
            live = {operation.id for operation in after.operations}
            self._work = {key: report for key, report in self._work.items() if key[0] in live}
            self._texts = {key: text for key, text in self._texts.items() if key[0] in live}
            self.said = {key: status for key, status in self.said.items() if key[0] in live}
            self.progress = {key: status for key, status in self.progress.items() if key in live}
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._is_leader() and self._has_something() and self._state.broken is None:
                try:
                    if not await self._round():
                        break
                except LockstepError as error:
                    self._log("topology.step_failed", error=str(error))
                    await asyncio.sleep(ROUND_PAUSE_MS / 1000)
                except Exception as defect:
                    # Requests are still served; operations wait, visibly, for another leader.
                    text = f"the coordinator failed: {defect!r}"
                    self._block([(o.id, self._own_id(), text) for o in self._state.current.operations])
                    raise
            self.blocking = ()

    def _has_something(self) -> bool:
        cluster = self._state.current
        return bool(cluster.operations or cluster.requests.live)

    def follows(self) -> str:
        """Why requests of nodes that voted wait beside what the metadata says; empty when they do not."""
        return self._follows() if self._state.current.requests.queue else ""

    async def _round(self) -> bool:
        cluster = self._state.current
        follows = self.follows()
        own = NodeId(self._own_id())
        decision = step(
            cluster,
            Reports(
                acknowledged={**self._acknowledged, own: cluster.epoch},
                work=dict(self._work),
                dead=tuple(n.id for n in cluster.directory.nodes if not self._alive(n.id)),
                follows=follows,
            ),
        )
        if isinstance(decision, Idle):
            if follows:
                await asyncio.sleep(FOLLOW_PAUSE_MS / 1000)
            return bool(follows)
        if isinstance(decision, Propose):
            self._runtime.probes.reach("topology.propose")
            self.blocking = ()
            await self._submitter.submit(decision.transformation, STEP_TIMEOUT_MS)
        elif isinstance(decision, RunWorkOrders):
            await self._run_orders(cluster, decision.orders)
        else:
            await self._ask(cluster, decision)
        return True

    async def _ask(self, cluster: ClusterMetadata, wait: Wait) -> None:
        self._block([(wait.operation_id, int(node), reason) for node, reason in wait.blockers])
        self._runtime.probes.reach("topology.waits")
        before = dict(self._acknowledged)
        async with asyncio.TaskGroup() as group:
            for node, _reason in wait.blockers:
                group.create_task(self._query(cluster, node, wait.epoch))
        if self._state.current is cluster and self._acknowledged == before:
            await asyncio.sleep(ROUND_PAUSE_MS / 1000)

    def _block(self, keys: list[tuple[int, int, str]]) -> None:
        """Show (operation, node, reason); what blocked before keeps its time."""
        now = self._runtime.clock.wall_us()
        self._since = {key: self._since.get(key, now) for key in keys}
        self.blocking = tuple(Blocking(*key, since_us=self._since[key]) for key in keys)

    async def _query(self, cluster: ClusterMetadata, node: int, epoch: int) -> None:
        info = cluster.directory.by_id.get(NodeId(node))
        if info is None or node == self._own_id() or node in cluster.directory.shadowed:
            return
        try:
            reply: EpochReply = await self._internode.request(
                (info.address, info.internode_port),
                verbs.EPOCH_QUERY,
                EpochQuery(epoch),
                QUERY_TIMEOUT_MS,
            )
        except LockstepError as error:
            if self._unreached.get(node) != error.code:
                self._unreached[node] = error.code
                self._log("topology.barrier_waits", node=node, epoch=epoch, error=str(error))
            return
        if reply.node not in (0, node):
            return  # Another one that stands at its address.
        self._unreached.pop(node, None)
        known = self._acknowledged.get(NodeId(node), 0)
        self._acknowledged[NodeId(node)] = max(known, reply.epoch)

    async def _run_orders(self, cluster: ClusterMetadata, orders: tuple[WorkOrder, ...]) -> None:
        texts = [self._texts.get(_key(order), f"{order.kind} is running") for order in orders]
        keys = zip(orders, texts, strict=True)
        self._block([(order.operation_id, int(order.node), text) for order, text in keys])
        async with asyncio.TaskGroup() as group:
            for order in orders:
                group.create_task(self._run_order(cluster, order))

    async def _run_order(self, cluster: ClusterMetadata, order: WorkOrder) -> None:
        info = cluster.directory.by_id[order.node]
        key = _key(order)
        request = RunWork(order.operation_id, order.stage, order.session_id, cluster.epoch, order.node)
        try:
            status: WorkStatus = await self._internode.request(
                (info.address, info.internode_port), verbs.RUN_WORK, request, WORK_TIMEOUT_MS
            )
        except LockstepError as error:
            self._say("topology.work_waits", key, str(error))
            await asyncio.sleep(ROUND_PAUSE_MS / 1000)
            return
        self.progress[order.operation_id] = status
        self.said[key] = status
        if status.state == "done":
            self._work[key] = WorkReport.DONE
            self._texts.pop(key, None)
        elif status.state == "failed":
            if status.definite:
                self._work[key] = WorkReport.FAILED
            self._say("topology.work_failed", key, status.text)
            await asyncio.sleep(ROUND_PAUSE_MS / 1000)
        else:
            self._texts[key] = f"{order.kind} is running"

    def _say(self, event: str, key: WorkKey, text: str) -> None:
        """Log why work waits, once for each reason: it is asked for many times a second."""
        if self._texts.get(key) != text:
            self._texts[key] = text
            self._log(event, node=key[2], error=text)


def _key(order: WorkOrder) -> WorkKey:
    return (order.operation_id, order.stage, order.node)
