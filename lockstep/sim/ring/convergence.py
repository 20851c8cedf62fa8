"""How many rounds of gossip an agreed change takes to reach all members, beside what formulas say.

Each member is the product's own `Spreader`; only rings, of which there are two, network and clock are made
up. A round is the pause between two rounds of a member that has nothing pending, so figures are seconds by
default.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

import msgspec

from lockstep.ring.changes import Change, Kind, Step, decide
from lockstep.ring.limits import RING_GOSSIP_MS, RING_GOSSIP_PENDING_MS
from lockstep.ring.messages import Deltas, Summary, Whole
from lockstep.ring.ring import Delta, Member, Mode, Ring, Status, applied, found
from lockstep.ring.spreading import Spreader
from lockstep.sim.runtime.streams import stream

_LATENCY_MS = 20
#: A trial ends so long after the decision at the latest.
_PATIENCE_MS = 200 * RING_GOSSIP_MS
#: Of how many members are all reached, in the formula of the seeds alone.
_CERTAINTY = 0.99


class Case(msgspec.Struct, frozen=True):
    """`pending`: members that promised the change compare rings more often, with a seed each time."""

    nodes: int
    seeds: int
    loss: float
    pending: bool = False
    trials: int = 10
    seed: int = 1


class Convergence(msgspec.Struct, frozen=True):
    """Rounds from the decision until a member has the change: of all members of all trials, and until the
    last one of a trial has it. `missed`: members that never had it. `messages`: of one member in a second,
    and `asked` what the busiest member got in a second."""

    case: Case
    p50: float
    p99: float
    last_p50: float
    last_max: float
    missed: int
    messages: float
    asked: float

    def text(self) -> str:
        case = self.case
        return (
            f"{case.nodes:6} {case.seeds:5} {case.loss:5.0%} {'yes' if case.pending else 'no':>7}  "
            f"{self.p50:6.1f} {self.p99:6.1f} {self.last_p50:6.1f} {self.last_max:6.1f}  "
            f"{epidemic_rounds(case):8.1f} {_or_none(seed_mean_rounds(case)):>8} "
            f"{_or_none(seed_all_rounds(case)):>8}  {self.messages:8.1f} {self.asked:6.0f}"
        )


HEAD = (
    " nodes seeds  loss pending     p50    p99   last    max  epidemic seed mean seed all  messages  asked\n"
    + "-" * 104
)


def _or_none(rounds: float | None) -> str:
    return "-" if rounds is None else f"{rounds:.1f}"


def epidemic_rounds(case: Case) -> float:
    """Push-pull with nothing lost: those that know become three times as many a round, and the last are found
    in ln ln n more; seeds know at once, and rounds are shorter while it is pending."""
    known = 1 + min(case.seeds, 16)
    rounds = math.log(max(case.nodes / known, 1), 3) + math.log(max(math.log(case.nodes), 1))
    return rounds * (RING_GOSSIP_PENDING_MS / RING_GOSSIP_MS if case.pending else 1)


def seed_mean_rounds(case: Case) -> float | None:
    """If seeds alone spread it: until one member asks a seed for the first time, in the mean."""
    return case.nodes / case.seeds if case.seeds else None


def seed_all_rounds(case: Case) -> float | None:
    """The same until all members have, in 99 of 100 cases."""
    if not 0 < case.seeds < case.nodes:
        return None
    one = 1 - math.pow(_CERTAINTY, 1 / case.nodes)
    return math.log(one) / math.log(1 - case.seeds / case.nodes)


class _Trial:
    """One change of a ring, decided by one member."""

    def __init__(self, case: Case, trial: int, before: Ring, delta: Delta, after: Ring) -> None:
        self._case = case
        self._random = stream(case.seed, f"convergence/{case}/{trial}")
        self._before, self._delta, self._after = before, delta, after
        self._names = before.present
        seeds = self._names[: case.seeds]
        self._spreaders = {
            name: Spreader(name, seeds, -self._random.randrange(RING_GOSSIP_MS)) for name in self._names
        }
        self.reached: dict[str, int] = {}
        self.messages = 0
        self.asked: dict[str, int] = {}
        self.now_ms = 0
        self._queue: list[tuple[int, int, str, str, Summary | Deltas | Whole | None]] = []
        self._number = 0

    def run(self) -> None:
        initiator = self._names[-1]
        for name in self._names:
            self._push(self._random.randrange(RING_GOSSIP_PENDING_MS), "", name, None)
        self._take(initiator)
        spreader = self._spreaders[initiator]
        for seed in spreader.told_first(self._after):
            self._send(initiator, seed, spreader.newest(self._after))
        while self._queue and len(self.reached) < len(self._names) and self.now_ms < _PATIENCE_MS:
            self.now_ms, _, source, target, message = heapq.heappop(self._queue)
            if message is None:
                self._round(target)
            else:
                self._arrive(source, target, message)

    def _ring(self, name: str) -> Ring:
        return self._after if name in self.reached else self._before

    def _take(self, name: str) -> None:
        if name not in self.reached:
            self.reached[name] = self.now_ms
            self._spreaders[name].moved(self._after, self._delta)

    def _round(self, name: str) -> None:
        draws = (self._random.random(), self._random.random())
        ring, spreader = self._ring(name), self._spreaders[name]
        pending = self._case.pending and name not in self.reached
        for peer in spreader.round(ring, self.now_ms, pending, draws):
            self._send(name, peer, spreader.summary(ring))
        pause_ms = RING_GOSSIP_PENDING_MS // 2 if pending else RING_GOSSIP_PENDING_MS
        self._push(pause_ms, "", name, None)

    def _arrive(self, source: str, target: str, message: Summary | Deltas | Whole) -> None:
        self.asked[target] = self.asked.get(target, 0) + 1
        if not isinstance(message, Summary):
            self._take(target)
            return
        answer = self._spreaders[target].answer(self._ring(target), message)
        if answer is not None:
            self._send(target, source, answer)

    def _send(self, source: str, target: str, message: Summary | Deltas | Whole) -> None:
        self.messages += 1
        if self._random.random() >= self._case.loss:
            self._push(1 + self._random.randrange(_LATENCY_MS), source, target, message)

    def _push(
        self, after_ms: int, source: str, target: str, message: Summary | Deltas | Whole | None
    ) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now_ms + after_ms, self._number, source, target, message))


def measure(case: Case) -> Convergence:
    """Trials of one case."""
    assert case.nodes > 1 and 0 <= case.seeds < case.nodes and 0 <= case.loss < 1 and case.trials > 0
    names = [f"n{number:05}" for number in range(case.nodes)]
    before = found(
        Mode.QUORUM,
        [Member(name, 1, Status.NORMAL, "dc1", "r1", (number,)) for number, name in enumerate(names)],
    )
    delta = decide(before, "op", [Change(Kind.MOVE, Step.BEGIN, names[0], (case.nodes,))])
    after = applied(before, delta)
    heard: list[int] = []
    lasts: list[int] = []
    missed = messages = time_ms = 0
    asked = 0.0
    for number in range(case.trials):
        trial = _Trial(case, number, before, delta, after)
        trial.run()
        heard += trial.reached.values()
        lasts.append(max(trial.reached.values()))
        missed += case.nodes - len(trial.reached)
        messages, time_ms = messages + trial.messages, time_ms + trial.now_ms
        asked = max(asked, max(trial.asked.values()) * 1000 / max(trial.now_ms, 1))
    return Convergence(
        case,
        _part(heard, 0.5),
        _part(heard, 0.99),
        _part(lasts, 0.5),
        max(lasts) / RING_GOSSIP_MS,
        missed,
        messages * 1000 / case.nodes / max(time_ms, 1),
        asked,
    )


def _part(times_ms: list[int], part: float) -> float:
    ordered = sorted(times_ms)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)] / RING_GOSSIP_MS


def cases(nodes: int, trials: int, seed: int) -> Iterator[Case]:
    """Seeds and loss with so many nodes, then sizes, then what gossiping faster while it is pending
    brings."""
    tenth = max(nodes // 10, 1)
    for seeds in (0, 3, tenth):
        for loss in (0.0, 0.1, 0.3, 0.5):
            yield Case(nodes, min(seeds, nodes - 1), loss, trials=trials, seed=seed)
    for size in (nodes // 100, nodes // 10, nodes // 3):
        if size > 3:
            yield Case(size, 3, 0.1, trials=trials, seed=seed)
    for loss in (0.0, 0.1, 0.3):
        yield Case(nodes, 3, loss, pending=True, trials=trials, seed=seed)
