"""What acceptors keep in memory is what their disk has, and no promise is forgotten that was not reserved."""

from __future__ import annotations

import pytest

from lockstep.consensus import paxos
from lockstep.consensus.paxos import NO_BALLOT, Acceptor, Ballot, Proposal
from lockstep.replica.ballot_states import BallotStates, ReservedTimes
from lockstep.replica.messages import Place
from lockstep.values.errors import CorruptFile
from lockstep.values.node_limits import BALLOT_STATE_BYTES_MAX, BALLOT_STATES_MAX, BALLOTS_RESERVED_MS
from lockstep.values.rows import Mutation, Partition, ReadCommand, ReadResult

_RESERVED_US = BALLOTS_RESERVED_MS * 1000
_NOW_US = 1_700_000_000_000_000


class _Clock:
    def __init__(self) -> None:
        self.now_us = _NOW_US

    def wall_us(self) -> int:
        return self.now_us

    def monotonic_s(self) -> float:
        return self.now_us / 1e6


class _Engine:
    """Keeps rows as they were written last, and counts who looks."""

    def __init__(self) -> None:
        self.rewrites = 0
        self.peeks = 0
        #: Whether those who looked asked for what was found to be merged.
        self.asks: list[bool] = []
        self.rows: dict[tuple[int, bytes], Mutation] = {}
        self.facts: dict[bytes, bytes] = {}
        self._sequence = 0

    def apply(self, mutation: Mutation) -> int:
        self.rows[mutation.table_id, mutation.key] = mutation
        self._sequence += 1
        return self._sequence

    def peek(self, command: ReadCommand, *, asks: bool = True) -> ReadResult:
        self.peeks += 1
        self.asks.append(asks)
        assert command.key is not None
        found = self.rows.get((command.table_id, command.key))
        if found is None:
            return ReadResult((), False)
        return ReadResult((Partition(found.token, found.key, rows=found.rows),), False)

    def unsynced(self, command: ReadCommand) -> int:
        return self._sequence

    def local_fact(self, name: bytes) -> bytes | None:
        return self.facts.get(name)

    def keep_local_fact(self, name: bytes, value: bytes) -> int:
        self.facts[name] = value
        self._sequence += 1
        return self._sequence


def _place(number: int = 1) -> Place:
    return Place(7, number, number.to_bytes(4, "big"))


def _states(engine: _Engine) -> BallotStates:
    return BallotStates(engine, _Clock(), lambda: b"\x01" * 14)


def test_a_state_that_is_known_is_not_read_again_and_is_what_the_store_has() -> None:
    engine = _Engine()
    states = _states(engine)
    before = states.of(_place())
    after, promised = paxos.prepare(before, Ballot(5, 1))
    assert promised and before == Acceptor()
    states.keep(_place(), before, after)
    states.validate()
    engine.peeks = 1
    assert states.of(_place()) == after and engine.peeks == 1
    assert _states(engine).of(_place()) == after and engine.peeks == 2


def test_what_came_or_went_in_another_way_is_read() -> None:
    engine = _Engine()
    states = _states(engine)
    states.keep(_place(), Acceptor(), Acceptor(Ballot(5, 1)))
    engine.rows.clear()
    engine.rewrites += 1
    assert states.of(_place()) == Acceptor() and engine.peeks == 1
    assert states.of(_place()) == Acceptor() and engine.peeks == 1, "once for a rewrite"
    assert engine.asks == [True]
    states.validate()
    assert engine.asks == [True, False], "who only checks has nothing merged"


def test_what_is_known_is_held_against_the_store_until_that_was_rewritten() -> None:
    engine = _Engine()
    states = _states(engine)
    accepted = Acceptor(Ballot(5, 1), Proposal(Ballot(5, 1), Ballot(5, 1), b"v"))
    states.keep(_place(), Acceptor(), accepted)
    states.validate()
    engine.rows.clear()
    with pytest.raises(AssertionError, match="what was accepted"):
        states.validate()
    engine.rewrites += 1
    states.validate()


def test_states_in_memory_are_bounded_in_number_and_size() -> None:
    engine = _Engine()
    states = _states(engine)
    for number in range(BALLOT_STATES_MAX + 1):
        states.keep(_place(number), Acceptor(), Acceptor(Ballot(5, 1)))
    states.validate()
    engine.peeks = 0
    states.of(_place(BALLOT_STATES_MAX))
    assert not engine.peeks
    states.of(_place(0))
    assert engine.peeks == 1, "the oldest made room"
    large = Proposal(Ballot(6, 1), Ballot(6, 1), b"x" * BALLOT_STATE_BYTES_MAX)
    states.keep(_place(1), Acceptor(Ballot(5, 1)), Acceptor(Ballot(6, 1), large))
    states.of(_place(1))
    assert engine.peeks == 2


def test_a_promise_needs_no_sync_within_times_that_are_reserved_durably() -> None:
    engine, clock = _Engine(), _Clock()
    times = ReservedTimes(engine, clock)
    ballot = Ballot(_NOW_US, 1)
    sequence, until_us = times.reserve()
    assert sequence and until_us == _NOW_US + _RESERVED_US and not times.covers(ballot)
    assert times.reserve() == (0, 0), "it is on its way"
    times.reserved(until_us)
    assert times.covers(ballot) and times.covers(Ballot(until_us, 1))
    assert not times.covers(Ballot(until_us + 1, 1)), "a clock that is ahead"
    clock.now_us += _RESERVED_US // 2
    assert times.reserve() == (0, 0), "half of it is left"
    clock.now_us += 1
    assert times.reserve()[1] == clock.now_us + _RESERVED_US, "before the rest is used up"
    times.validate()


def test_after_a_restart_nothing_is_taken_that_may_be_older_than_a_promise() -> None:
    engine, clock = _Engine(), _Clock()
    ReservedTimes(engine, clock).reserve()
    again = ReservedTimes(engine, clock)
    state = again.above(Acceptor())
    assert again.wait_s() == BALLOTS_RESERVED_MS / 1000
    for time_us in (_NOW_US, _NOW_US + _RESERVED_US):
        proposal = Proposal(Ballot(time_us, 1 << 62), Ballot(time_us, 1 << 62), b"late")
        assert paxos.accept(state, proposal) == (state, False)
        assert paxos.prepare(state, proposal.ballot) == (state, False)
    later = Ballot(_NOW_US + _RESERVED_US + 1, 0)
    assert paxos.prepare(state, later)[1] and not again.covers(later)
    assert again.above(Acceptor(later)) == Acceptor(later)
    clock.now_us += _RESERVED_US
    assert not again.wait_s()
    clock.now_us -= 2 * _RESERVED_US
    assert not again.wait_s(), "the clock was set back"


def test_a_time_in_a_damaged_block_counts_as_reserved_as_far_ahead_as_any() -> None:
    engine, clock = _Engine(), _Clock()

    def damaged(name: bytes) -> bytes | None:
        raise CorruptFile("store/000009.sst", 0, "block checksum mismatch")

    engine.local_fact = damaged  # type: ignore[method-assign]
    times = ReservedTimes(engine, clock)
    assert times.lost_us == _NOW_US + _RESERVED_US and not times.covers(Ballot(_NOW_US, 1))
    clock.now_us += _RESERVED_US
    assert times.reserve()[0], "it is written anew"


def test_a_node_that_promised_nothing_has_no_floor() -> None:
    times = ReservedTimes(_Engine(), _Clock())
    assert times.above(Acceptor()) == Acceptor() and Acceptor().promised == NO_BALLOT
