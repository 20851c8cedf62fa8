"""REP-1, REP-2a, REP-3: what clients saw of each register, judged against what they wrote.

A register is one row of one partition. Of two writes the one with the larger timestamp wins, of two puts
with one timestamp the larger value; so a register's state is the (timestamp, value) of the write that won,
and it only grows. Invariant: a deletion has a timestamp of its own; a write binds a later read only when
the two levels must share a replica, and a read binds a later one only when its level makes it repair first. A
write at ALL binds no read of one replica through a node that may take others for replicas than there are.

Where there are several data centres, quorums of all replicas meet each other, and quorums of one data centre
do: each of these is a scope, and an event counts in those in which it had a quorum.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Change, Event, Look, Outcome
from lockstep.values.ids import Consistency

Place = tuple[str, bytes, int]
#: (timestamp of the write that won, its value; b"" for a deletion).
State = tuple[int, bytes]

#: Levels that have a quorum in every scope.
_EVERYWHERE = (Consistency.EACH_QUORUM, Consistency.ALL)
_WEAK = (Consistency.ONE, Consistency.LOCAL_ONE, Consistency.TWO, Consistency.THREE)
NOTHING: State = (-1, b"")


def has_quorum(event: Event, scope: str) -> bool:
    """Whether an event that is OK had a quorum of the scope: a data centre, or "" for all replicas.

    A quorum of each data centre is one of all replicas. With one data centre all quorums are the same.
    """
    level = event.request.consistency
    if level in _EVERYWHERE:
        return True
    if level is Consistency.LOCAL_QUORUM:
        return scope == event.dc
    return level is Consistency.QUORUM and scope == ""


def scopes_of(events: Iterable[Event]) -> list[str]:
    """All scopes of a history."""
    return sorted({"", *(event.dc for event in events)})


def bound_of(state: State) -> str:
    """For messages."""
    if state == NOTHING:
        return "nothing"
    return f"timestamp {state[0]}" + (f" with {state[1]!r}" if state[1] else "")


_Choice = Callable[[Event], bool]


def _is_weak(event: Event, apart: Container[Event]) -> bool:
    return event.request.consistency in _WEAK and event not in apart


def _is_at_all(event: Event) -> bool:
    return event.request.consistency is Consistency.ALL


class _Register:
    """Writes of one place by the state each leaves, and the deletions among them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.writes: dict[State, Event] = {}
        #: What each value that was written leaves.
        self.states: dict[bytes, State] = {}
        self.deletions: list[State] = []
        self.reads: list[tuple[Event, bytes | None]] = []

    def wrote(self, state: State, event: Event) -> None:
        assert state not in self.writes, "clients never write one value twice"
        self.writes[state] = event
        if state[1]:
            self.states[state[1]] = state

    def settle(self) -> None:
        self.deletions = sorted(state for state in self.writes if not state[1])

    def check(self, scopes: Sequence[str], apart: Container[Event]) -> None:
        self.settle()
        for scope in scopes:
            met = partial(has_quorum, scope=scope)
            self._check_reads(met, met, monotonic=True)
        weak = partial(_is_weak, apart=apart)
        self._check_reads(weak, _is_at_all, monotonic=False)

    def _check_reads(self, judged: _Choice, binding: _Choice, *, monotonic: bool) -> None:
        """Reads that are `judged` must not show less than finished writes that are `binding`; nor than each
        other, when they are monotonic."""
        ended = [
            (event.end_ns, state)
            for state, event in self.writes.items()
            if event.outcome is Outcome.OK and binding(event)
        ]
        heapq.heapify(ended)
        lowest = NOTHING
        for event, value in self.reads:
            if not judged(event):
                continue
            while ended and ended[0][0] < event.start_ns:
                lowest = max(lowest, heapq.heappop(ended)[1])
            shown = self._judge(event, value, lowest)
            if monotonic:
                heapq.heappush(ended, (event.end_ns, shown))

    def _judge(self, read: Event, value: bytes | None, lowest: State) -> State:
        """The smallest state that explains the read."""
        if value is not None:
            state = self._state_of(read, value)
            if state < lowest:
                self._refuse("REP-1" if lowest[1] else "REP-3", read, value, lowest)
            return state
        if lowest == NOTHING:
            return NOTHING
        at = bisect.bisect_left(self.deletions, lowest)
        for state in self.deletions[at:]:
            if self._possible(self.writes[state], read):
                return state
        self._refuse("REP-1", read, value, lowest)
        return NOTHING

    def _state_of(self, read: Event, value: bytes) -> State:
        state = self.states.get(value, NOTHING)
        event = self.writes.get(state)
        if event is None or not self._possible(event, read):
            raise Violation("REP-1", f"{self._title(read)} returned {value!r}, which was never written there")
        return state

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

    def _refuse(self, invariant: str, read: Event, value: bytes | None, lowest: State) -> None:
        known = self.writes.get(lowest)
        who = ""
        if known is not None:
            who = f" (written by {known.client}, {known.outcome} at {known.end_ns / 1e9:.6f})"
        raise Violation(
            invariant,
            f"{self._title(read)} returned {value!r}, though {bound_of(lowest)}{who} was there before",
        )


def state_after(change: Change, clustering: int) -> State:
    """What a change that touches the row leaves there."""
    return change.timestamp_us, next((value for at, value in change.puts if at == clustering), b"")


def by_request(event: Event, clustering: int) -> State:
    """What a change leaves by the timestamp that its client gave it."""
    assert isinstance(event.request, Change)
    return state_after(event.request, clustering)


def check_registers(
    events: Sequence[Event],
    rows_per_partition: int,
    of: Callable[[Event, int], State] = by_request,
    *,
    apart: Container[Event] = (),
) -> int:
    """Raise the first Violation of the history; the number of judged reads of registers otherwise.

    `rows_per_partition`: clusterings are 0 .. rows_per_partition - 1. `of(event, clustering)`: what a change
    leaves of a row it touches. `apart`: requests through nodes that may plan by placements that are gone.
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
                    register.wrote(of(event, clustering), event)
    judged = 0
    for event in events:
        if isinstance(event.request, Look) and event.outcome is Outcome.OK:
            judged += _add_read(event, event.request, registers, partitions, rows_per_partition)
    scopes = scopes_of(events)
    for register in registers.values():
        register.check(scopes, apart)
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
