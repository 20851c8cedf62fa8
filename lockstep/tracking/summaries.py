"""What a replica tells of its holdings: sets of offsets for logs that live, a floor for those that are over.

A log is over once its node has begun a later one and every replica holds all of it. It then leaves the
summary, and the floor of its node, the first start that still counts, rises in its place: what a summary
costs does not grow with the number of restarts.

Invariant: everything below a floor is held by every replica, so two summaries are compared as if both
floors were the higher one. Equal summaries have equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from lockstep.tracking.held import NOTHING, Held, LogId, MutationId
from lockstep.tracking.intervals import IntervalSet
from lockstep.tracking.limits import LOGS_MAX, RUNS_MAX
from lockstep.values.errors import FrameCorrupt

#: Node -> the first of its starts that is not over.
Floors = dict[int, int]
_DIGEST_BYTES: Final = 16


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """`floors`: (node, first start that is not over), in order of nodes; `held` lists no log below."""

    floors: tuple[tuple[int, int], ...] = ()
    held: Held = NOTHING

    def __contains__(self, wanted: MutationId) -> bool:
        return wanted.start < dict(self.floors).get(wanted.node, 0) or self.held.contains(wanted)

    def lacking(self, other: Summary) -> Held:
        """What `other` claims and this one does not."""
        return self._above(other.held).difference(self.held)

    def covers(self, other: Summary) -> bool:
        return self == other or not self.lacking(other)

    def union(self, other: Summary) -> Summary:
        floors = dict(self.floors)
        for node, start in other.floors:
            floors[node] = max(start, floors.get(node, 0))
        return summary_of(floors, self.held.union(other.held))

    def _above(self, held: Held) -> Held:
        floors = dict(self.floors)
        if not floors:
            return held
        return Held(tuple(log for log in held.logs if log[1] >= floors.get(log[0], 0)))

    def validate(self) -> None:
        floors = dict(self.floors)
        assert list(self.floors) == sorted(floors.items()), self.floors
        assert all(start >= floors.get(node, 0) for node, start, _ in self.held.logs), self
        assert len(self.held.logs) <= LOGS_MAX, len(self.held.logs)


def summary_of(floors: Floors, held: Held) -> Summary:
    told = Summary(tuple(sorted(floors.items())))
    return Summary(told.floors, told._above(held))


def floors_of(floors: Floors, reconciled: Held, ended: dict[LogId, int], starts: dict[int, int]) -> Floors:
    """The floors once logs that are over are retired.

    `ended` has the number of offsets of logs that are known to be over, `starts` the newest start of each
    node. A floor rises over logs one by one, in the order of starts, so none below it is forgotten.
    """
    found, whole = dict(floors), reconciled.by_log()
    for (node, start), count in sorted(ended.items()):
        if start != found.get(node, 0) or start >= starts.get(node, 0):
            continue
        if count == 0 or (whole.get((node, start)) or IntervalSet()).runs == (0, count - 1):
            found[node] = start + 1
    return found


def pack(summary: Summary) -> bytes:
    """Canonical bytes: counts and gaps as varints."""
    summary.validate()
    values: list[int] = [len(summary.floors)]
    for floor in summary.floors:
        values += floor
    values.append(len(summary.held.logs))
    for node, start, runs in summary.held.logs:
        values += (node, start, len(runs) // 2)
        end = 0
        for first, last in zip(runs[::2], runs[1::2], strict=True):
            values += (first - end, last - first)
            end = last + 1
    return b"".join(map(_varint, values))


def unpack(body: bytes) -> Summary:
    """FrameCorrupt where the bytes are not those of a summary."""
    values = _varints(body)
    try:
        floors = tuple((next(values), next(values)) for _ in range(_bounded(next(values), LOGS_MAX)))
        logs = tuple(_log(values) for _ in range(_bounded(next(values), LOGS_MAX)))
    except (StopIteration, RuntimeError) as error:
        raise FrameCorrupt("a summary of held mutations ends early") from error
    found = Summary(floors, Held(logs))
    if next(values, None) is not None or pack(found) != body:
        raise FrameCorrupt("a summary of held mutations is not in its canonical form")
    return found


def parted(held: Held, reconciled: Held) -> tuple[Held, Held]:
    """What is held of logs that go on, or are not all reconciled, and of those that are over."""
    newest: dict[int, int] = {}
    for node, start, _ in held.logs:
        newest[node] = max(start, newest.get(node, 0))
    settled = frozenset(reconciled.logs)
    over = tuple(log for log in held.logs if log[1] < newest[log[0]] and log in settled)
    if not over:
        return held, NOTHING
    ended = frozenset(over)
    return Held(tuple(log for log in held.logs if log not in ended)), Held(over)


def digest(summary: Summary) -> bytes:
    return hashlib.blake2b(pack(summary), digest_size=_DIGEST_BYTES).digest()


def _log(values: Iterator[int]) -> tuple[int, int, tuple[int, ...]]:
    node, start, count = next(values), next(values), _bounded(next(values), RUNS_MAX)
    runs: list[int] = []
    end = 0
    for _ in range(count):
        first = end + next(values)
        last = first + next(values)
        runs += (first, last)
        end = last + 1
    return node, start, tuple(runs)


def _bounded(count: int, most: int) -> int:
    if count > most:
        raise FrameCorrupt(f"a summary of held mutations lists {count}, and at most {most} are allowed")
    return count


def _varint(value: int) -> bytes:
    assert value >= 0, value
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _varints(body: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in body:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
    if shift:
        raise FrameCorrupt("a summary of held mutations ends within a number")
