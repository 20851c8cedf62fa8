"""What this node's acceptors promised, accepted and know as decided: in the store, and of the partitions that
were decided about last in memory too; and up to which time it may have given promises that its disk lacks.

Invariant: What is in memory is what the store has, or had before a purge; it is forgotten when content comes
or goes in any other way than by a write of an acceptor. A promise that nobody made durable is of a time that
was reserved, durably, before it was given. After a restart this node takes no ballot of a time that an
earlier run had reserved, so it takes none under an older one than it promised. Times are reserved for a
moment ahead of this node's clock only: a restart is over before, or waits for the rest of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from lockstep.consensus.paxos import NO_BALLOT, Acceptor, Ballot, Proposal
from lockstep.replica.messages import Place
from lockstep.runtime.ports import Clock
from lockstep.storage.rows.keys import ballots_of
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import LockstepError
from lockstep.values.limits import BALLOTS_KEPT_S
from lockstep.values.node_limits import BALLOT_STATE_BYTES_MAX, BALLOT_STATES_MAX, BALLOTS_RESERVED_MS
from lockstep.values.rows import ALL_ROWS, Cell, Mutation, ReadCommand, ReadResult, Row

_PROMISED: Final = 1
_ACCEPTED: Final = 2
_COMMITTED: Final = 3
_BALLOT = decoder(Ballot)
_PROPOSAL = decoder(Proposal)
#: The local fact: the time in microseconds, eight bytes.
_RESERVED: Final = b"ballots.reserved"
#: Above every draw: no ballot of its time is later.
_LAST_DRAW: Final = (1 << 63) - 1


def command_for(table_id: int, token: int, key: bytes) -> ReadCommand:
    """The read of a partition's ballots. They have ended when they are purged, not when a clock says so."""
    return ReadCommand(ballots_of(table_id), token - 1, token, key, ALL_ROWS, (), False, False, 0, 0, 0)


def state_in(result: ReadResult) -> Acceptor:
    """The acceptor's state that was read; a new one's when there is none."""
    promised, proposals = NO_BALLOT, dict[int, Proposal]()
    for partition in result.partitions:
        for row in partition.rows:
            for cell in row.cells:
                if cell.value is None:
                    continue
                if cell.column == _PROMISED:
                    promised = _BALLOT.decode(cell.value)
                else:
                    proposals[cell.column] = _PROPOSAL.decode(cell.value)
    return Acceptor(promised, proposals.get(_ACCEPTED), proposals.get(_COMMITTED))


def mutation_between(
    before: Acceptor, after: Acceptor, place: Place, *, mutation_id: bytes, now_s: int
) -> Mutation:
    """What has changed, to be written."""
    cells: list[Cell] = []

    def cell(column: int, ballot: Ballot, value: bytes) -> None:
        cells.append(Cell(column, value, ballot.time_us, BALLOTS_KEPT_S, now_s + BALLOTS_KEPT_S))

    if after.promised != before.promised:
        cell(_PROMISED, after.promised, encode(after.promised))
    if after.accepted is not None and after.accepted != before.accepted:
        cell(_ACCEPTED, after.accepted.ballot, encode(after.accepted))
    if after.committed is not None and after.committed != before.committed:
        cell(_COMMITTED, after.committed.ballot, encode(after.committed))
    newest_us = max(entry.timestamp_us for entry in cells)
    row = Row(b"", None, None, tuple(cells))
    stored_id = ballots_of(place.table_id)
    return Mutation(stored_id, place.token, place.key, mutation_id, newest_us, rows=(row,))


class Engine(Protocol):
    """What is kept of acceptors goes through."""

    #: Grows whenever content comes or goes other than by `apply`.
    rewrites: int

    def apply(self, mutation: Mutation) -> int: ...

    def peek(self, command: ReadCommand, *, asks: bool = True) -> ReadResult: ...

    def unsynced(self, command: ReadCommand) -> int: ...

    def local_fact(self, name: bytes) -> bytes | None: ...

    def keep_local_fact(self, name: bytes, value: bytes) -> int: ...


