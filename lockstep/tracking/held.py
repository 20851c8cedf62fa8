"""What somebody holds of the logs of one range: a set of offsets a log.

A log belongs to one start of one node. Whoever stores a mutation first gives it the next offset of its own
log; the offset, the log and the range together name the mutation for ever.

Invariant: no log is listed without an offset, and logs are listed once, in order: equal holdings are equal
values with equal bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from itertools import pairwise
from typing import Final

import msgspec

from lockstep.tracking.intervals import EMPTY, IntervalSet, Runs, common, without

#: The node, and which of its starts.
LogId = tuple[int, int]
#: A log's number is that of the start of its node, then which of the logs of that start it is.
LOG_BITS: Final = 24
#: In the number of a log: what its mutations add to logs of changes, where that is of another range.
_BESIDE: Final = 1 << (LOG_BITS - 1)
#: Logs of one start are fewer.
LOGS_OF_A_START_MAX: Final = _BESIDE


class MutationId(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """`given_us`: the clock of the node that gave it; for people and bounds of time, never for identity."""

    node: int
    start: int
    offset: int
    given_us: int = 0

    @property
    def log(self) -> LogId:
        return self.node, self.start


def beside(log: LogId) -> LogId:
    """The log that names what a log's mutations add to logs of changes in another range: a mutation and what
    it adds there have one offset."""
    node, number = log
    assert not number & _BESIDE, "what is added to a log of changes adds nothing itself"
    return node, number | _BESIDE


def is_beside(number: int) -> bool:
    return bool(number & _BESIDE)


def part_beside(given: MutationId) -> MutationId:
    """The id of what a mutation adds to a log of changes in another range."""
    node, number = beside(given.log)
    assert is_beside(number), "it is told from that of the mutation"
    return MutationId(node, number, given.offset, given.given_us)


def whole_of(part: MutationId) -> MutationId:
    """The id of the mutation that a part beside one was added by."""
    assert is_beside(part.start), "it is the id of a part"
    return MutationId(part.node, part.start & ~_BESIDE, part.offset, part.given_us)


#: The node, its start and runs of offsets, of each log.
_Logs = tuple[tuple[int, int, Runs], ...]


class Held(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`logs`: (node, start, runs of offsets) of each log."""

    logs: _Logs = ()

    def __bool__(self) -> bool:
        return bool(self.logs)

    @property
    def count(self) -> int:
        return sum([sum(runs[1::2]) - sum(runs[::2]) + len(runs) // 2 for _, _, runs in self.logs])

    def items(self) -> Iterator[tuple[LogId, IntervalSet]]:
        return (((node, start), IntervalSet(runs)) for node, start, runs in self.logs)

    def by_log(self) -> dict[LogId, IntervalSet]:
        return dict(self.items())

    @property
    def is_sound(self) -> bool:
        """Whether it is in the one form that a set has; what comes from outside may not be."""
        logs = [(node, start) for node, start, _ in self.logs]
        if any(one >= other for one, other in pairwise(logs)):
            return False
        return all(runs and IntervalSet(runs).is_sound for _, _, runs in self.logs)

    def validate(self) -> None:
        assert self.is_sound, "logs are in order, and have runs with gaps between them"

    def contains(self, wanted: MutationId) -> bool:
        return any(log == wanted.log and found.contains(wanted.offset) for log, found in self.items())

    def union(self, other: Held) -> Held:
        if not other.logs or self.logs == other.logs:
            return self
        if not self.logs:
            return other
        found = self.by_log()
        for log, offsets in other.items():
            found[log] = found.get(log, EMPTY).union(offsets)
        return held_of(found)

    def intersection(self, other: Held) -> Held:
        return self if self.logs == other.logs else _of_each(self.logs, other.logs, common)

    def difference(self, other: Held) -> Held:
        if not other.logs:
            return self
        if not self.logs or self.logs == other.logs:
            return NOTHING
        return _of_each(self.logs, other.logs, without)

    def covers(self, other: Held) -> bool:
        return not other.difference(self).logs


NOTHING: Final = Held()


def _of_each(mine: _Logs, theirs: _Logs, chosen: Callable[[Runs, Runs], Runs]) -> Held:
    """What is chosen of the runs of each log that are held here, and there."""
    found: list[tuple[int, int, Runs]] = []
    if len(mine) == len(theirs):
        # Most who compare what they hold know the same logs.
        for (node, start, runs), there in zip(mine, theirs, strict=True):
            if there[0] != node or there[1] != start:
                break
            if some := chosen(runs, there[2]):
                found.append((node, start, some))
        else:
            return Held(tuple(found)) if found else NOTHING
    by_log = {(node, start): runs for node, start, runs in theirs}
    chosen_of = ((node, start, chosen(runs, by_log.get((node, start), ()))) for node, start, runs in mine)
    found = [log for log in chosen_of if log[2]]
    return Held(tuple(found)) if found else NOTHING


def held_of(found: Mapping[LogId, IntervalSet]) -> Held:
    return Held(tuple((*log, offsets.runs) for log, offsets in sorted(found.items()) if offsets.runs))


def all_of(several: Iterable[Held]) -> Held:
    """What anybody holds."""
    return reduce(Held.union, several, NOTHING)
