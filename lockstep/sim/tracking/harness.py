"""One run: tracked replicas of one range under loss, reordering, cuts, pauses, crashes, jumping clocks and
long absences, with clients that write, delete and read at QUORUM.

Each replica's decisions are the product's own machines; its disk survives crashes. A crash may fall before a
step's write, or between the write and any of its messages.
"""

from __future__ import annotations

import heapq
import traceback
from collections.abc import Callable
from typing import Any, Final

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.runtime.streams import WALL_START_US, stream
from lockstep.sim.tracking import messages as msg
from lockstep.sim.tracking.checks import TrackingChecks
from lockstep.sim.tracking.replica import Replica, Sent
from lockstep.sim.tracking.store import Store
from lockstep.tracking.limits import CLOCK_UNCERTAINTY_US
from lockstep.tracking.reading import Stage
from lockstep.tracking.witnesses import Factor, judge

#: Faults strike for so long; then all heals, and within the next time all must be reconciled.
CHAOS_MS: Final = 40_000
REST_MS: Final = 60_000
_TICK_MS: Final = 250
_BOUND_MS: Final = 2_000
_COLLAPSE_MS: Final = 1_000
_OP_MS: Final = 4_000
_PARTITIONS: Final = ("p1", "p2", "p3")
#: Messages that are paused together: what replicas tell, what they fetch, what clients write.
_PAUSES: Final[dict[str, tuple[type, ...]]] = {
    "telling paused": (msg.Tell, msg.Heard),
    "fetching paused": (msg.Pull, msg.Pulled),
    "writes paused": (msg.Write, msg.Written),
}


class Setting(msgspec.Struct, frozen=True):
    seed: int
    chaos_ms: int = CHAOS_MS


class RunResult(msgspec.Struct, frozen=True):
    setting: Setting
    invariant: str
    violation: str
    steps: int
    facts: dict[str, int]
    story: tuple[str, ...]


class _Node:
    __slots__ = ("ahead_us", "number", "replica", "store")

    def __init__(self, number: int, store: Store, ahead_us: int) -> None:
        self.number = number
        self.store = store
        self.ahead_us = ahead_us
        self.replica: Replica | None = None


