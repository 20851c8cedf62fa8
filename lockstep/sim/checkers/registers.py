"""REP-1, REP-2a, REP-3: what clients saw of each register, judged against what they wrote.

A register is one row of one partition. Every write has its own timestamp and the largest wins, so a
register's state is the timestamp of the newest write that reached it, and it only grows. Invariant: a
write binds a later read only when the two levels must share a replica, and a read binds a later one only
when its level makes it repair first.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Sequence

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.history import Change, Event, Look, Outcome
from lockstep.values.ids import Consistency

Place = tuple[str, bytes, int]

_QUORUM = (Consistency.QUORUM, Consistency.LOCAL_QUORUM, Consistency.EACH_QUORUM)
#: Levels whose writes and reads must meet.
_MAJORITIES = (*_QUORUM, Consistency.ALL)
_NOTHING = -1


def bound_of(timestamp: int) -> str:
    return "nothing" if timestamp == _NOTHING else f"timestamp {timestamp}"


class _Register:
    """Writes of one place by timestamp, and the deletions among them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.writes: dict[int, Event] = {}
        self.deletions: list[int] = []
        self.reads: list[tuple[Event, bytes | None]] = []

    def settle(self) -> None:
        self.deletions = sorted(
            timestamp for timestamp, event in self.writes.items() if _value(event, self.place[2]) is None
        )

    def check(self) -> None:
        self.settle()
        for levels, binding in ((_MAJORITIES, _MAJORITIES), ((Consistency.ONE,), (Consistency.ALL,))):
            self._check_reads(levels, binding)

    def _check_reads(self, levels: Sequence[Consistency], binding: Sequence[Consistency]) -> None:
        """Reads of `levels` must not show less than finished writes of `binding`, nor than each other."""
        ended = [
            (event.end_ns, timestamp)
            for timestamp, event in self.writes.items()
            if event.outcome is Outcome.OK and event.request.consistency in binding
        ]
        heapq.heapify(ended)
        lowest, monotonic = _NOTHING, levels is _MAJORITIES
        for event, value in self.reads:
            if event.request.consistency not in levels:
                continue
            while ended and ended[0][0] < event.start_ns:
                lowest = max(lowest, heapq.heappop(ended)[1])
            shown = self._judge(event, value, lowest)
            if monotonic:
                heapq.heappush(ended, (event.end_ns, shown))

    def _judge(self, read: Event, value: bytes | None, lowest: int) -> int:
        """The smallest state that explains the read."""
        if value is not None:
            timestamp = self._timestamp_of(read, value)
            if timestamp < lowest:
                self._refuse("REP-3" if self._deletes(lowest) else "REP-1", read, value, lowest)
            return timestamp
        if lowest == _NOTHING:
            return _NOTHING
        at = bisect.bisect_left(self.deletions, lowest)
        for timestamp in self.deletions[at:]:
            if self._possible(self.writes[timestamp], read):
                return timestamp
        self._refuse("REP-1", read, value, lowest)
        return _NOTHING

    def _deletes(self, timestamp: int) -> bool:
        event = self.writes.get(timestamp)
        return event is not None and _value(event, self.place[2]) is None

    def _timestamp_of(self, read: Event, value: bytes) -> int:
        timestamp = int(value.partition(b"/")[0])
        event = self.writes.get(timestamp)
        if event is None or _value(event, self.place[2]) != value or not self._possible(event, read):
            raise Violation("REP-1", f"{self._title(read)} returned {value!r}, which was never written there")
        return timestamp

    @staticmethod
    def _possible(write: Event, read: Event) -> bool:
        """Whether a read can have seen a write at all."""
        return write.outcome is not Outcome.FAILED and write.start_ns <= read.end_ns

    def _title(self, read: Event) -> str:
        table, key, clustering = self.place
        return (
            f"{read.client} read {table}/{key.decode()}[{clustering}] at {read.request.consistency.name} "
            f"from {read.start_ns / 1e9:.6f} to {read.end_ns / 1e9:.6f} and"
        )

    def _refuse(self, invariant: str, read: Event, value: bytes | None, lowest: int) -> None:
        known = self.writes.get(lowest)
        who = ""
        if known is not None:
            who = f" (written by {known.client}, {known.outcome} at {known.end_ns / 1e9:.6f})"
        raise Violation(
            invariant,
            f"{self._title(read)} returned {value!r}, though {bound_of(lowest)}{who} was there before",
        )


def _value(event: Event, clustering: int) -> bytes | None:
    """What a write leaves in the row; None is a deletion."""
    change = event.request
    assert isinstance(change, Change)
    return next((value for at, value in change.puts if at == clustering), None)


def check_registers(events: Sequence[Event], rows_per_partition: int) -> int:
    """Raise the first Violation of the history; the number of judged reads of registers otherwise.

    `rows_per_partition`: clusterings are 0 .. rows_per_partition - 1.
    """
    registers: dict[Place, _Register] = {}
    partitions: dict[str, dict[bytes, None]] = {}
    for event in events:
        if isinstance(event.request, Change):
            change = event.request
            partitions.setdefault(change.table, {})[change.key] = None
            for clustering in range(rows_per_partition):
                if change.touches(clustering):
                    place = (change.table, change.key, clustering)
                    register = registers.setdefault(place, _Register(place))
                    register.writes[change.timestamp_us] = event
    judged = 0
    for event in events:
        if isinstance(event.request, Look) and event.outcome is Outcome.OK:
            judged += _add_read(event, event.request, registers, partitions, rows_per_partition)
    for register in registers.values():
        register.check()
    return judged


def _add_read(
    event: Event,
    look: Look,
    registers: dict[Place, _Register],
    partitions: dict[str, dict[bytes, None]],
    rows_per_partition: int,
) -> int:
    """Give each covered register what the read says of it."""
    shown = {(key, clustering): value for key, clustering, value in event.rows}
    if len(shown) != len(event.rows):
        raise Violation("REP-1", f"{event.client}: {look.text()} returned a row twice")
    judged = 0
    for key in partitions.get(look.table, {}):
        for clustering in range(rows_per_partition):
            if look.covers(key, clustering):
                register = registers.get((look.table, key, clustering))
                value = shown.pop((key, clustering), None)
                if register is not None:
                    register.reads.append((event, value))
                    judged += 1
                elif value is not None:
                    raise Violation("REP-1", f"{look.text()} returned a row nobody wrote: {value!r}")
    if shown:
        raise Violation("REP-1", f"{look.text()} returned rows it did not ask for: {sorted(shown)}")
    return judged
