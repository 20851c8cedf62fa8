"""Has tables split and merge their tablets while this node leads the metadata group, and says of this node
what it is ready for.

Invariant: nothing is decided here: `topology.tablets.resizing` says what follows from what nodes answered.
What a node is ready for is never kept: it is found when it is asked for, at the epoch that the question
names, once everything that was taken under older epochs is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.log.submission import Submitter
from lockstep.node.work.worker import table_ids
from lockstep.placement.tablets.counts import CountSettings
from lockstep.placement.tablets.map import Tablet
from lockstep.placement.tablets.resize import ResizeKind, resized_tablets
from lockstep.replica.replica import ReplicaService
from lockstep.topology.tablets.balancing import Planned
from lockstep.topology.tablets.resizes import AdvanceCaptured, AdvanceResize
from lockstep.topology.tablets.resizing import Heard, Looked, Question, Resizer, Said
from lockstep.values.errors import LockstepError, RangeLacking, Rejected
from lockstep.values.ids import NodeId

#: One submission of an entry; a leader that cannot commit in it has probably lost its place.
SUBMIT_TIMEOUT_MS: Final = 10_000
#: One round of questions: a node that has not caught up, and made durable what it took, within this time is
#: asked again.
ASK_TIMEOUT_MS: Final = 2_000
#: Pause before the same is asked again: what a node lacks, or is still at, takes longer than an answer.
ASK_PAUSE_S: Final = 0.2


class AskReady(msgspec.Struct, frozen=True, array_like=True):
    """Catch up to the epoch, end what you took under older ones, and say what you are ready for of these
    tablet groups."""

    epoch: int
    groups: tuple[int, ...] = ()


class ReadyReply(msgspec.Struct, frozen=True, array_like=True):
    """`node` says it, of `epoch`; `ready`: (group, number of the decision, last tokens of tablets)."""

    node: NodeId
    epoch: int
    ready: tuple[tuple[int, int, tuple[int, ...]], ...] = ()

    def value(self) -> Said:
        return Said(self.epoch, {group: (number, frozenset(rights)) for group, number, rights in self.ready})


class TabletReadiness:
    """This node's answers."""

    def __init__(self, context: NodeContext, replica: ReplicaService) -> None:
        self._context = context
        self._replica = replica
        context.internode.register(verbs.TABLET_READY, AskReady, ReadyReply, self._serve)

    async def _serve(self, peer: PeerInfo, question: AskReady) -> ReadyReply:
        await self._context.catch_up.reach(question.epoch, peer.endpoint)
        return await self.own(question)

    async def own(self, question: AskReady) -> ReadyReply:
        """Once this node has applied the epoch."""
        await self._replica.drain(question.epoch)
        self._context.runtime.probes.reach("tablets.ready")
        cluster, own = self._context.cluster(), NodeId(self._context.own_id())
        found = []
        for group_id in question.groups:
            group = cluster.tablets.by_group.get(group_id)
            if group is None or group.head.resizing.resize.kind is ResizeKind.NONE:
                continue
            resize, map_ = group.head.resizing.resize, group.map(cluster.placements)
            rights = tuple(
                tablet.right
                for tablet in resized_tablets(map_, resize)
                if own in tablet.nodes
                and tablet.epoch <= question.epoch
                and self._has(cluster, group_id, tablet)
            )
            found.append((group_id, resize.sequence, rights))
        return ReadyReply(own, question.epoch, tuple(found))

    def _has(self, cluster: ClusterMetadata, group: int, tablet: Tablet) -> bool:
        """Whether nothing is lacking of a tablet that was lost here, or did not arrive yet, or was missed
        and comes without ids."""
        try:
            for table in table_ids(cluster, group):
                self._replica.require_held(table, tablet.range)
                self._replica.require_whole(table, tablet.right)
        except RangeLacking:
            return False
        return True


class ResizeDriver:
    """Belongs to the balancer, which wakes it."""

    def __init__(
        self,
        context: NodeContext,
        submitter: Submitter,
        readiness: TabletReadiness,
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._submitter = submitter
        self._readiness = readiness
        self._wake = wake
        self._settings = CountSettings(context.configuration.tablets.target_size_bytes)
        self._said: dict[NodeId, Said] = {}
        #: Nodes that did not answer the last question: asked again often, said once.
        self._unreached: dict[NodeId, str] = {}
        self._asking: asyncio.Task[None] | None = None
        self._asked: Question | None = None
        #: Whether something is due by the clock alone.
        self.waits_for_time = False
        self.forget()

    def forget(self) -> None:
        """Another node leads now: what this one knows is old when it leads again."""
        self._resizer = Resizer(self._settings)
        self._said = {}
        self.waits_for_time = False

    def look(self, cluster: ClusterMetadata, planned: Planned, dead: tuple[NodeId, ...]) -> Looked:
        """What would be done now; looking begins nothing."""
        at_ms = self._context.runtime.clock.wall_us() // 1000
        return self._resizer.look(cluster, planned.cluster, Heard(dict(self._said), dead, at_ms))

    async def round(self, cluster: ClusterMetadata, planned: Planned, dead: tuple[NodeId, ...]) -> bool:
        """Submit what follows, or ask what must be known first. Whether an entry went in: then all is to be
        looked at anew."""
        looked = self.look(cluster, planned, dead)
        self.waits_for_time = any(wait.for_time for wait in looked.waits)
        if looked.entry is not None:
            return await self._submit(cluster, looked)
        if looked.question is not None and (self._asking is None or self._asking.done()):
            work = self._ask(cluster, looked.question)
            self._asking = self._context.runtime.tasks.spawn(work, "tablets.ready")
        return False

    async def _submit(self, cluster: ClusterMetadata, looked: Looked) -> bool:
        entry = looked.entry
        assert entry is not None, "there is something to submit"
        self._context.runtime.probes.reach("tablets.resize")
        try:
            await self._submitter.submit(entry, SUBMIT_TIMEOUT_MS)
        except Rejected as refusal:
            self._context.log("tablets.resize_refused", error=str(refusal))
            return True
        for reason in looked.reasons:
            self._context.log("tablets.resize_decided", decision=reason)
        if isinstance(entry, AdvanceResize | AdvanceCaptured):
            head = cluster.tablets.by_group[entry.group].head
            text = f"{head.resizing.title()} of {head.keyspace}.{head.table}"
            self._context.log("tablets.resize", resize=text, left=head.resizing.phase.value, back=entry.back)
        return True

    async def _ask(self, cluster: ClusterMetadata, question: Question) -> None:
        if question == self._asked:
            await asyncio.sleep(ASK_PAUSE_S)
        self._asked = question
        async with asyncio.TaskGroup() as group:
            for node in question.nodes:
                group.create_task(self._ask_one(cluster, node, AskReady(question.epoch, question.groups)))
        self._wake()

    async def _ask_one(self, cluster: ClusterMetadata, node: NodeId, question: AskReady) -> None:
        info = cluster.directory.by_id[node]
        try:
            if node == self._context.own_id():
                said = await self._readiness.own(question)
            else:
                said = await self._context.internode.request(
                    (info.address, info.internode_port), verbs.TABLET_READY, question, ASK_TIMEOUT_MS
                )
        except LockstepError as error:
            if self._unreached.get(node) != error.code:
                self._unreached[node] = error.code
                self._context.log("tablets.ready_unknown", node=node, error=error.code)
            return
        self._unreached.pop(node, None)
        if said.node == node:
            self._said[node] = said.value()