class TrackingRun:
    """One seed."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._random = draw = stream(setting.seed, "tracking")
        count = draw.choice((3, 3, 4, 5))
        self.participants = tuple(range(1, count + 1))
        witnesses = draw.choice((0, 0, 1))
        factor = Factor(count, witnesses)
        judge({"dc1": factor})
        self.full = frozenset(self.participants[: factor.full])
        stores = {one: Store(full=one in self.full) for one in self.participants}
        self.nodes = {one: _Node(one, store, self._skew()) for one, store in stores.items()}
        self.checks = TrackingChecks(stores)
        self.facts: dict[str, int] = {}
        self.story: list[str] = []
        self.now_ms = 0
        self.steps = 0
        self._op = 0
        self._number = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._side: dict[int, int] = {}
        self._paused: tuple[type, ...] = ()
        self._loss = draw.choice((0.0, 0.02, 0.2))
        self._repeated = draw.choice((0.0, 0.1))
        self._delay_ms = draw.choice((10, 50, 400))
        self._healed = False

    # -- the run -------------------------------------------------------------------------------------

    def result(self) -> RunResult:
        invariant = violation = ""
        try:
            self._play()
        except Violation as seen:
            invariant, violation = seen.invariant, str(seen)
        except AssertionError as seen:
            invariant, violation = "ASSERTION", "".join(traceback.format_exception(seen))
        facts = dict(sorted(self.facts.items()))
        return RunResult(self.setting, invariant, violation, self.steps, facts, tuple(self.story))

    def _play(self) -> None:
        for node in self.nodes.values():
            self._start(node)
        self._at(self._random.randrange(100), self._client)
        self._at(self._random.randrange(3000), self._strike)
        self._until(self.setting.chaos_ms)
        self.fact("symbols of audits", self.checks.audit())
        self._heal()
        self._until(self.setting.chaos_ms + REST_MS)
        self.checks.rested({one: node.replica.log for one, node in self.nodes.items() if node.replica})

    def _until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, act, facts = heapq.heappop(self._queue)
            act(*facts)
        self.now_ms = end_ms

    def _at(self, after_ms: int, act: Callable[..., None], *facts: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + after_ms, self._number, act, facts))

    def fact(self, name: str, count: int = 1) -> None:
        self.facts[name] = self.facts.get(name, 0) + count

    def tell(self, who: object, what: str) -> None:
        self.story.append(f"{self.now_ms / 1000:8.3f} {who!s:5} {what}")

    def _skew(self) -> int:
        return self._random.randrange(CLOCK_UNCERTAINTY_US // 2)

    def now_us(self, node: _Node) -> int:
        return WALL_START_US + self.now_ms * 1000 + node.ahead_us

    # -- replicas ------------------------------------------------------------------------------------

    def _start(self, node: _Node) -> None:
        if node.replica is not None:
            return
        replica = Replica(node.number, self.participants, self.full, node.store, self.now_ms)
        node.replica = replica
        self.tell(node.number, f"starts its log {replica.log.start}")
        self._done(node, replica, [])
        for every_ms, act in (
            (_TICK_MS, self._tick),
            (_BOUND_MS, self._bound),
            (_COLLAPSE_MS, self._collapse),
        ):
            self._at(self._random.randrange(every_ms), act, node, replica)

    def _tick(self, node: _Node, replica: Replica) -> None:
        if node.replica is replica:
            self._done(node, replica, replica.tick(self.now_ms))
            self._at(_TICK_MS, self._tick, node, replica)

    def _bound(self, node: _Node, replica: Replica) -> None:
        if node.replica is replica:
            self._done(node, replica, replica.propose_bound(self.now_us(node)))
            self._at(_BOUND_MS, self._bound, node, replica)
            purged = node.store.purge(replica.log.bound_us)
            if purged:
                self.fact("purged", purged)

    def _collapse(self, node: _Node, replica: Replica) -> None:
        if node.replica is replica:
            replica.collapse(self.now_ms)
            self._done(node, replica, [])
            self._at(_COLLAPSE_MS, self._collapse, node, replica)

    def _crash(self, node: _Node, down_ms: int) -> None:
        self.tell(node.number, f"crashes for {down_ms} ms")
        node.store.drop()
        node.replica = None
        self.fact("crashed for long" if down_ms > 8000 else "crashed")
        self._at(down_ms, self._start, node)

    def _done(self, node: _Node, replica: Replica, sent: Sent) -> None:
        """Write, then send; a crash may come before, between or not at all."""
        self.steps += 1
        cut = None
        if not self._healed and self._random.random() < 0.001:
            cut = self._random.randrange(len(sent) + 2) - 1
        if cut == -1:
            self.fact("crashed before the write")
            self._crash(node, self._random.randrange(50, 3000))
            return
        bound = replica.bound
        sent = [*sent, *replica.raise_if_due()]
        replica.write()
        self.checks.wrote(node.number, replica.log)
        for mutation in replica.given:
            self.checks.gave(node.number, mutation)
        replica.given.clear()
        if bound is not None and replica.bound is None:
            self.tell(node.number, f"raises the bound to {bound.until_us}")
            self.checks.raised(bound.until_us)
        for name, count in replica.facts.items():
            self.fact(name, count)
        replica.facts.clear()
        for peer, message in sent if cut is None else sent[:cut]:
            self._send(node.number, peer, message)
        if cut is not None:
            self.fact("crashed between write and message")
            self._crash(node, self._random.randrange(50, 3000))
            return
        self._ended(replica)

    def _ended(self, replica: Replica) -> None:
        majority = len(self.participants) // 2 + 1
        for op, write in list(replica.writes.items()):
            if len(write.holders) >= majority:
                del replica.writes[op]
                self.fact("acknowledged")
                self.checks.acknowledged(write.mutation)
        for op, read in list(replica.reads.items()):
            if read.machine.stage is Stage.DONE:
                del replica.reads[op]
                self.fact("answered")
                by = f"read {op} at {replica.node} of {read.machine.level}"
                self.checks.held(read.machine.result_ids, by)
                self.checks.answered(read.partition, read.floor, read.machine.result, by)

    # -- clients -------------------------------------------------------------------------------------

    def _client(self) -> None:
        if self._healed:
            return
        self._at(1 + self._random.randrange(150), self._client)
        up = [node for node in self.nodes.values() if node.replica is not None]
        if not up:
            return
        node = self._random.choice(up)
        replica, self._op = node.replica, self._op + 1
        assert replica is not None
        partition = self._random.choice(_PARTITIONS)
        if self._random.random() < 0.45:
            order = list(self.participants)
            self._random.shuffle(order)
            floor = self.checks.floor(partition)
            sent = replica.begin_read(self._op, partition, floor, tuple(order), self.now_ms)
        else:
            deleted = self._random.random() < 0.25
            sent = replica.begin_write(self._op, partition, deleted, self.now_us(node))
        self._done(node, replica, sent)
        self._at(_OP_MS, self._time_out, replica, self._op)

    def _time_out(self, replica: Replica, op: int) -> None:
        for ops in (replica.writes, replica.reads):
            if ops.pop(op, None) is not None:
                self.fact("timed out")

    # -- the network ---------------------------------------------------------------------------------

    def _send(self, source: int, target: int, message: msg.Message) -> None:
        if source != target:
            if self._side.get(source, 0) != self._side.get(target, 0):
                self.fact("cut")
                return
            if isinstance(message, self._paused) or self._random.random() < self._loss:
                self.fact("lost")
                return
        times = 2 if source != target and self._random.random() < self._repeated else 1
        for _ in range(times):
            self._at(1 + self._random.randrange(self._delay_ms), self._arrive, source, target, message)

    def _arrive(self, source: int, target: int, message: msg.Message) -> None:
        node = self.nodes[target]
        if node.replica is not None:
            sent = node.replica.receive(source, message, self.now_ms, self.now_us(node))
            self._done(node, node.replica, sent)

    # -- faults --------------------------------------------------------------------------------------

    def _strike(self) -> None:
        if self._healed:
            return
        draw = self._random
        self._at(draw.randrange(500, 5000), self._strike)
        kind = draw.choice(("crash", "long", "cut", "pause", "jump", "jump", "calm"))
        node = self.nodes[draw.choice(self.participants)]
        if kind in ("crash", "long") and node.replica is not None:
            self._crash(node, draw.randrange(100, 4000) if kind == "crash" else draw.randrange(9000, 20_000))
        elif kind == "cut":
            self._side = {one: draw.randrange(2) for one in self.participants}
            self.tell("net", f"is cut: {self._side}")
            self.fact("partition")
        elif kind == "pause":
            name = draw.choice(sorted(_PAUSES))
            self._paused = _PAUSES[name]
            self.tell("net", name)
            self.fact(name)
        elif kind == "jump":
            node.ahead_us = draw.choice((self._skew(), self._skew(), -3_600_000_000, 20_000_000))
            self.tell(node.number, f"has a clock that is {node.ahead_us} us ahead")
            self.fact("a clock jumped")
        else:
            self._side, self._paused = {}, ()

    def _heal(self) -> None:
        self.tell("net", "heals")
        self._healed = True
        self._side, self._paused, self._loss = {}, (), 0.0
        for node in self.nodes.values():
            node.ahead_us = self._skew()
            self._start(node)
