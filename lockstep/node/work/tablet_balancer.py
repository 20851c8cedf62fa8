"""Runs the balancer while this node leads the metadata group.

Invariant: this module decides nothing: it asks nodes what they hold, has `topology.tablets.balancing` say
what follows, and submits the entries that it proposes. What was refused is planned anew, toward the same
target where it was for the epoch alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.tablets import ResizePhase
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.node.work.load_questions import PLAN_ASK_TIMEOUT_MS, TabletLoads
from lockstep.node.work.tablet_resizes import ResizeDriver, TabletReadiness
from lockstep.placement.tablets.load import LoadStatistics, NodeLoad
from lockstep.topology.tablets.balancing import Planned, Planner
from lockstep.topology.tablets.resizing import Looked
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import NodeId

#: One submission of moves; a leader that cannot commit in it has probably lost its place.
SUBMIT_TIMEOUT_MS: Final = 10_000
#: Pause after a plan: what changes meanwhile is looked at together.
PLAN_PAUSE_S: Final = 0.05
#: Pause after an entry that was refused for another reason than a newer epoch: it would be refused again.
REFUSED_PAUSE_S: Final = 1.0
#: Nodes are asked again at once after what changes much, though not more often than this.
ASK_PAUSE_S: Final = 1.0


class TabletBalancer:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        loads: TabletLoads,
        readiness: TabletReadiness,
        is_leader: Callable[[], bool],
    ) -> None:
        self._context = context
        self._state = state
        self._submitter = submitter
        self._loads = loads
        self._is_leader = is_leader
        self._refresh_s = context.configuration.tablets.load_refresh_ms / 1000
        self._wake = asyncio.Event()
        #: Set when a node begins to come, is there, or is no more: then there is no pause before planning.
        self._came = asyncio.Event()
        self._target_bytes = context.configuration.tablets.target_size_bytes
        self._planner = Planner(self._target_bytes)
        self._resizes = ResizeDriver(context, submitter, readiness, self.wake)
        #: When nodes were asked last; None: they are to be asked.
        self._asked_s: float | None = None
        self._is_due = True
        self._asking: asyncio.Task[None] | None = None
        state.listen(self._applied, parts_only=True)

    def start(self) -> None:
        self._context.runtime.tasks.spawn(self._run(), "tablets.balancer")

    def wake(self) -> None:
        """Another node may lead now."""
        self._wake.set()

    def planned(self) -> Planned:
        """What would be begun now; looking begins nothing."""
        return self._planner.look(self._state.current, self._dead())

    def resizing(self, planned: Planned) -> Looked:
        """What tables wait for whose number of tablets is to change."""
        return self._resizes.look(self._state.current, planned, self._dead())

    @property
    def statistics(self) -> LoadStatistics | None:
        """What nodes said of their load, as it is known here; None before they were asked, and where this
        node does not lead."""
        known = self._planner.statistics
        return known if known.round and self._is_leader() else None

    async def loads(self) -> dict[NodeId, NodeLoad]:
        """What nodes that live say of their load now; whoever takes longer than a person waits is out."""
        present = [node for node in self._state.current.directory.present_ids if self._context.alive(node)]
        return await self._loads.ask(present, PLAN_ASK_TIMEOUT_MS)

    def _dead(self) -> tuple[NodeId, ...]:
        alive = self._context.alive
        return tuple(node for node in self._state.current.directory.present_ids if not alive(node))

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        tables = before.tablets.by_group.keys() != after.tablets.by_group.keys()
        if before.tablets is not after.tablets:
            tables = tables or _settled(before) != _settled(after)
        ended = before.transitions.lone_count > after.transitions.lone_count == 0
        was, now = _normal(before), _normal(after)
        if was != now or _asked(before) != _asked(after):
            # Nodes come and go seldom. One that begins to join is asked by the time it may have tablets.
            self._came.set()
            is_known = set(was) <= set(now) <= self._planner.statistics.nodes.keys()
            if was == now or not is_known:
                self._asked_s = None
            self._is_due = True
        if tables or ended:
            self._is_due = True
        if after.tablets.by_group:
            self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._next()
            if not self._is_leader() or self._state.broken is not None:
                # Another leader asks for itself; what this one knows is old when it leads again.
                self._planner, self._asked_s = Planner(self._target_bytes), None
                self._resizes.forget()
                continue
            if not self._state.current.tablets.by_group:
                continue
            try:
                self._refresh()
                await self._round()
            except LockstepError as error:
                self._planner.refused()
                self._context.log("tablets.plan_failed", error=str(error))
                await asyncio.sleep(REFUSED_PAUSE_S)

    async def _next(self) -> None:
        """Until something changes, or nodes are to be asked."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PLAN_PAUSE_S):
                await self._came.wait()
        self._came.clear()
        with suppress(TimeoutError):
            # Not `wait_for`, which misses its cancellation where the event comes at the same time.
            is_soon = self._is_due or self._resizes.waits_for_time
            async with asyncio.timeout(ASK_PAUSE_S if is_soon else self._refresh_s):
                await self._wake.wait()
        self._wake.clear()

    def _refresh(self) -> None:
        """Ask nodes, when it is time and nobody is being asked; planning goes on with what is known."""
        now_s = self._context.runtime.clock.monotonic_s()
        pause_s = ASK_PAUSE_S if self._is_due else self._refresh_s
        is_early = self._asked_s is not None and now_s - self._asked_s < pause_s
        if is_early or (self._asking is not None and not self._asking.done()):
            return
        self._asked_s, self._is_due = now_s, False
        self._asking = self._context.runtime.tasks.spawn(self._ask(self._planner), "tablets.loads")

    async def _ask(self, planner: Planner) -> None:
        present = _asked(self._state.current)
        planner.refreshed(await self._loads.ask(node for node in present if self._context.alive(node)))
        self._wake.set()

    async def _round(self) -> None:
        if not self._planner.statistics.round:
            return
        planned = self.planned()
        if await self._resizes.round(self._state.current, planned, self._dead()):
            self._wake.set()
            return
        for fail in planned.fails:
            await self._submitter.submit(fail, SUBMIT_TIMEOUT_MS)
        if not planned.plan.moves:
            self._planner.begun(planned)
        if planned.begins is None or planned.fails:
            return
        self._context.runtime.probes.reach("tablets.begin")
        try:
            await self._submitter.submit(planned.begins, SUBMIT_TIMEOUT_MS)
        except Rejected as refusal:
            # What another entry came before is planned again, toward the same target.
            self._wake.set()
            if self._state.current.epoch == planned.begins.plan_epoch:
                self._planner.refused()
                self._context.log("tablets.refused", error=str(refusal))
                await asyncio.sleep(REFUSED_PAUSE_S)
            return
        self._planner.begun(planned)
        moves, total = planned.plan.moves, sum(move.bytes for move in planned.plan.moves)
        self._context.log("tablets.begun", moves=len(moves), left=len(planned.plan.left), bytes=total)


def _settled(cluster: ClusterMetadata) -> list[int]:
    """The tablet groups whose map is new."""
    return [one.id for one in cluster.tablets.groups if one.head.resizing.phase is ResizePhase.SETTLING]


def _asked(cluster: ClusterMetadata) -> list[NodeId]:
    """Who is asked for its load: also who is on its way into the ring, so that what it can hold is known when
    it is there."""
    states = (NodeState.NORMAL, NodeState.BOOTSTRAPPING, NodeState.REPLACING)
    return [node.id for node in cluster.directory.nodes if node.state in states]


def _normal(cluster: ClusterMetadata) -> list[NodeId]:
    return [node.id for node in cluster.directory.nodes if node.state is NodeState.NORMAL]
