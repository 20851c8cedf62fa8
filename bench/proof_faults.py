"""What strikes the cluster of the proof, one thing after another.

Invariant: after each strike every node runs again and all know it, so that the next one meets a cluster that
works. A node that ends by itself ends the run; no node's log is lost.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from lockstep.testing import Cluster, Node
from lockstep.values.errors import LockstepError, PeerTimeout

#: Seconds that a node is away: below and above the time after which the others take it for dead.
AWAY_S = (0.5, 6.0)
#: Seconds of quiet between two strikes.
QUIET_S = (2.0, 6.0)
OPERATION_S = 600.0
SETTLE_S = 120.0
#: Strikes of one round; after each round, by turns, a node joins or one leaves.
ROUND = ("kill", "pause", "isolate", "split", "kill two", "restart", "kill all", "pause two")


class Faults:
    """`keep_log` takes the log of a node that is about to go. With `kinds` none comes and goes: those strike
    in turn."""

    def __init__(
        self,
        cluster: Cluster,
        seed: int,
        keep_log: Callable[[Node], None],
        kinds: tuple[str, ...] = (),
        away_s: tuple[float, float] = AWAY_S,
        quiet_s: tuple[float, float] = QUIET_S,
    ) -> None:
        self._cluster = cluster
        self._keep_log = keep_log
        self._kinds, self._away_s, self._quiet_s = kinds, away_s, quiet_s
        self._draw = random.Random(seed)
        self._left: list[str] = []
        self.struck: dict[str, int] = {}

    def strike(self) -> str:
        """One of them, and the way back; what it was."""
        if not self._left:
            chosen = self._kinds or ROUND
            self._left = self._draw.sample(chosen, len(chosen))
            if not self._kinds:
                self._left.append("move")
        name = self._left.pop(0)
        if name == "move":
            name = "grow" if len(self._cluster.nodes) == 3 else "shrink"
        began_s = time.monotonic()
        getattr(self, f"_{name.replace(' ', '_')}")()
        dead = [node.name for node in self._cluster.nodes if not node.running]
        if dead:
            raise LockstepError(f"{', '.join(dead)} ended without being struck, in {name!r} or before")
        self._settle()
        self.struck[name] = self.struck.get(name, 0) + 1
        seconds = time.monotonic() - began_s
        time.sleep(self._draw.uniform(*self._quiet_s))
        return f"{name}: {seconds:.1f} s"

    def _chosen(self, count: int = 1) -> list[Node]:
        return self._draw.sample(self._cluster.nodes, count)

    def _away(self) -> None:
        time.sleep(self._draw.uniform(*self._away_s))

    def _settle(self) -> None:
        local = self._cluster.local
        deadline_s = time.monotonic() + SETTLE_S
        while True:
            try:
                self._cluster.mend()
                self._cluster.settle()
                nodes = self._cluster.nodes
                if not any(local.admin(node.name).get("/v1/status")["operations"] for node in nodes):
                    return
            except PeerTimeout:
                if time.monotonic() > deadline_s:
                    raise
            if time.monotonic() > deadline_s:
                raise PeerTimeout(f"operations still run after {SETTLE_S:g} s")
            time.sleep(0.2)

    # ---- strikes

    def _kill(self, count: int = 1) -> None:
        nodes = self._chosen(count)
        self._cluster.local.kill(*(node.name for node in nodes))
        self._away()
        self._cluster.local.start([node.name for node in nodes])

    def _kill_two(self) -> None:
        self._kill(2)

    def _kill_all(self) -> None:
        self._kill(len(self._cluster.nodes))

    def _pause(self, count: int = 1) -> None:
        nodes = self._chosen(count)
        for node in nodes:
            node.pause()
        self._away()
        for node in nodes:
            node.resume()

    def _pause_two(self) -> None:
        self._pause(2)

    def _isolate(self) -> None:
        """Clients still reach it, and it nobody."""
        self._chosen()[0].isolate()
        self._away()
        self._cluster.heal()

    def _split(self) -> None:
        """Two nodes that do not hear each other, and the others hear both."""
        one, other = self._chosen(2)
        self._cluster.partition([one], [other])
        self._away()
        self._cluster.heal()

    def _restart(self) -> None:
        self._chosen()[0].restart()

    def _grow(self) -> None:
        """A node joins while another one is killed."""
        local = self._cluster.local
        victim = self._chosen()[0]
        done: list[str] = []

        def strike() -> None:
            time.sleep(self._draw.uniform(1.0, 3.0))
            victim.kill()
            self._away()
            victim.start()
            done.append(victim.name)

        thread = threading.Thread(target=strike)
        thread.start()
        try:
            local.add(timeout_s=OPERATION_S)
        finally:
            thread.join()
        if not done:
            raise LockstepError(f"{victim.name} did not come back")

    def _shrink(self) -> None:
        """A node gives its data to the others, and leaves."""
        node = self._chosen()[0]
        self._cluster.operate("decommission", node, OPERATION_S)
        self._cluster.local.stop([node.name])
        self._keep_log(node)
        self._cluster.local.forget(node.name)
