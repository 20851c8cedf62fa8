"""The nemesis: draws which kinds of faults a seed suffers, and strikes with them.

Invariant: which kinds are on, and how often they strike, is drawn once per seed (swarm); `stop` undoes
all of it, so that afterwards whatever does not recover is the product's fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transitions import Transition
from lockstep.node.processors.kinds import Gate, Held
from lockstep.runtime.ports import Runtime
from lockstep.sim.cluster import SimCluster
from lockstep.sim.faults import leavers
from lockstep.sim.faults.kinds import LAG_PROBE, LEAVER_FAULTS, STAGE_FAULTS, TIMED, Fault, step_clock
from lockstep.sim.runtime.network import Fabric
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.sim.runtime.streams import Stream
from lockstep.sim.watch import Watch
from lockstep.storage.model import ModelStore
from lockstep.topology.kind import kind_of

#: Half of the kinds a scenario allows are on in a seed: too many at once hide each other.
KIND_ON = 0.4
#: In this share of the seeds clocks step, of nodes that run and of those that are down.
CLOCKS_STEP = 0.4
#: Mean time between two steps in such a seed.
CLOCK_PAUSE_S = 3.0
#: How what a gate held passes.
Order = Callable[[Sequence[Held]], Sequence[Held]]
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
    def __init__(self, cluster: SimCluster, watch: Watch, swarm: Swarm) -> None:
        self.cluster = cluster
        self.swarm = swarm
        self.network: Fabric = cluster.world.network
        self._faults: list[Fault] = [TIMED[kind] for kind in swarm.kinds if kind in TIMED]
        #: Stores with blocks that cannot be read.
        self._damaged: list[ModelStore] = []
        self._draw = cluster.world.stream("nemesis")
        self._stages = cluster.world.stream("nemesis/stages")
        self._clocks = cluster.world.stream("nemesis/clocks")
        #: Clocks step in every scenario that has faults, beside the kinds that the seed suffers.
        self.clocks_step = bool(swarm.kinds) and self._clocks.random() < CLOCKS_STEP
        self._active = False
        self._rules: list[CrashRule | DelayRule] = []
        if any(kind in (*STAGE_FAULTS, *LEAVER_FAULTS) for kind in swarm.kinds):
            watch.listeners.append(self._stage_entered)

    def start(self) -> None:
        self._active = True
        if self._faults:
            self._plan()
        if self.clocks_step:
            self._plan_clock()

    def stop(self) -> None:
        """Undo everything: links, disks, clocks, speeds, rules, pauses."""
        self._active = False
        self.cluster.heirless_until_ns = self.cluster.late_until_ns = 0
        self.cluster.world.probes.clear()
        self.network.heal()
        self._default_links()
        for process in self.cluster.processes.values():
            process.disk.settings = self.cluster.disk_settings()
            process.slow_down(0)
            process.resume()
            if process.clock.rate != 1.0:
                process.drift_clock(1.0)
            process.set_wall_right()
            process.clock.wall_tick_us = 1
            if process.loop is not None:
                process.loop.crash_in = 0
        for name, node in self.cluster.nodes.items():
            self._release(name, node.log.member.gate, None)
        for store in self._damaged:
            store.blocks.clear()
        self._damaged.clear()

    def _plan(self) -> None:
        delay_s = self._draw.expovariate(1 / self.swarm.pause_s)
        self.cluster.world.after(delay_s, self._strike, label="nemesis")

    def _strike(self) -> None:
        if not self._active:
            return
        fault = self._draw.choices(self._faults, [fault.weight for fault in self._faults])[0]
        self.cluster.world.note("nemesis", fault.name)
        fault.strike(self, self._draw)
        self._plan()

    def _plan_clock(self) -> None:
        delay_s = self._clocks.expovariate(1 / CLOCK_PAUSE_S)
        self.cluster.world.after(delay_s, self._step_clock, label="nemesis clock")

    def _step_clock(self) -> None:
        if self._active:
            step_clock(self, self._clocks)
            self._plan_clock()

    # ---- what faults use

    def damage_block(self, name: str, share: float, pairs: int, seconds: float) -> bool:
        """See ModelStore.damage_block; readable again after a while, as when an operator has recovered it."""
        node = self.cluster.nodes.get(name)
        if node is None or not node.ready:
            return False
        store = node.data.store
        assert isinstance(store, ModelStore), "simulated nodes have a store of their own kind"
        if not store.damage_block(share, pairs):
            return False
        self._damaged.append(store)
        self.later(seconds, store.blocks.clear)
        self.tell(f"damages {pairs} pairs of {name}")
        return True

    def tell(self, text: str) -> None:
        self.cluster.tell("nemesis", text)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """`action` unless the nemesis has stopped by then."""
        self.cluster.world.after(seconds, self._act, action, label="nemesis later")

    def _act(self, action: Callable[[], None]) -> None:
        if self._active:
            action()

    def some_live(self, draw: Stream) -> str:
        """A running node; "" when there is none."""
        live = self.cluster.live()
        return draw.choice(live) if live else ""

    def crash(self, name: str, kind: str, down_s: float) -> None:
        process = self.cluster.processes.get(name)
        if process is None or not process.alive:
            return
        self.tell(f"{kind} {name}")
        self._count_loss(name)
        process.crash(kind)
        if not self.cluster.live():
            self.cluster.world.count("fault.all_down")
        process.start_after(down_s)

    def crash_after(self, name: str, callbacks: int, kind: str, down_s: float) -> None:
        process = self.cluster.processes[name]
        if process.alive:
            self.tell(f"{kind} {name} after {callbacks} callbacks")
            process.crash_after(callbacks, kind, down_s)

    def _count_loss(self, name: str) -> None:
        if name == self.cluster.leader[1] and self.cluster.newest.operations:
            self.cluster.fact("coordinator crashed during an operation")

    def add_rule(self, rule: CrashRule | DelayRule, seconds: float) -> None:
        """A rule on a probe that ends after a while."""
        self.tell(f"sets {rule.label} {type(rule).__name__}")
        self.cluster.world.probes.add(rule)
        self._rules.append(rule)
        self.later(seconds, lambda: self._expire(rule))

    @staticmethod
    def _expire(rule: CrashRule | DelayRule) -> None:
        rule.times = rule.fired

    def release_later(self, name: str, gate: Gate, seconds: float, order: Order | None = None) -> None:
        """Open a node's gate again; what it held passes in this order."""
        self.later(seconds, lambda: self._release(name, gate, order))

    def _release(self, name: str, gate: Gate, order: Order | None) -> None:
        process, node = self.cluster.processes[name], self.cluster.nodes.get(name)
        if not process.alive or node is None or node.log.member.gate is not gate:
            return

        async def release(_: Runtime) -> None:
            self.cluster.world.count("gate.dropped", gate.dropped_commits)
            self.cluster.world.count("gate.lost_replies", gate.lost_replies)
            gate.dropped_commits = gate.lost_replies = 0
            gate.release(order)

        process.submit(release, "gate release")

    def set_disk(self, name: str, seconds: float, **changes: float) -> None:
        disk = self.cluster.processes[name].disk
        self.tell(f"sets disk of {name}: {changes}")
        disk.settings = msgspec.structs.replace(disk.settings, **changes)

        def restore() -> None:
            disk.settings = self.cluster.disk_settings()

        self.later(seconds, restore)

    def set_links(self, seconds: float, **changes: Any) -> None:
        """Change all links between nodes."""
        self.tell(f"sets links: {changes}")
        self._each_link(**changes)
        self.cluster.world.count("fault.latency", "shape" in changes)
        self.later(seconds, self._default_links)

    def _each_link(self, **changes: Any) -> None:
        hosts = self.cluster.hosts()
        for source in hosts:
            for target in hosts:
                if source != target:
                    self.network.configure(source, target, **changes)

    def _default_links(self) -> None:
        defaults = msgspec.structs.asdict(self.cluster.world.settings.links)
        hosts = [process.host for process in self.cluster.processes.values()]
        for source in hosts:
            for target in hosts:
                if source != target:
                    self.network.configure(source, target, **defaults)

    def cut(self, left: list[str], right: list[str], *, symmetric: bool, seconds: float) -> None:
        """A partition between nodes that heals after a while; clients reach every node."""
        self.tell(f"cuts {left} {'<->' if symmetric else '->'} {right} for {seconds:.1f} s")
        self.network.partition(left, right, symmetric=symmetric)

        def mend() -> None:
            for source in left:
                for target in right:
                    self.network.unblock(source, target)
                    self.network.unblock(target, source)

        self.later(seconds, mend)

    # ---- faults at stages

    def _stage_entered(self, operation: Operation, stage: Stage | None) -> None:
        if not self._active or stage is None:
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
            leavers.strike(self, operation, stage, draw)
        if "late_mending" in self.swarm.kinds and draw.random() < 0.5:
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
            self.cut(hosts[:1], hosts[1:], symmetric=True, seconds=seconds)

    def _hold_behind(self, name: str, seconds: float) -> None:
        """A node that goes on serving while it learns each further epoch late. Who has no part in an
        operation may miss all of it; while the leader is late, the stage goes on in which coordinators
        of the first and the present stage ask different replicas."""
        if name:
            self.cluster.world.count(STAGE_FAULTS["hold_behind"])
            rule = DelayRule(label=LAG_PROBE, process=name, low_s=seconds / 4, high_s=seconds)
            self.add_rule(rule, seconds)

    def _bystander(self, operation: Operation) -> str:
        """A running node that the operation does not touch, nor leads; "" when there is none."""
        touched = {node for transition in self._moving(operation) for node in transition.union}
        names = [self.cluster.leader[1], *(self.cluster.name_of(node) for node in sorted(touched))]
        others = [name for name in self.cluster.live() if name not in names]
        return self._stages.choice(others) if others else ""

    def _crash_soon(self, kind: str, victim: str) -> None:
        if victim and self.cluster.processes[victim].alive:
            self._count_loss(victim)
            self.cluster.world.count(STAGE_FAULTS[kind])
            how = KILL if self._stages.random() < 0.5 else POWER
            down_s = self._stages.choice((0.1, 1.0, 3.0))
            self.crash_after(victim, 1 + self._stages.randrange(120), how, down_s)

    def _moving(self, operation: Operation) -> tuple[Transition, ...]:
        return self.cluster.newest.transitions.of(operation.id)

    def _giver(self, operation: Operation) -> str:
        for transition in self._moving(operation):
            if transition.old:
                return self.cluster.name_of(self._stages.choice(transition.lost or transition.old))
        return ""
