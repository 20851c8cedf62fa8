"""REP-1, REP-2a, REP-3 for each column of rows that have several, with ties, expiry and elements of maps.

A register is one cell: a column of a row, an element of a map, INSERT's marker of a row, a static column.
Of two writes the one with the larger timestamp wins; on a tie a deletion, then a value that expires, then
the larger value. So a register's state is what won, and it only grows. Invariant: values and the timestamps
of values that expire are each written once to a row, so a tie is decided by what is known here.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome
from lockstep.values.ids import Consistency

#: (partition key, clustering or STATIC_ROW, column or `column[element]`).
Place = tuple[bytes, int, str]
STATIC_ROW: Final = -1
#: Not a column: whether INSERT's marker is there.
MARKER: Final = "(row)"
#: When a value may be dead that nobody knows the end of, in wall seconds.
NEVER_S: Final = 1 << 62

STAYS: Final = 0
EXPIRES: Final = 1
DELETED: Final = 2


class State(msgspec.Struct, frozen=True, array_like=True, order=True):
    """What a write leaves of a register. Of two states the larger one wins. `ends_s`: the earliest wall
    second from which it may be dead."""

    timestamp_us: int
    kind: int = DELETED
    ends_s: int = 0
    value: bytes = b""

    def text(self) -> str:
        if self == NOTHING:
            return "nothing"
        what = "a deletion" if self.kind == DELETED else repr(self.value)
        until = f" until {self.ends_s}" if self.kind == EXPIRES else ""
        return f"{what} at {self.timestamp_us}{until}"


NOTHING: Final = State(-(1 << 63), STAYS)


class Wrote(msgspec.Struct, kw_only=True):
    """One write, with what it leaves of each register that it touches. `ttl_s` 0: nothing of it expires."""

    client: str
    text: str
    start_ns: int
    level: Consistency
    dc: str = ""
    effects: Mapping[Place, State] = {}
    ttl_s: int = 0
    end_ns: int = -1
    outcome: Outcome = Outcome.UNKNOWN


class Seen(msgspec.Struct, frozen=True):
    """One cell as a read showed it. `value` None: there is none, or no row at all; `timestamp_us` and
    `ttl_s` are as WRITETIME and TTL tell, None where they were not asked for or told nothing."""

    value: bytes | None
    timestamp_us: int | None = None
    ttl_s: int | None = None


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """One read that was answered; `cells` has every register that it judges."""

    client: str
    text: str
    start_ns: int
    end_ns: int
    level: Consistency
    dc: str = ""
    cells: Mapping[Place, Seen] = {}


#: The wall second of a world's instant.
WallS = Callable[[int], int]
_EVERYWHERE = (Consistency.EACH_QUORUM, Consistency.ALL)


def has_quorum(event: Wrote | Read, scope: str) -> bool:
    """Whether an event had a quorum of the scope: a data centre, or "" for all replicas."""
    if event.level in _EVERYWHERE:
        return True
    if event.level is Consistency.LOCAL_QUORUM:
        return scope == event.dc
    return event.level is Consistency.QUORUM and scope == ""


class _Register:
    def __init__(self, place: Place, wall_s: WallS) -> None:
        self._place = place
        self._wall_s = wall_s
        self._writes: dict[State, list[Wrote]] = {}
        self._states: list[State] = []
        self.reads: list[tuple[Read, Seen]] = []

    def wrote(self, state: State, write: Wrote) -> None:
        self._writes.setdefault(state, []).append(write)

    def check(self, scopes: Sequence[str]) -> None:
        self._states = sorted(self._writes)
        for scope in scopes:
            self._check(partial(has_quorum, scope=scope))

    def _check(self, counts: Callable[[Wrote | Read], bool]) -> None:
        ended = [
            (write.end_ns, state)
            for state, writes in self._writes.items()
            for write in writes
            if write.outcome is Outcome.OK and counts(write)
        ]
        heapq.heapify(ended)
        lowest = NOTHING
        for read, seen in self.reads:
            if not counts(read):
                continue
            while ended and ended[0][0] < read.start_ns:
                lowest = max(lowest, heapq.heappop(ended)[1])
            heapq.heappush(ended, (read.end_ns, self._explain(read, seen, lowest)))

    def _explain(self, read: Read, seen: Seen, lowest: State) -> State:
        """The smallest state that explains what was seen and is not below `lowest`."""
        if lowest == NOTHING and seen.value is None:
            return NOTHING
        for state in self._states[bisect.bisect_left(self._states, lowest) :]:
            if any(self._shows(write, state, read, seen) for write in self._writes[state]):
                return state
        below = [
            state
            for state in self._states
            if state < lowest and any(self._shows(write, state, read, seen) for write in self._writes[state])
        ]
        rule = "REP-3" if lowest.kind == DELETED else "REP-1"
        why = f"though {lowest.text()} was there before" if below or seen.value is None else "by no write"
        key, clustering, column = self._place
        raise Violation(
            rule,
            f"{read.client} read {column} of {key.decode()}[{clustering}] at {read.level.name} from "
            f"{read.start_ns / 1e9:.6f} to {read.end_ns / 1e9:.6f} and saw {seen.value!r} "
            f"(written at {seen.timestamp_us}, {seen.ttl_s} s left), {why}",
        )

    def _shows(self, write: Wrote, state: State, read: Read, seen: Seen) -> bool:
        """Whether a read can have seen that of the register when this write had won there."""
        if write.outcome is Outcome.FAILED or write.start_ns > read.end_ns:
            return False
        last_s = NEVER_S
        if state.kind == EXPIRES and write.outcome is Outcome.OK:
            last_s = self._wall_s(write.end_ns) + write.ttl_s
        if seen.value is None:
            return state.kind == DELETED or (
                state.kind == EXPIRES and self._wall_s(read.end_ns) >= state.ends_s
            )
        if state.kind == DELETED or state.value != seen.value:
            return False
        if seen.timestamp_us is not None and seen.timestamp_us != state.timestamp_us:
            return False
        if state.kind == STAYS:
            return seen.ttl_s is None
        if seen.timestamp_us is not None:
            if seen.ttl_s is None or seen.ttl_s <= 0:
                return False
            if self._wall_s(read.end_ns) + seen.ttl_s < state.ends_s:
                return False
            if self._wall_s(read.start_ns) + seen.ttl_s > last_s:
                return False
        return self._wall_s(read.start_ns) < last_s


def check_columns(writes: Sequence[Wrote], reads: Sequence[Read], wall_s: WallS) -> int:
    """Raise the first Violation; the number of judged cells otherwise."""
    registers: dict[Place, _Register] = {}
    for write in writes:
        for place, state in write.effects.items():
            register = registers.get(place)
            if register is None:
                register = registers[place] = _Register(place, wall_s)
            register.wrote(state, write)
    judged = 0
    for read in sorted(reads, key=lambda read: read.start_ns):
        for place, seen in read.cells.items():
            register = registers.get(place)
            if register is not None:
                register.reads.append((read, seen))
                judged += 1
            elif seen.value is not None:
                raise Violation(
                    "REP-1", f"{read.client}: {read.text} shows {seen.value!r}, which nobody wrote"
                )
    scopes = sorted({"", *(write.dc for write in writes), *(read.dc for read in reads)})
    for register in registers.values():
        register.check(scopes)
    return judged
