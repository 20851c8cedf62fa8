"""A tracked read: one replica's data, the others' summaries, and an answer that its whole level holds.

The data replica says what it holds and answers from all of that. If others of the level hold more, it brings
the whole mutations that it lacks and reads once more; then those of the level that lack an id of the answer
bring it too. When all hold every id of the answer, it stands: a later read of a quorum meets one of them, so
it never goes back, and a mutation is seen whole or not at all.

A replica that is silent is replaced by another one that is asked as well; who answers first counts. A second
data replica is asked where the first one stalls.

Invariant: at most DATA_READS_MAX data reads are taken, an answer covers what each of its replicas told
before it, and no answer stands that one of its replicas lacks an id of.
"""

from __future__ import annotations

import enum
from typing import Generic, TypeVar

import msgspec

from lockstep.tracking.held import Held
from lockstep.tracking.limits import DATA_READS_MAX, STALL_MS
from lockstep.tracking.summaries import Summary

Data = TypeVar("Data")


class AskData(msgspec.Struct, frozen=True):
    replica: int


class AskSummary(msgspec.Struct, frozen=True):
    replica: int


class Bring(msgspec.Struct, frozen=True):
    """`replica` fetches `ids` of `source`, stores them, and tells what it then holds."""

    replica: int
    source: int
    ids: Held


class Stage(enum.Enum):
    ASKING = "asking"
    #: The data replica fetches what others of the level hold.
    BRINGING = "bringing"
    #: The answer is there; who lacks some of it fetches that.
    SPREADING = "spreading"
    DONE = "done"


Action = AskData | AskSummary | Bring


class TrackedRead(Generic[Data]):
    """`replicas` in order of preference, `full` those that store data, `needed` how many the level wants."""

    def __init__(self, replicas: tuple[int, ...], full: frozenset[int], needed: int, now_ms: int) -> None:
        assert 0 < needed <= len(replicas) == len(set(replicas))
        assert any(replica in full for replica in replicas), "somebody has data"
        self._replicas = replicas
        self._full = full
        self._needed = needed
        self._data_from = next(replica for replica in replicas if replica in full)
        others = [replica for replica in replicas if replica != self._data_from]
        self._asked = [self._data_from, *others[: needed - 1]]
        self._progress_ms = now_ms
        self._told: dict[int, Summary] = {}
        self._data: Data | None = None
        self._answer: Summary | None = None
        self._reads = 0
        #: Who makes up the answer: fixed once it is known what the data must cover.
        self._level: tuple[int, ...] = ()
        #: What the level told when it was fixed; the answer covers it.
        self._target = Summary()
        self._again = False
        self._spreading: set[int] = set()
        self.stage = Stage.ASKING

    def start(self) -> list[Action]:
        first, *others = self._asked
        return [AskData(first), *map(AskSummary, others)]

    @property
    def level(self) -> tuple[int, ...]:
        return self._level

    @property
    def result(self) -> Data:
        assert self.stage is Stage.DONE and self._data is not None
        return self._data

    @property
    def result_ids(self) -> Summary:
        """What the answer is made of: the token of a session's guarantees."""
        assert self.stage is Stage.DONE and self._answer is not None
        return self._answer

    def summary(self, replica: int, told: Summary, now_ms: int) -> list[Action]:
        """Also what a replica tells after it brought something."""
        if self.stage is Stage.DONE or replica not in self._asked:
            return []
        self._progress_ms = now_ms
        known = self._told.get(replica)
        self._told[replica] = told if known is None else known.union(told)
        return self._go_on()

    def data(self, replica: int, data: Data, told: Summary, now_ms: int) -> list[Action]:
        """`told` is what the data is made of, all of it."""
        if self.stage in (Stage.DONE, Stage.SPREADING) or replica != self._data_from:
            return self.summary(replica, told, now_ms)
        if self._reads >= DATA_READS_MAX or (self._reads and not self._again):
            return []
        self._reads += 1
        self._data, self._answer = data, told
        return self.summary(replica, told, now_ms)

    def tick(self, now_ms: int) -> list[Action]:
        """Another replica in the place of a silent one, and other data in the place of late data."""
        if self.stage is not Stage.ASKING or now_ms - self._progress_ms < STALL_MS:
            return []
        self._progress_ms = now_ms
        actions: list[Action] = []
        spare = [replica for replica in self._replicas if replica not in self._asked]
        if self._answer is None:
            others = [one for one in (*spare, *self._asked) if one in self._full and one != self._data_from]
            if not others:
                return []
            self._data_from = others[0]
            actions.append(AskData(others[0]))
            if others[0] not in self._asked:
                self._asked.append(others[0])
        elif spare:
            self._asked.append(spare[0])
            actions.append(AskSummary(spare[0]))
        return actions

    def _go_on(self) -> list[Action]:
        if self.stage is Stage.ASKING:
            if self._answer is None or len(self._told) < self._needed:
                return []
            others = [replica for replica in self._told if replica != self._data_from]
            self._level = (self._data_from, *others[: self._needed - 1])
            for replica in self._level:
                self._target = self._target.union(self._told[replica])
            return self._cover()
        return self._cover() if self.stage is Stage.BRINGING else self._spread()

    def _cover(self) -> list[Action]:
        """Whether the data has all that its level told; else the data replica brings it and reads again."""
        assert self._answer is not None
        if self._answer.covers(self._target):
            self.stage = Stage.SPREADING
            return self._spread()
        held = self._told[self._data_from]
        if self.stage is Stage.BRINGING:
            if self._again or not held.covers(self._target):
                return []
            self._again = True
            return [AskData(self._data_from)]
        self.stage = Stage.BRINGING
        actions: list[Action] = []
        for replica in self._level[1:]:
            rest = held.lacking(self._told[replica])
            if rest:
                actions.append(Bring(self._data_from, replica, rest))
                held = held.union(Summary((), rest))
        # Between the answer and what was told since, the data replica may have got the rest by itself.
        return actions or self._cover()

    def _spread(self) -> list[Action]:
        assert self._answer is not None
        behind = {
            replica: found
            for replica in self._level[1:]
            if (found := self._told[replica].lacking(self._answer))
        }
        if not behind:
            self.stage = Stage.DONE
            self.validate()
            return []
        fresh = [replica for replica in behind if replica not in self._spreading]
        self._spreading.update(fresh)
        return [Bring(replica, self._data_from, behind[replica]) for replica in fresh]

    def validate(self) -> None:
        assert self._reads <= DATA_READS_MAX
        assert len(set(self._level)) == len(self._level)
        assert set(self._told) <= set(self._asked)
        if self.stage is Stage.DONE:
            assert self._answer is not None and len(self._level) == self._needed
            assert self._level[0] in self._full, "the data is of a replica that stores it"
            assert all(self._told[one].covers(self._answer) for one in self._level)
