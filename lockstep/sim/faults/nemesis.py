"""The nemesis: draws which kinds of faults a seed suffers, and strikes with them.

Invariant: which kinds are on, and how often they strike, is drawn once per seed (swarm); `stop` undoes
all of it, so that afterwards whatever does not recover is the product's fault.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transitions import Transition
from lockstep.sim.cluster import SimCluster
from lockstep.sim.faults import leavers
from lockstep.sim.faults.kinds import LAG_PROBE, LEAVER_FAULTS, STAGE_FAULTS, TIMED, Fault, step_clock
from lockstep.sim.faults.means import Means
from lockstep.sim.runtime.probes import DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.sim.runtime.streams import Stream
from lockstep.sim.watch import Watch
from lockstep.topology.kind import kind_of

#: Half of the kinds a scenario allows are on in a seed: too many at once hide each other.
KIND_ON = 0.4
#: In this share of the seeds clocks step, of nodes that run and of those that are down.
CLOCKS_STEP = 0.4
#: Mean time between two steps in such a seed.
CLOCK_PAUSE_S = 3.0
_PAUSES_S = (0.15, 0.5, 1.5)


class Swarm(msgspec.Struct, frozen=True):
    """`pause_s` is the mean time between two strikes; `stage_chance` of a stage fault at each stage."""

    kinds: tuple[str, ...] = ()
    pause_s: float = 1.0
    stage_chance: float = 0.3


def draw_swarm(draw: Stream, allowed: Sequence[str], always: Sequence[str] = ()) -> Swarm:
    kinds = (*always, *(kind for kind in allowed if draw.random() < KIND_ON))
    return Swarm(kinds, draw.choice(_PAUSES_S), draw.choice((0.1, 0.5)))


class Nemesis:
    def __init__(self, cluster: SimCluster, watch: Watch, swarm: Swarm, steps_clocks: bool = True) -> None:
        self.cluster = cluster
        self.swarm = swarm
        self.means = Means(cluster)
        self._faults: list[Fault] = [TIMED[kind] for kind in swarm.kinds if kind in TIMED]
        self._draw = cluster.world.stream("nemesis")
        self._stages = cluster.world.stream("nemesis/stages")
        self._clocks = cluster.world.stream("nemesis/clocks")
        #: Clocks step where there are faults and it is allowed, beside the kinds that the seed suffers.
        self.clocks_step = bool(swarm.kinds) and self._clocks.random() < CLOCKS_STEP and steps_clocks
        if any(kind in (*STAGE_FAULTS, *LEAVER_FAULTS) for kind in swarm.kinds):
            watch.listeners.append(self._stage_entered)

    def start(self) -> None:
        self.means.active = True
        if self._faults:
            self._plan()
        if self.clocks_step:
            self._plan_clock()

    def stop(self) -> None:
        self.means.undo()

    def _plan(self) -> None:
        delay_s = self._draw.expovariate(1 / self.swarm.pause_s)
        self.cluster.world.after(delay_s, self._strike, label="nemesis")

    def _strike(self) -> None:
        if not self.means.active:
            return
        fault = self._draw.choices(self._faults, [fault.weight for fault in self._faults])[0]
        self.cluster.world.note("nemesis", fault.name)
        fault.strike(self.means, self._draw)
        self._plan()

    def _plan_clock(self) -> None:
        delay_s = self._clocks.expovariate(1 / CLOCK_PAUSE_S)
        self.cluster.world.after(delay_s, self._step_clock, label="nemesis clock")

    def _step_clock(self) -> None:
        if self.means.active:
            step_clock(self.means, self._clocks)
            self._plan_clock()

    # ---- faults at stages

    def _stage_entered(self, operation: Operation, stage: Stage | None) -> None:
        if not self.means.active or stage is None:
            return
        draw = self._stages
        first = stage is kind_of(operation).stages[0].stage
        victims = {
            "crash_coordinator": self.cluster.leader[1],
            "crash_newcomer": self.cluster.name_of(operation.node),
            "crash_source": self._giver(operation),
        }
        for kind, victim in victims.items():
            if kind in self.swarm.kinds and draw.random() < self.swarm.stage_chance:
                self._crash_soon(kind, victim)
        if "hold_behind" in self.swarm.kinds:
            if first:
                self._hold_behind(self._bystander(operation), 4.0)
            elif stage is Stage.WRITE_BOTH_READ_NEW:
                self._hold_behind(self.cluster.leader[1], 2.0)
        if "no_heir" in self.swarm.kinds and draw.random() < 0.5:
            leavers.strike(self.means, operation, stage, draw)
        # Who loses a range is written last in the stage before it: what was planned then may come later.
        if "late_mending" in self.swarm.kinds and (draw.random() < 0.5 or stage is Stage.WRITE_BOTH_READ_NEW):
            self.cluster.late_until_ns = self.cluster.world.now_ns + int(1e9 * draw.random())
        if "cut_newcomer" in self.swarm.kinds and first:
            self._cut_newcomer(operation)

    def _cut_newcomer(self, operation: Operation) -> None:
        """The node that gains ranges does not hear who gives one up, long enough to take it for dead; the
        coordinator hears both."""
        gaining = [node for transition in self._moving(operation) for node in transition.gained]
        names = (self.cluster.name_of(gaining[0]) if gaining else "", self._giver(operation))
        hosts = [self.cluster.processes[name].host for name in names if name]
        if len(set(hosts)) == 2:
            self.cluster.world.count(STAGE_FAULTS["cut_newcomer"])
            seconds = 3.0 + 3.0 * self._stages.random()
            self.means.cut(hosts[:1], hosts[1:], symmetric=True, seconds=seconds)

    def _hold_behind(self, name: str, seconds: float) -> None:
        """A node that goes on serving while it learns each further epoch late. Who has no part in an
        operation may miss all of it; while the leader is late, the stage goes on in which coordinators
        of the first and the present stage ask different replicas."""
        if name:
            self.cluster.world.count(STAGE_FAULTS["hold_behind"])
            rule = DelayRule(label=LAG_PROBE, process=name, low_s=seconds / 4, high_s=seconds)
            self.means.add_rule(rule, seconds)

    def _bystander(self, operation: Operation) -> str:
        """A running node that the operation does not touch, nor leads; "" when there is none."""
        touched = {node for transition in self._moving(operation) for node in transition.union}
        names = [self.cluster.leader[1], *(self.cluster.name_of(node) for node in sorted(touched))]
        others = [name for name in self.cluster.live() if name not in names]
        return self._stages.choice(others) if others else ""

    def _crash_soon(self, kind: str, victim: str) -> None:
        if victim and self.cluster.processes[victim].alive:
            self.means.count_loss(victim)
            self.cluster.world.count(STAGE_FAULTS[kind])
            how = KILL if self._stages.random() < 0.5 else POWER
            down_s = self._stages.choice((0.1, 1.0, 3.0))
            self.means.crash_after(victim, 1 + self._stages.randrange(120), how, down_s)

    def _moving(self, operation: Operation) -> tuple[Transition, ...]:
        return self.cluster.newest.transitions.of(operation.id)

    def _giver(self, operation: Operation) -> str:
        for transition in self._moving(operation):
            if transition.old:
                return self.cluster.name_of(self._stages.choice(transition.lost or transition.old))
        return ""
