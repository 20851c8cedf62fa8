"""Named places in the code: counted, and where a rule says so, the place of a crash or a delay.

Invariant: a rule draws from a stream of its own (per process and label), so adding one never moves
what happens elsewhere. A crash at a probe takes effect at once: nothing the process does after it,
in that same callback, has an effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from lockstep.sim.runtime.streams import NS, Stream

if TYPE_CHECKING:
    from lockstep.sim.runtime.loop import SimLoop, Stage

#: Reached by the simulated disk between the start and the end of every sync.
SYNC_IN_FLIGHT = "disk.sync.inflight"


class CrashRule(msgspec.Struct, kw_only=True):
    """Crash the process that reaches `label`: at its `hit`-th time (1 is the first), or with `probability`.

    `process` None means any. `times` bounds how often it fires. With `restart_after_s` the process
    starts again by itself. Kind "" crashes nothing: the rule only tells `on_fired`.
    """

    label: str
    process: str | None = None
    kind: str = "kill"
    hit: int = 0
    probability: float = 0.0
    times: int = 1
    restart_after_s: float | None = None
    #: Told the name of the process each time the rule has fired.
    on_fired: Callable[[str], None] | None = None
    fired: int = 0


class DelayRule(msgspec.Struct, kw_only=True):
    """Hold the process's task at `linger(label)` for a drawn time, with `probability`."""

    label: str
    process: str | None = None
    low_s: float = 0.0
    high_s: float = 1.0
    probability: float = 1.0
    times: int = 1_000_000_000
    fired: int = 0


class Probed(Protocol):
    """A process that reaches probes, and may end there."""

    name: str
    label: str

    def crash(self, kind: str) -> None: ...
    def start_after(self, delay_s: float) -> None: ...


class ProbeBoard:
    """World-wide: `counts` per label, `process_counts` per (process, label), the rules."""

    def __init__(self, world: Stage) -> None:
        self._world = world
        self.counts: dict[str, int] = {}
        self.process_counts: dict[tuple[str, str], int] = {}
        self._crashes: dict[str, list[CrashRule]] = {}
        self._delays: dict[str, list[DelayRule]] = {}
        self._streams: dict[tuple[str, str], Stream] = {}

    def add(self, rule: CrashRule | DelayRule) -> None:
        if isinstance(rule, CrashRule):
            self._crashes.setdefault(rule.label, []).append(rule)
        else:
            self._delays.setdefault(rule.label, []).append(rule)

    def clear(self) -> None:
        """Forget all rules; counts stay."""
        self._crashes.clear()
        self._delays.clear()

    def reached(self, process: Probed, label: str) -> None:
        """Count, and crash when a rule says so."""
        self.counts[label] = self.counts.get(label, 0) + 1
        key = (process.name, label)
        hits = self.process_counts[key] = self.process_counts.get(key, 0) + 1
        for rule in self._crashes.get(label, ()):
            if rule.fired >= rule.times or rule.process not in (None, process.name):
                continue
            if hits == rule.hit or (rule.probability and self._draw(key).random() < rule.probability):
                rule.fired += 1
                if rule.kind:
                    self._world.count("probe.crash")
                    self._world.note(process.name, "probe.crash", label)
                    process.crash(rule.kind)
                if rule.restart_after_s is not None:
                    process.start_after(rule.restart_after_s)
                if rule.on_fired is not None:
                    rule.on_fired(process.name)
                return

    def delay_ns(self, process: Probed, label: str) -> int:
        """How long to linger; 0 when no rule applies."""
        total = 0
        for rule in self._delays.get(label, ()):
            if rule.fired >= rule.times or rule.process not in (None, process.name):
                continue
            draw = self._draw((process.name, label))
            if draw.random() < rule.probability:
                rule.fired += 1
                self._world.count("probe.linger")
                total += int((rule.low_s + (rule.high_s - rule.low_s) * draw.random()) * NS)
        return total

    def _draw(self, key: tuple[str, str]) -> Stream:
        source = self._streams.get(key)
        if source is None:
            source = self._streams[key] = self._world.stream(f"probe/{key[0]}/{key[1]}")
        return source


class SimProbes:
    """Probes port of one incarnation."""

    def __init__(self, board: ProbeBoard, process: Probed, loop: SimLoop) -> None:
        self._board = board
        self._process = process
        self._loop = loop

    def reach(self, label: str) -> None:
        if not self._loop.dead:
            self._board.reached(self._process, label)

    async def linger(self, label: str) -> None:
        if self._loop.dead:
            return
        self._board.reached(self._process, label)
        delay_ns = self._board.delay_ns(self._process, label)
        if delay_ns:
            await asyncio.sleep(delay_ns / NS)

    def observe(self, kind: str, **facts: Any) -> None:
        if not self._loop.dead:
            self._loop.world.observe(self._process.label, kind, facts)