class BallotStates:
    def __init__(self, engine: Engine, clock: Clock, new_mutation_id: Callable[[], bytes]) -> None:
        self._engine = engine
        self._clock = clock
        self._new_mutation_id = new_mutation_id
        #: The one written last comes last.
        self._known: dict[Place, Acceptor] = {}
        self._rewrites = engine.rewrites

    def of(self, place: Place) -> Acceptor:
        if self._rewrites != self._engine.rewrites:
            self._known.clear()
            self._rewrites = self._engine.rewrites
        found = self._known.get(place)
        if found is None:
            found = self._stored(place)
            self._note(place, found)
        return found

    def keep(self, place: Place, before: Acceptor, after: Acceptor) -> int:
        """Write what has changed; the sequence to await. What is there already is written again: it may have
        been a moment ago, and an own write is the surest way to know it synced."""
        changed = Acceptor() if after == before else before
        mutation = mutation_between(
            changed,
            after,
            place,
            mutation_id=self._new_mutation_id(),
            now_s=self._clock.wall_us() // 1_000_000,
        )
        sequence = self._engine.apply(mutation)
        self._note(place, after)
        return sequence

    def unsynced(self, place: Place) -> int:
        """The sequence to await before anybody is told of the state; 0: its disk has it."""
        return self._engine.unsynced(command_for(place.table_id, place.token, place.key))

    def _stored(self, place: Place, *, asks: bool = True) -> Acceptor:
        command = command_for(place.table_id, place.token, place.key)
        return state_in(self._engine.peek(command, asks=asks))

    def _note(self, place: Place, state: Acceptor) -> None:
        known = self._known
        known.pop(place, None)
        size = len(place.key) + sum([len(one.value) for one in (state.accepted, state.committed) if one])
        if size > BALLOT_STATE_BYTES_MAX:
            return
        if len(known) >= BALLOT_STATES_MAX:
            del known[next(iter(known))]
        known[place] = state

    def validate(self) -> None:
        assert len(self._known) <= BALLOT_STATES_MAX, "states make room for others"
        if self._known and self._rewrites == self._engine.rewrites:
            place, known = next(reversed(self._known.items()))
            stored = self._stored(place, asks=False)
            assert stored.accepted == known.accepted, "what was accepted is in the store"
            assert stored.committed == known.committed, "what is known as decided is in the store"
            assert stored.promised <= known.promised, "a promise was forgotten"


class ReservedTimes:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        #: An earlier run may have promised ballots up to this time without a trace.
        self.lost_us = self._reserved_before()
        #: The last time that was written, and the one that is durable.
        self._written_us = self.lost_us
        self._durable_us = 0

    def _reserved_before(self) -> int:
        try:
            kept = self._engine.local_fact(_RESERVED)
        except LockstepError:
            # It lies in a damaged block, which tables have others for. Nothing was reserved further ahead.
            return self._clock.wall_us() + BALLOTS_RESERVED_MS * 1000
        return 0 if kept is None else int.from_bytes(kept, "big")

    def wait_s(self) -> float:
        """For how long no ballot of this node's clock can be taken. When that is longer than what is ever
        reserved, the clock was set back, and nobody waits for that."""
        ahead_us = self.lost_us - self._clock.wall_us()
        return ahead_us / 1_000_000 if 0 < ahead_us <= BALLOTS_RESERVED_MS * 1000 else 0.0

    def above(self, state: Acceptor) -> Acceptor:
        """The state with all that may have been promised."""
        if not self.lost_us or state.promised.time_us > self.lost_us:
            return state
        return msgspec.structs.replace(state, promised=Ballot(self.lost_us, _LAST_DRAW))

    def reserve(self) -> tuple[int, int]:
        """(sequence, time): once the former is durable, so is that times up to the latter are reserved. A
        sequence of 0: nothing is due."""
        now_us = self._clock.wall_us()
        if now_us + BALLOTS_RESERVED_MS * 500 <= self._written_us:
            return 0, 0
        self._written_us = now_us + BALLOTS_RESERVED_MS * 1000
        sequence = self._engine.keep_local_fact(_RESERVED, self._written_us.to_bytes(8, "big"))
        return sequence, self._written_us

    def reserved(self, until_us: int) -> None:
        """It is durable."""
        self._durable_us = max(self._durable_us, until_us)

    def covers(self, ballot: Ballot) -> bool:
        """Whether the promise of a ballot needs not be durable."""
        return ballot.time_us <= self._durable_us

    def validate(self) -> None:
        assert self._durable_us <= self._written_us, "what is durable was written"
