"""REP-1, REP-2a, REP-3 and LWT-1: what clients saw of registers and counters, judged against what they wrote.

A register is one row of one partition. Of two writes the one with the larger timestamp wins, of two puts with
one timestamp the larger value; so a register's state is the (timestamp, value) of the write that won, and it
only grows. Invariant: a deletion has a timestamp of its own; a write binds a later read only when the two
levels must share a replica, and a read binds a later one only when its level makes it repair first. A write
at ALL binds no read of one replica through a node that may take others for replicas than there are. Where
there are several data centres, quorums of all replicas meet each other, and quorums of one data centre do:
each of these is a scope, and an event counts in those in which it had a quorum.

A counter with changes and reads at quorum shows every change that was acknowledged before the read began, and
nothing that was not asked for before it ended; a change whose outcome is unknown may have counted, once.

LWT-1: conditional writes of one partition and its serial reads are linearizable. Every value is written at
most once, so the writes that took effect are a chain, each one expecting what the one before it wrote, and
every answer lies at one place of the chain. A set keeps every value beside the register, one list has them
appended and one prepended, so all show the order in which they were decided. The check is exact: a history
passes if and only if some order of its effects explains all answers and keeps to real time.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

import msgspec

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


class Count(msgspec.Struct, frozen=True):
    """One change by `amount`, or one read that showed `seen`. Times in ns; `end_ns` of an unknown one is when
    the client gave up. `settled`: a read when nothing was under way any more."""

    client: str
    key: bytes
    start_ns: int
    end_ns: int
    outcome: Outcome
    amount: int = 0
    seen: int | None = None
    settled: bool = False


def check_counts(events: Sequence[Count]) -> int:
    """Raise the first Violation; the number of judged reads otherwise."""
    judged = 0
    for read in events:
        if read.seen is None or read.outcome is not Outcome.OK:
            continue
        judged += 1
        changes = [event for event in events if event.seen is None and event.key == read.key]
        _check_read(read, changes)
    return judged


def _check_read(read: Count, changes: Sequence[Count]) -> None:
    assert read.seen is not None
    surely = [c for c in changes if c.outcome is Outcome.OK and (read.settled or c.end_ns < read.start_ns)]
    perhaps = [
        c
        for c in changes
        if c.outcome is not Outcome.FAILED and c not in surely and c.start_ns <= read.end_ns
    ]
    base = sum(change.amount for change in surely)
    low = base + sum(min(change.amount, 0) for change in perhaps)
    high = base + sum(max(change.amount, 0) for change in perhaps)
    if not low <= read.seen <= high:
        raise Violation(
            "REP-1",
            f"{read.client} read {read.seen} of counter {read.key.decode()}: {len(surely)} acknowledged "
            f"changes make {base}, with {len(perhaps)} open ones {low} to {high}",
        )


_RULE = "LWT-1"


class Decided(msgspec.Struct, frozen=True):
    """One request and its end. A write has `wrote`: the value it sets if `expected` is there (None: nothing).

    With outcome OK, `applied` says whether it did, and `seen` is what else was there; a read has only `seen`,
    in `held` what the set held, and in `appended` and `prepended` what the lists did.
    """

    client: str
    key: bytes
    start_ns: int
    end_ns: int
    outcome: Outcome
    expected: bytes | None = None
    wrote: bytes | None = None
    applied: bool = False
    seen: bytes | None = None
    held: frozenset[bytes] | None = None
    appended: tuple[bytes, ...] | None = None
    prepended: tuple[bytes, ...] | None = None

    def text(self) -> str:
        if self.wrote is None:
            what = f"read {_shown(self.seen)}"
        else:
            what = f"set {_shown(self.wrote)} if {_shown(self.expected)}: "
            if self.outcome is not Outcome.OK:
                what += self.outcome
            else:
                what += "applied" if self.applied else f"there was {_shown(self.seen)}"
        return (
            f"{self.client} [{self.start_ns / 1e9:.4f}, {self.end_ns / 1e9:.4f}] {self.key.decode()} {what}"
        )


def check_decisions(events: Sequence[Decided]) -> int:
    """The number of judged answers. Raises the first Violation."""
    judged = 0
    for key in sorted({event.key for event in events}):
        judged += _check_register([event for event in events if event.key == key])
    return judged


def _check_register(events: Sequence[Decided]) -> int:
    writes: dict[bytes | None, Decided] = {event.wrote: event for event in events if event.wrote is not None}
    places = _chain(events, writes)
    spans: list[tuple[int, int, tuple[int, int], Decided]] = []
    for event in events:
        if event.wrote is not None and _took_effect(event, places):
            end_ns = event.end_ns if event.outcome is Outcome.OK else _NEVER_NS
            spans.append((event.start_ns, end_ns, (places[event.wrote], 0), event))
        elif event.outcome is Outcome.OK:
            if event.wrote is not None and event.seen == event.expected:
                raise Violation(_RULE, f"refused although what it expects was there: {event.text()}")
            spans.append((event.start_ns, event.end_ns, (places[event.seen], 1), event))
            _check_held(event, places)
            _check_lists(event, places)
    _check_times(spans)
    return len(spans)


_NEVER_NS = 1 << 62


def _check_held(event: Decided, places: Mapping[bytes | None, int]) -> None:
    if event.held is None:
        return
    last = places[event.seen]
    expected = {value for value, place in places.items() if value is not None and place <= last}
    if event.held != expected:
        lost, early = sorted(expected - event.held), sorted(event.held - expected)
        raise Violation(_RULE, f"{event.text()}, where {lost} are lost and {early} not yet there")


def _check_lists(event: Decided, places: Mapping[bytes | None, int]) -> None:
    """Of two values that both are there the one decided later stands behind in one list, in front in the
    other; `_check_held` says which have to be there."""
    last = places[event.seen]
    order = [value for value, place in places.items() if value is not None and place <= last]
    for name, seen, expected in (
        ("appended", event.appended, order),
        ("prepended", event.prepended, order[::-1]),
    ):
        if seen is not None and list(seen) != expected:
            raise Violation(
                _RULE, f"{event.text()}, where {name} are {list(seen)}, and decided was {expected}"
            )


def _took_effect(event: Decided, places: Mapping[bytes | None, int]) -> bool:
    if event.outcome is Outcome.OK:
        return event.applied
    return event.wrote in places


def _chain(events: Sequence[Decided], writes: Mapping[bytes | None, Decided]) -> dict[bytes | None, int]:
    """The place of each value that was there at some time."""
    shown: dict[bytes | None, Decided] = {}
    for event in events:
        if event.outcome is Outcome.OK:
            shown.setdefault(event.wrote if event.applied else event.seen, event)
    after: dict[bytes | None, bytes] = {}
    found: dict[bytes | None, None] = {None: None}
    for first, witness in shown.items():
        value = first
        while value not in found:
            found[value] = None
            write = writes.get(value)
            if write is None:
                raise Violation(_RULE, f"nobody wrote the value of {witness.text()}")
            if write.outcome is Outcome.FAILED or (write.outcome is Outcome.OK and not write.applied):
                raise Violation(_RULE, f"{write.text()}; but it took effect: {witness.text()}")
            assert value is not None, "nothing is not written"
            if write.expected in after:
                other = writes[after[write.expected]]
                raise Violation(_RULE, f"both found the same: {other.text()}; {write.text()}")
            after[write.expected] = value
            value = write.expected
    places: dict[bytes | None, int] = {None: 0}
    value = None
    while value in after:
        value = after[value]
        places[value] = len(places)
    lost = [value for value in found if value not in places]
    if lost:
        raise Violation(_RULE, f"values follow each other in a circle, among them {_shown(lost[0])}")
    return places


def _check_times(spans: Sequence[tuple[int, int, tuple[int, int], Decided]]) -> None:
    """Whoever began after another one ended is not placed before it."""
    by_end = sorted(spans, key=lambda span: span[1])
    ends = [span[1] for span in by_end]
    furthest: list[tuple[tuple[int, int], Decided]] = []
    for _, _, place, event in by_end:
        furthest.append(
            max((furthest[-1], (place, event)), key=lambda one: one[0]) if furthest else (place, event)
        )
    for start_ns, _, place, event in spans:
        before = bisect.bisect_left(ends, start_ns)
        if before and furthest[before - 1][0] > place:
            raise Violation(_RULE, f"{furthest[before - 1][1].text()}; and later {event.text()}")


def _shown(value: bytes | None) -> str:
    return "nothing" if value is None else value.decode()
