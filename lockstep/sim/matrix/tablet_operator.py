"""The operator of one cell of tablets, and the fault that strikes it.

Invariant: he does what a runbook says and nothing else. He begins the change, waits for what goes on by
itself, shuts out who never comes back and removes that node, cancels a change of replication that waits for
it, and asks again. The fault strikes once, at the cell's stage of the first tablet that comes to it, or not
at all. A node that is shut out is so while the tablet is still in that stage: others apply it late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.groups.membership import ServiceWish, SetService
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.requests import Request
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.tablets import ResizePhase, TabletGroup
from lockstep.metadata.transitions import Transition
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import AlterOptions
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE
from lockstep.sim.faults.kinds import LAG_PROBE
from lockstep.sim.load.operators import Operators
from lockstep.sim.matrix.cells import Point, Victim
from lockstep.sim.matrix.operator import WORK_LABELS
from lockstep.sim.matrix.tablet_cells import (
    LONE,
    RECOUNTS,
    RESIZES,
    TURNS,
    Change,
    TabletCell,
    TabletFault,
    Way,
)
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.topology.kinds import replication
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.tablets.balancing import SetBalancing
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId

#: How late nodes apply what follows where a node is to be shut out before the stage ends.
_BEHIND_S: Final = 0.4
_DOWN_S: Final = (0.2, 1.0, 3.0)
_PAUSED_S: Final = (1.0, 4.0, 8.0)
#: How long clients write before the change begins.
_BEFORE_S: Final = 0.6
#: How long a change of replication may wait for a node that is gone before it is cancelled.
_PATIENCE_S: Final = 6.0
_LOOK_S: Final = 0.1
_VOTERS: Final = 3
_NOBODY = NodeId(0)
#: What is asked of the table that begins with four tablets, and how many it then has.
_HINTS: Final = {
    Change.SPLIT: ((("min_tablet_count", "8"),), 8),
    Change.MERGE: ((("max_tablet_count", "2"),), 2),
}


class TabletStrike:
    """`struck` once the fault happened, to the node `victim`; `tablet` is the group and last token of the one
    that it struck, and `stage` where that was as its victim was shut out. `gone` is a node that never comes
    back, or is shut out while it runs. `cancel` cancels what runs."""

    def __init__(self, cell: TabletCell, cluster: SimCluster, cancel: Callable[[], None]) -> None:
        self.cell = cell
        #: Whether the change is about to begin, or has begun.
        self.is_on = False
        self.struck = False
        self.victim = ""
        self.tablet: tuple[int, int] | None = None
        self.stage: Stage | None = None
        self.way: Way | None = None
        self.gone = _NOBODY
        #: The newcomer that is shut out so that there is a way back.
        self.turned = _NOBODY
        self.is_turned = False
        self.at_ns = 0
        #: Who gives the tablet up; nobody until it is known.
        self.giver = _NOBODY
        self._cluster = cluster
        self._cancel = cancel
        self._draw = cluster.world.stream("strike")
        self._rule: CrashRule | None = None

    # ---- told by the watch

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        if not self.is_on:
            return
        if self.stage is None and self.gone and self.gone in after.excluded_by_node and self.tablet:
            one = after.transitions.at(*self.tablet)
            self.stage = one.position.stage if one is not None and one.position is not None else None
        if self.cell.kind in LONE and before.transitions is not after.transitions:
            self._moved(before, after)
        elif self.cell.kind in RESIZES and before.tablets is not after.tablets:
            self._resized(before, after)
        if self.cell.kind in RESIZES and self.cell.victim is Victim.TARGET and not self.struck:
            self._paired(after)

    def stage_entered(self, operation: Operation, stage: Stage | None) -> None:
        if self.cell.kind not in RECOUNTS or operation.kind != replication.KIND.name or self.struck:
            return
        if self._rule is not None:
            self._disarm()
        if stage == self.cell.stage:
            moving = self._cluster.newest.transitions.of(operation.id)
            self._arm(lambda: self._operation_victims(moving))
        elif self.cell.stage == Stage.ROLLBACK_TO_NORMAL and stage is Stage.WRITE_BOTH_READ_OLD:
            self._cancel()

    def _operation_victims(self, moving: tuple[Transition, ...]) -> list[NodeId]:
        if self.cell.victim is Victim.TARGET:
            return [node for one in moving for node in one.gained]
        return [node for one in moving for node in (one.lost or one.old)]

    def _moved(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        for _, one in after.transitions.tree.items():
            former = before.transitions.at(one.group, one.range.right)
            if former is one or one.position is None or not self._is_meant(one):
                continue
            stage = one.position.stage
            if former is not None and former.position is not None and former.position.stage is stage:
                continue
            key = (one.group, one.range.right)
            if self._rule is not None and key == self.tablet:
                self._disarm()
            if self.tablet is None and stage is TURNS.get(Stage(self.cell.stage)):
                self.tablet = key
                self._turn(one)
            elif stage == self.cell.stage and not self.struck and self.tablet in (None, key):
                self.tablet = key
                victims = one.gained if self.cell.victim is Victim.TARGET else self._givers(one, after)
                self._arm(lambda victims=victims: list(victims))  # type: ignore[misc]
        if self.tablet is not None and self.way is None and self.struck:
            self._ended(before, after)

    def _is_meant(self, one: Transition) -> bool:
        return bool(one.gained) and (not self.giver or self.giver in one.lost)

    def _givers(self, one: Transition, cluster: ClusterMetadata) -> list[NodeId]:
        """Who gives it up, or where that one is dead, those who fill the newcomer."""
        if self.cell.kind is not Change.REBUILD:
            return list(one.lost)
        return [node for node in one.old if node not in one.lost]

    def _ended(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        assert self.tablet is not None
        former = before.transitions.at(*self.tablet)
        if former is None or after.transitions.at(*self.tablet) is not None:
            return
        reads = after.placements.ring(self.tablet[0]).range_at(self.tablet[1]).group.reads
        has_new, has_old = set(former.gained) <= set(reads), bool(set(former.lost) & set(reads))
        assert has_new is not has_old, "one side or the other has it"
        self.way = Way.FORWARD if has_new else Way.BACK

    def _resized(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        for group in after.tablets.groups:
            former = before.tablets.by_group.get(group.id)
            if former is None or former.head.resizing == group.head.resizing:
                continue
            if self._rule is not None:
                self._disarm()
            is_there = group.head.resizing.phase == self.cell.stage
            if is_there and not self.struck and self.cell.victim is not Victim.TARGET:
                ring = after.placements.ring(group.id)
                holders = sorted({node for placed in ring.ranges for node in placed.group.reads})
                self._arm(lambda holders=holders: holders)  # type: ignore[misc]

    def _paired(self, after: ClusterMetadata) -> None:
        """A pair of a merge comes together: its newcomer is the target."""
        for _, one in after.transitions.tree.items():
            group = after.tablets.by_group.get(one.group)
            if group is not None and group.head.resizing.phase is ResizePhase.PREPARING and one.gained:
                self._strike(list(one.gained))
                return

    # ---- where

    def _arm(self, victims: Callable[[], list[NodeId]]) -> None:
        if self.cell.point is Point.ENTRY:
            self._strike(victims())
            return
        assert self.cell.row is not None, "what has no table has no work"
        self._rule = CrashRule(
            label=WORK_LABELS[self.cell.row.work],
            kind="",
            probability=1.0,
            on_fired=lambda _: self._strike(victims()),
        )
        self._cluster.world.probes.add(self._rule)

    def _disarm(self) -> None:
        """The stage is over."""
        assert self._rule is not None
        self._rule.times = 0
        self._rule = None

    # ---- what

    def _turn(self, one: Transition) -> None:
        """The newcomer stands still, so that the stage waits for it, and is shut out."""
        (self.turned,), self.is_turned = one.gained, True
        name = self._cluster.name_of(self.turned)
        self._cluster.tell("strike", f"{name} stands still and is shut out")
        self._cluster.processes[name].pause()
        self._shut_out(self.turned)

    def _strike(self, others: list[NodeId]) -> None:
        """`others`: nodes that have the victim's part."""
        cell, cluster, leader = self.cell, self._cluster, self._cluster.leader[1]
        if self.struck:
            return
        names = [cluster.name_of(node) for node in others]
        live = [name for name in names if cluster.processes[name].alive and name != leader]
        if cell.fault is TabletFault.EXCLUDED and cell.victim is not Victim.COORDINATOR:
            voters = {cluster.name_of(node) for node in cluster.newest.service.members}
            live = [name for name in live if name not in voters]
        victim = leader if cell.victim is Victim.COORDINATOR else self._draw.choice(live or [""])
        if not victim or not cluster.processes[victim].alive:
            return
        self.struck, self.victim, self.at_ns = True, victim, cluster.world.now_ns
        cluster.tell("strike", f"{cell.name} strikes {victim}")
        self._harm(victim)

    def _harm(self, victim: str) -> None:
        cluster, process = self._cluster, self._cluster.processes[victim]
        if self.cell.fault is TabletFault.PAUSED:
            process.pause_for(self._draw.choice(_PAUSED_S))
            return
        if self.cell.fault is TabletFault.KILLED:
            process.crash(KILL if self._draw.random() < 0.5 else POWER)
            process.start_after(self._draw.choice(_DOWN_S))
            return
        self.gone = NodeId(cluster.node_id(victim))
        cluster.retired[self.gone] = None
        # Outside the callback in which it was hit, which may be its own.
        cluster.world.after(0.0, cluster.park, victim, self.gone, label=f"lost {victim}")
        if self.cell.victim is not Victim.COORDINATOR:
            self._shut_out(self.gone)

    def _shut_out(self, node: NodeId) -> None:
        """At this very moment, through the coordinator; the others are slow to apply what follows."""
        cluster, leader = self._cluster, self._cluster.leader[1]
        for name in cluster.live():
            if name != leader:
                behind = DelayRule(label=LAG_PROBE, process=name, low_s=_BEHIND_S, high_s=_BEHIND_S, times=1)
                cluster.world.probes.add(behind)
        at = cluster.nodes[leader]

        async def submit(_: Runtime) -> None:
            try:
                await at.log.submit(ExcludeNodes((node,), "it never comes back"))
            except LockstepError as error:
                cluster.tell("operator", f"cannot shut node {node} out: {error}")

        cluster.processes[leader].submit(submit, "exclude")


