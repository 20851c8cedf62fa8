"""Runs the topology coordinator's decisions while this node leads the metadata group.

Invariant: this module decides nothing: it asks `topology.step` what is next, gathers the acknowledgements
and work reports that the answer names, and submits the entries it proposes. All that must survive is in
the metadata, so any other leader continues from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata import features
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Transformation
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import EpochQuery, EpochReply, RunWork, WorkStatus
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.node.work.moved import Moved
from lockstep.topology.barriers import GuardReport
from lockstep.topology.board import Board
from lockstep.topology.generations import are_pending
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import CancelRequest
from lockstep.topology.step import (
    Idle,
    Propose,
    Reports,
    RunWorkOrders,
    Wait,
    WorkKey,
    WorkOrder,
    WorkReport,
    relaxable,
    step,
    work_key,
)
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId

#: One round of questions to nodes that block a barrier.
QUERY_TIMEOUT_MS = 1000
#: Pause between rounds while something blocks.
ROUND_PAUSE_MS = 50
#: Pause where only what runs beside operations waits: features, and streams of changes. A node that is down
#: may hold them up for days.
BESIDE_PAUSE_MS = 1000
#: Pause while a request waits for the other group to follow the voters: nothing tells of its progress.
FOLLOW_PAUSE_MS = 100
#: One RUN_WORK request; above the target's own hold time.
WORK_TIMEOUT_MS = 5000
#: One submission of a step; a leader that cannot commit in it has probably lost its place.
STEP_TIMEOUT_MS = 10_000


class Blocking(msgspec.Struct, frozen=True):
    """What a running operation waits for, and since when (wall clock) the same node has held the same stage
    up, whatever the reason; a new leader counts anew."""

    operation_id: int
    node: int
    reason: str
    since_us: int


class TopologyDriver:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        *,
        is_leader: Callable[[], bool],
        heard_since: Callable[[int, int], bool],
        follows: Callable[[], str],
        stragglers: Callable[[], tuple[tuple[str, int], ...]],
    ) -> None:
        """`heard_since(node, wall clock in us)`: whether it lives and gave a sign of life after that.
        `stragglers`: guards of closed sessions that this node holds."""
        self._runtime = context.runtime
        self._state = state
        self._internode = context.internode
        self._submitter = submitter
        self._own_id = context.own_id
        self._is_leader = is_leader
        self._alive = context.alive
        self._heard_since = heard_since
        self._follows = follows
        self._stragglers = stragglers
        self._relax_after_ms = context.configuration.topology.relax_after_ms
        self._log = context.log
        self._wake = asyncio.Event()
        self._acknowledged: dict[NodeId, int] = {}
        self._listeners: list[Callable[[int, int], None]] = []
        self._work: dict[WorkKey, WorkReport] = {}
        #: What each unfinished order waits for, as its node last said; a change is logged.
        self._texts: dict[WorkKey, str] = {}
        #: Nodes that did not answer the last question, with the error: asked again often, said once.
        self._unreached: dict[int, str] = {}
        #: (operation, stage epoch, node) -> since when it blocks.
        self._since: dict[tuple[int, int, int], int] = {}
        #: What nodes said last of the guards they hold.
        self._guards: dict[NodeId, GuardReport] = {}
        #: Nodes that are being asked for their part of a stage's work right now.
        self._polled: set[WorkKey] = set()
        #: (operation, stage epoch) -> since when nothing but quorums within data centres is missing.
        self._relaxable: dict[tuple[int, int], float] = {}
        self._relaxed: tuple[tuple[int, int], ...] = ()
        #: Barriers that were let go of quorums within data centres.
        self.relaxed_count = 0
        self.blocking: tuple[Blocking, ...] = ()
        self._board = Board()
        self.moved = Moved()
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

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        if before.operations is not after.operations or before.transitions is not after.transitions:
            live = {0, *(operation.id for operation in after.operations)}
            for known in (self._work, self._texts, self.said):
                self._forget(known, lambda key: key[0] in live and (key[0] or after.session_open(key[1])))
        self._wake.set()

    def _forget(self, known: dict[WorkKey, Any], is_kept: Callable[[WorkKey], object]) -> None:
        for key in [key for key in known if not is_kept(key)]:
            del known[key]

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
            self._since = {}
            self._relaxable, self._relaxed = {}, ()

    def _has_something(self) -> bool:
        cluster = self._state.current
        moving = cluster.operations or cluster.transitions.lone_count
        return bool(moving or cluster.requests.live or features.due(cluster) or are_pending(cluster))

    def follows(self) -> str:
        """Why requests of nodes that voted wait beside what the metadata says; empty when they do not."""
        return self._follows() if self._state.current.requests.queue else ""

    async def _round(self) -> bool:
        cluster = self._state.current
        if (due := self.moved.due(cluster)) is not None:
            await self._submitter.submit(due, STEP_TIMEOUT_MS)
            return True
        reports = self._reports(cluster)
        decision = step(cluster, reports, self._board.look(cluster, reports))
        if isinstance(decision, Idle):
            if reports.follows:
                await asyncio.sleep(FOLLOW_PAUSE_MS / 1000)
            return bool(reports.follows)
        if isinstance(decision, Propose):
            self._runtime.probes.reach("topology.propose")
            self.blocking = ()
            await self._submitter.submit(
                self._reconsidered(cluster, decision.transformation), STEP_TIMEOUT_MS
            )
            return True
        orders, wait = (
            (decision.orders, decision.wait) if isinstance(decision, RunWorkOrders) else ((), decision)
        )
        self._show(orders, wait)
        for order in orders:
            if work_key(order) not in self._polled:
                self._polled.add(work_key(order))
                self._runtime.tasks.spawn(self._poll(cluster, order), f"topology.work.{order.operation_id}")
        if wait is not None:
            self._relax(cluster, reports)
            await self._ask(cluster, wait)
        else:
            await self._wake.wait()
            self._wake.clear()
        return True

    def _reports(self, cluster: ClusterMetadata) -> Reports:
        own = NodeId(self._own_id())
        return Reports(
            acknowledged={**self._acknowledged, own: cluster.epoch},
            work=dict(self._work),
            dead=tuple(n.id for n in cluster.directory.nodes if not self._alive(n.id)),
            texts=dict(self._texts),
            follows=self.follows(),
            guards={**self._guards, own: GuardReport(cluster.epoch, self._stragglers())},
            relaxed=self._relaxed,
            at_ms=self._runtime.clock.wall_us() // 1000,
        )

    def _relax(self, cluster: ClusterMetadata, reports: Reports) -> None:
        """Let barriers go that lacked only quorums within data centres for as long as operators said."""
        if self._relax_after_ms is None:
            return
        now_s = self._runtime.clock.monotonic_s()
        lacking = {
            (operation.id, operation.stage_epoch): state for operation, state in relaxable(cluster, reports)
        }
        self._relaxable = {key: self._relaxable.get(key, now_s) for key in lacking}
        for key, since_s in self._relaxable.items():
            if (now_s - since_s) * 1000 < self._relax_after_ms:
                continue
            self._relaxed = (*self._relaxed, key)
            self.relaxed_count += 1
            nodes = ", ".join(str(missing.node) for missing in lacking[key].missing)
            self._log("topology.barrier_relaxed", operation=key[0], epoch=key[1], without=nodes)
            self._wake.set()

    def _reconsidered(self, cluster: ClusterMetadata, wanted: Transformation) -> Transformation:
        """What to submit: with what a stage that ends has moved; a removal whose node came back while it was
        queued is taken back, not begun."""
        if isinstance(wanted, AdvanceOperation):
            moved = self.moved.brought(cluster.operations_by_id[wanted.operation_id])
            return msgspec.structs.replace(wanted, moved_bytes=moved.bytes, moved_fragments=moved.fragments)
        removal = wanted.body if isinstance(wanted, PrepareOperation) else None
        if not isinstance(wanted, PrepareOperation) or not isinstance(removal, Remove):
            return wanted
        request = cluster.requests.by_id.get(wanted.request_id)
        if request is None or removal.presumed_dead:
            return wanted
        asked = self._state.retained(request.requested_epoch, request.requested_epoch)
        if not asked or not self._heard_since(request.node, asked[0].commit_time_us):
            return wanted
        return CancelRequest(request.id, f"node {request.node} came back: only a dead node is removed")

    async def _ask(self, cluster: ClusterMetadata, wait: Wait) -> None:
        self._runtime.probes.reach("topology.waits")
        before = (dict(self._acknowledged), dict(self._guards))
        async with asyncio.TaskGroup() as group:
            for node in dict.fromkeys(node for node, _reason in wait.blockers):
                group.create_task(self._query(cluster, node, wait.epoch))
        if self._state.current is not cluster or (self._acknowledged, self._guards) != before:
            return
        if cluster.operations or cluster.transitions.lone_count or cluster.requests.live:
            await asyncio.sleep(ROUND_PAUSE_MS / 1000)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(BESIDE_PAUSE_MS / 1000):
                await self._wake.wait()
        self._wake.clear()

    def _show(self, orders: tuple[WorkOrder, ...], wait: Wait | None) -> None:
        """Show whom operations wait for: nodes at work, and nodes that barriers lack."""
        at_work = [
            (one.operation_id, int(one.node), self._texts.get(work_key(one), f"{one.kind} is running"))
            for one in orders
        ]
        lacking = [] if wait is None else list(zip(wait.operations, wait.blockers, strict=True))
        self._block([*at_work, *((operation, int(node), reason) for operation, (node, reason) in lacking)])

    def _block(self, blockers: list[tuple[int, int, str]]) -> None:
        """Show (operation, node, reason); what blocked the same stage before keeps its time."""
        now, running = self._runtime.clock.wall_us(), self._state.current.operations_by_id
        stages = {id_: operation.stage_epoch for id_, operation in running.items()}
        keys = [(operation, stages.get(operation, 0), node) for operation, node, _reason in blockers]
        self._since = {key: self._since.get(key, now) for key in keys}
        self.blocking = tuple(
            Blocking(*blocker, since_us=self._since[key]) for blocker, key in zip(blockers, keys, strict=True)
        )

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
        if reply.node != node:
            return  # Another one that stands at its address, maybe one that has no id yet.
        self._unreached.pop(node, None)
        known = self._acknowledged.get(NodeId(node), 0)
        self._acknowledged[NodeId(node)] = max(known, reply.epoch)
        self._guards[NodeId(node)] = GuardReport(reply.epoch, reply.stragglers)

    async def _poll(self, cluster: ClusterMetadata, order: WorkOrder) -> None:
        try:
            await self._run_order(cluster, order)
        finally:
            self._polled.discard(work_key(order))
            self._wake.set()

    async def _run_order(self, cluster: ClusterMetadata, order: WorkOrder) -> None:
        info = cluster.directory.by_id[order.node]
        key = work_key(order)
        request = RunWork(order.operation_id, order.stage, order.session_id, cluster.epoch, order.node)
        try:
            status: WorkStatus = await self._internode.request(
                (info.address, info.internode_port), verbs.RUN_WORK, request, WORK_TIMEOUT_MS
            )
        except LockstepError as error:
            self._say("topology.work_waits", key, str(error))
            await asyncio.sleep(ROUND_PAUSE_MS / 1000)
            return
        if order.operation_id:
            self.said[key] = self.moved.note(key, status)
            self._count(key, status)
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

    def _count(self, key: WorkKey, status: WorkStatus) -> None:
        cluster = self._state.current
        operation = cluster.operations_by_id.get(key[0])
        if operation is None:
            return
        self.moved.heard(operation, key, status)
        request = cluster.requests.by_operation[operation.id]
        told = self.moved.told(request)
        self._runtime.probes.observe("topology.moved", request=request.id, moved_bytes=told.bytes)

    def _say(self, event: str, key: WorkKey, text: str) -> None:
        """Log why work waits, once for each reason: it is asked for many times a second."""
        if self._texts.get(key) != text:
            self._texts[key] = text
            self._log(event, node=key[2], error=text)
