"""Where and when a cell's fault strikes, and what it does.

Invariant: it strikes once, at the cell's point of the cell's stage, or not at all: a cell that never struck
shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.metadata.operations import Operation, Stage
from lockstep.sim.cluster import SimCluster
from lockstep.sim.faults.kinds import LAG_PROBE
from lockstep.sim.faults.nemesis import Nemesis
from lockstep.sim.matrix.cells import KINDS, Cell, Fault, Point, Victim
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.topology.stages import Work
from lockstep.topology.streams import stream_plan
from lockstep.values.ids import NodeId

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

    def __init__(
        self, cell: Cell, cluster: SimCluster, nemesis: Nemesis, take_back: Callable[[], None]
    ) -> None:
        self.cell = cell
        self.struck = False
        self.at_ns = 0
        self.victim = ""
        self.lost = NodeId(0)
        self._subject = KINDS[cell.kind]
        self._cluster = cluster
        self._nemesis = nemesis
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
            for transition in operation.transitions:
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
            self._nemesis.cut([process.host], hosts, symmetric=True, seconds=self._draw.choice(_CUT_S))
            return
        process.crash(KILL if self._draw.random() < 0.5 else POWER)
        if self.cell.fault is Fault.CRASH:
            process.start_after(self._draw.choice(_DOWN_S))
            return
        self.lost = NodeId(cluster.node_id(victim))
        cluster.retired[self.lost] = None
        # Outside the callback in which it was hit, which may be its own.
        cluster.world.after(0.0, cluster.park, victim, self.lost, label=f"lost {victim}")
