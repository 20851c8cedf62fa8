"""What faults do to a cluster, and how it is undone.

Invariant: each change undoes itself after its time, unless it was undone before; after `undo` nothing of it
is left, and nothing is changed any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.node.processors.kinds import Gate, Held
from lockstep.node.work.reconciling import Reconciler
from lockstep.runtime.ports import Runtime
from lockstep.sim.cluster import SimCluster
from lockstep.sim.runtime.network import Fabric
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.streams import Stream
from lockstep.storage.model import ModelStore

#: How what a gate held passes.
Order = Callable[[Sequence[Held]], Sequence[Held]]


class Means:
    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.network: Fabric = cluster.world.network
        #: Faults strike, and what they put off still happens.
        self.active = False
        #: Stores with blocks that cannot be read.
        self._damaged: list[ModelStore] = []
        self._paused: list[Reconciler] = []

    def undo(self) -> None:
        """Undo everything: links, disks, clocks, speeds, rules, pauses."""
        self.active = False
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
        for reconciler in self._paused:
            reconciler.is_paused = False
        self._paused.clear()

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

    def pause_reconciler(self, name: str, seconds: float) -> None:
        """The node asks nobody what it lacks, for a while; it answers others."""
        node = self.cluster.nodes.get(name)
        if node is None or not node.ready:
            return
        reconciler = node.data.reconciler
        reconciler.is_paused = True
        self._paused.append(reconciler)
        self.cluster.world.count("fault.pause_reconciler")
        self.tell(f"pauses the reconciler of {name} for {seconds:.1f} s")

        def resume() -> None:
            reconciler.is_paused = False

        self.later(seconds, resume)

    def tell(self, text: str) -> None:
        self.cluster.tell("nemesis", text)

    def later(self, seconds: float, action: Callable[[], None]) -> None:
        """`action` unless the nemesis has stopped by then."""
        self.cluster.world.after(seconds, self._act, action, label="nemesis later")

    def _act(self, action: Callable[[], None]) -> None:
        if self.active:
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
        self.count_loss(name)
        process.crash(kind)
        if not self.cluster.live():
            self.cluster.world.count("fault.all_down")
        process.start_after(down_s)

    def crash_after(self, name: str, callbacks: int, kind: str, down_s: float) -> None:
        process = self.cluster.processes[name]
        if process.alive:
            self.tell(f"{kind} {name} after {callbacks} callbacks")
            process.crash_after(callbacks, kind, down_s)

    def count_loss(self, name: str) -> None:
        if name == self.cluster.leader[1] and self.cluster.newest.operations:
            self.cluster.fact("coordinator crashed during an operation")

    def add_rule(self, rule: CrashRule | DelayRule, seconds: float) -> None:
        """A rule on a probe that ends after a while."""
        self.tell(f"sets {rule.label} {type(rule).__name__}")
        self.cluster.world.probes.add(rule)
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