class TabletCellOperator(Operators):
    """`strike` is what he sees of the fault. He is done when the change is, and nothing is under way."""

    def __init__(self, cluster: SimCluster, cell: TabletCell, tables: list[str]) -> None:
        super().__init__(cluster, tables)
        self.strike = TabletStrike(cell, cluster, self.cancel_now)
        self._cell = cell
        self._subject = _NOBODY
        self._is_begun = False
        #: The change of replication was cancelled, as the cell wants it.
        self._is_cancelled = False

    async def _run(self, runtime: Runtime) -> None:
        await super()._run(runtime)
        quiet = False
        while not quiet:
            quiet = await self._is_quiet(runtime)
            await asyncio.sleep(_LOOK_S)
        await asyncio.sleep(_BEFORE_S)
        self.strike.is_on = True
        while not self._is_begun:
            await self._begin(runtime)
            await asyncio.sleep(_LOOK_S)
        while not self._over():
            await self._look(runtime)
            await asyncio.sleep(_LOOK_S)

    async def _is_quiet(self, runtime: Runtime) -> bool:
        """Whether as few vote as should, and nothing moves but what the cell is about."""
        newest = self.cluster.newest
        if len(newest.service.members) != _VOTERS:
            wish = SetService(ServiceWish.SIZE, size=_VOTERS)
            await self.submit(runtime, EntryKind.SET_SERVICE, wish)
            return False
        if self._cell.kind not in RESIZES and newest.tablets.is_balanced:
            await self.submit(runtime, EntryKind.SET_BALANCING, SetBalancing(False))
            return False
        return newest.service.change is None and not newest.transitions.count

    # ---- the change

    async def _begin(self, runtime: Runtime) -> None:
        cell, newest = self._cell, self.cluster.newest
        if cell.kind is Change.MIGRATION:
            self._is_begun = await self._move(runtime)
        elif cell.kind is Change.DRAIN:
            self._subject = self.strike.giver = self._subject or self._holder()
            self._is_begun = await self._ask(runtime, Decommission(self._subject))
        elif cell.kind is Change.REBUILD:
            if not self._subject:
                self._subject = self.strike.giver = self._holder()
                self.cluster.park(self.cluster.name_of(self._subject), self._subject)
            self._is_begun = await self._ask(runtime, Remove(self._subject))
        elif cell.kind in RECOUNTS:
            self._is_begun = await self._change_factor(runtime)
        else:
            group = self._group(newest)
            change = AlterOptions(KEYSPACE, group.head.table, (("tablets", _HINTS[cell.kind][0]),))
            submitted = await self.submit(runtime, EntryKind.SCHEMA_CHANGE, ChangeSchema(change))
            self._is_begun = submitted.outcome == "ok"

    def _group(self, cluster: ClusterMetadata) -> TabletGroup:
        table = cluster.schema.table(KEYSPACE, self._tables[0])
        assert table is not None, "nobody drops it"
        return cluster.tablets.by_group[cluster.schema.group_of(table)]

    def _others(self) -> list[NodeId]:
        """Nodes without a vote: they may be shut out."""
        newest = self.cluster.newest
        normal = [node.id for node in newest.directory.in_state(NodeState.NORMAL)]
        return [node for node in normal if node not in newest.service.members]

    def _holder(self) -> NodeId:
        """A node without a vote that holds tablets of the table."""
        ring = self.cluster.newest.placements.ring(self._group(self.cluster.newest).id)
        holders = {node for placed in ring.ranges for node in placed.group.reads}
        return next(node for node in self._others() if node in holders)

    async def _move(self, runtime: Runtime) -> bool:
        """One tablet from a node without a vote to another one."""
        newest, others = self.cluster.newest, self._others()
        group = self._group(newest)
        for placed in newest.placements.ring(group.id).ranges:
            sources = [node for node in placed.group.reads if node in others]
            targets = [node for node in others if node not in placed.group.reads]
            if sources and targets:
                move = TabletMove(group.id, placed.range.right, "migration", (sources[0], 0), (targets[0], 0))
                self.strike.giver = sources[0]
                begin = BeginMoves(0, (move,), force=True)
                return (await self.submit(runtime, EntryKind.BEGIN_MOVES, begin)).outcome == "ok"
        raise AssertionError("a tablet can move between nodes without a vote")

    async def _change_factor(self, runtime: Runtime) -> bool:
        """From three to four, or back."""
        present = self.cluster.newest.schema.by_name[KEYSPACE].replication
        copies = 4 if self._cell.kind is Change.UP else 3
        target = msgspec.structs.replace(present, counts=tuple((dc, copies) for dc, _ in present.factors))
        return target == present or await self._ask(runtime, ReplicationChange(KEYSPACE, target))

    async def _ask(self, runtime: Runtime, body: Any) -> bool:
        request = EnqueueRequest(body, actor="operator")
        return (await self.submit(runtime, EntryKind.ENQUEUE_REQUEST, request)).outcome == "ok"

    # ---- what is to be done meanwhile

    def cancel_now(self) -> None:
        """Cancel the change of replication at this very moment, through the coordinator."""
        name = self.cluster.leader[1]
        request = self.cluster.newest.requests.by_keyspace.get(KEYSPACE)
        if request is None or self._is_cancelled or not self.cluster.processes[name].alive:
            return
        self._is_cancelled = True
        node, request_id = self.cluster.nodes[name], request.id

        async def submit(_: Runtime) -> None:
            try:
                await node.log.submit(CancelRequest(request_id, "operator"))
            except LockstepError as error:
                self.cluster.tell("operator", f"cannot cancel: {error}")

        self.cluster.processes[name].submit(submit, "cancel")

    async def _look(self, runtime: Runtime) -> None:
        newest, strike = self.cluster.newest, self.strike
        waited_s = (self.cluster.world.now_ns - strike.at_ns) / 1e9
        request = self._hopeless(newest, strike.gone)
        if strike.turned and strike.way is not None:
            await self._take_back(runtime, strike)
        elif request is not None and waited_s > _PATIENCE_S:
            await self.submit(runtime, EntryKind.CANCEL_REQUEST, CancelRequest(request.id, "a node is gone"))
        elif strike.gone and self._may_shut_out(newest, strike.gone):
            await self.submit(runtime, EntryKind.EXCLUDE_NODES, ExcludeNodes((strike.gone,), "it is gone"))
        elif strike.gone and self._may_remove(newest, strike.gone):
            await self._ask(runtime, Remove(strike.gone))
        elif not strike.gone and self._is_to_ask_again(newest):
            await self._begin(runtime)

    async def _take_back(self, runtime: Runtime, strike: TabletStrike) -> None:
        """Who was shut out and stood still is there again."""
        name, node = self.cluster.name_of(strike.turned), strike.turned
        self.cluster.processes[name].resume()
        reached = self.cluster.nodes[name].log.state.epoch
        include = IncludeNodes((node,), (reached,))
        if (await self.submit(runtime, EntryKind.INCLUDE_NODES, include)).outcome == "ok":
            strike.turned = _NOBODY

    @staticmethod
    def _hopeless(newest: ClusterMetadata, gone: NodeId) -> Request | None:
        """What waits for a node that never comes back, and nobody but an operator ends."""
        if not gone:
            return None
        request = newest.requests.by_node.get(gone)
        if request is not None and isinstance(request.body, Decommission):
            return request
        return newest.requests.by_keyspace.get(KEYSPACE)

    def _is_to_ask_again(self, newest: ClusterMetadata) -> bool:
        if self._cell.kind in RECOUNTS:
            return KEYSPACE not in newest.requests.by_keyspace
        wants = self._cell.kind in (Change.DRAIN, Change.REBUILD)
        return wants and self._subject not in newest.requests.by_node and not self._is_done(newest)

    @staticmethod
    def _may_shut_out(newest: ClusterMetadata, node: NodeId) -> bool:
        """A voter gives its vote to another one first, when it is to be removed."""
        info = newest.directory.by_id[node]
        is_out = info.state is NodeState.LEFT or node in newest.excluded_by_node
        return not is_out and node not in newest.service.members

    def _may_remove(self, newest: ClusterMetadata, node: NodeId) -> bool:
        """Whether a node that is gone can be removed now: the tablet came to its end, and nothing else holds
        the node."""
        if self._has_left(newest, node):
            self.strike.gone = _NOBODY
            return False
        # A node that is down and is to be removed holds its cleanup until it has left.
        is_ended = self.strike.way is not None or self._cell.kind not in (Change.MIGRATION, Change.DRAIN)
        return is_ended and node not in newest.requests.by_node

    @staticmethod
    def _has_left(cluster: ClusterMetadata, node: NodeId) -> bool:
        info = cluster.directory.by_id.get(node)
        return info is not None and info.state is NodeState.LEFT

    # ---- the end

    def _over(self) -> bool:
        newest, strike = self.cluster.newest, self.strike
        if (
            strike.gone
            or strike.turned
            or newest.operations
            or newest.requests.live
            or newest.transitions.count
        ):
            return False
        return strike.struck and self._is_done(newest)

    def _is_done(self, newest: ClusterMetadata) -> bool:
        if self._cell.kind is Change.MIGRATION:
            return self.strike.way is not None
        if self._cell.kind in (Change.DRAIN, Change.REBUILD):
            return self._has_left(newest, self._subject)
        if self._cell.kind in RECOUNTS:
            copies = 4 if self._cell.kind is Change.UP else 3
            return all(count == copies for _, count in newest.schema.by_name[KEYSPACE].replication.factors)
        group = self._group(newest)
        count = newest.placements.ring(group.id).count
        return count == _HINTS[self._cell.kind][1] and group.head.resizing.phase is ResizePhase.NONE
