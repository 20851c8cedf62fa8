"""The history checker rejects lost writes, reads that go back, resurrections and inventions."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.sim.checkers.registers import check_registers
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Change, Event, Look, Outcome
from lockstep.values.ids import Consistency

QUORUM, ONE, ALL = Consistency.QUORUM, Consistency.ONE, Consistency.ALL
ROWS = 2


def value(timestamp: int) -> bytes:
    return f"{timestamp}/c1".encode()


def put(
    at: int,
    end: int,
    timestamp: int,
    outcome: Outcome = Outcome.OK,
    level: Consistency = QUORUM,
    row: int = 0,
) -> Event:
    change = Change("t", b"k", timestamp, level, 1000, ((row, value(timestamp)),))
    return Event(client="c1", request=change, start_ns=at, end_ns=end, outcome=outcome)


def tie(event: Event, name: str) -> Event:
    """The same with the value of another client, or a read of it."""
    other = f"10/{name}".encode()
    if isinstance(event.request, Look):
        return msgspec.structs.replace(event, rows=((b"k", 0, other),))
    return msgspec.structs.replace(event, request=msgspec.structs.replace(event.request, puts=((0, other),)))


def delete(at: int, end: int, timestamp: int, outcome: Outcome = Outcome.OK) -> Event:
    change = Change("t", b"k", timestamp, QUORUM, 1000, delete_partition=True)
    return Event(client="c1", request=change, start_ns=at, end_ns=end, outcome=outcome)


def read(at: int, end: int, timestamp: int | None, level: Consistency = QUORUM) -> Event:
    rows = () if timestamp is None else ((b"k", 0, value(timestamp)),)
    look = Look("t", b"k", 0, level, 1000)
    return Event(client="c2", request=look, start_ns=at, end_ns=end, outcome=Outcome.OK, rows=rows)


SOUND = {
    "a write is read": [put(0, 1, 10), read(2, 3, 10)],
    "a concurrent write is seen": [put(0, 9, 10), read(2, 3, 10)],
    "a concurrent write is not seen": [put(0, 9, 10), read(2, 3, None)],
    "an unknown write appears later": [put(0, 1, 10, Outcome.UNKNOWN), read(2, 3, None), read(4, 5, 10)],
    "an older write comes late": [put(0, 1, 20), put(0, 9, 10), read(2, 3, 20)],
    "a weak write may be missed": [put(0, 1, 10, level=ONE), read(2, 3, None)],
    "a weak read may be old": [put(0, 1, 10), put(2, 3, 20), read(4, 5, 10, ONE)],
    "deleted": [put(0, 1, 10), delete(2, 3, 20), read(4, 5, None)],
    "an unknown deletion explains nothing": [
        put(0, 1, 10),
        delete(2, 3, 20, Outcome.UNKNOWN),
        read(4, 5, None),
    ],
    "the larger of two values wins": [put(0, 1, 10), tie(put(0, 1, 10), "c2"), tie(read(2, 3, 10), "c2")],
    "the larger value comes later": [
        put(0, 1, 10),
        tie(put(0, 9, 10), "c2"),
        read(2, 3, 10),
        tie(read(4, 5, 10), "c2"),
    ],
    "overlapping reads may differ": [put(0, 9, 10), read(1, 5, 10), read(2, 6, None)],
}
BROKEN = {
    "REP-1: .*timestamp 10 .*was there before": {
        "a lost write": [put(0, 1, 10), read(2, 3, None)],
        "a lost overwrite": [put(0, 1, 5), put(2, 3, 10), read(4, 5, 5)],
        "a read that goes back": [put(0, 1, 10, Outcome.UNKNOWN), read(2, 3, 10), read(4, 5, None)],
        "a failed deletion took effect": [put(0, 1, 10), delete(2, 3, 20, Outcome.FAILED), read(4, 5, None)],
        "a deletion of the future": [put(0, 1, 10), read(2, 3, None), delete(4, 5, 20)],
        "the smaller of two values wins": [tie(put(0, 1, 10), "c2"), put(0, 1, 10), read(2, 3, 10)],
        "a tie that turns around": [
            put(0, 1, 10),
            tie(put(0, 9, 10), "c2"),
            tie(read(2, 3, 10), "c2"),
            read(4, 5, 10),
        ],
        "a weak read after a write to all": [put(0, 1, 10, level=ALL), read(2, 3, None, ONE)],
    },
    "REP-3: .*timestamp 20": {
        "a resurrection": [put(0, 1, 10), delete(2, 3, 20), read(4, 5, 10)],
        "a resurrection after it was seen": [
            put(0, 1, 10),
            delete(2, 3, 20, Outcome.UNKNOWN),
            read(4, 5, None),
            read(6, 7, 10),
        ],
    },
    "never written": {
        "an invention": [put(0, 1, 10), read(2, 3, 11)],
        "a failed write is read": [put(0, 1, 10, Outcome.FAILED), read(2, 3, 10)],
        "a write of the future": [read(2, 3, 10), put(4, 5, 10)],
        "a value of another row": [put(0, 1, 10, row=1), put(0, 1, 5), read(2, 3, 10)],
    },
    "a row nobody wrote": {"a row out of nowhere": [put(0, 1, 10, row=1), read(2, 3, 10)]},
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_histories_pass(name: str) -> None:
    assert check_registers(SOUND[name], ROWS) >= 1


@pytest.mark.parametrize(
    ("message", "name"), [(message, name) for message in BROKEN for name in BROKEN[message]]
)
def test_broken_histories_are_refused(message: str, name: str) -> None:
    with pytest.raises(Violation, match=message):
        check_registers(BROKEN[message][name], ROWS)


def test_a_row_that_is_returned_twice_is_refused() -> None:
    twice = read(2, 3, 10)
    twice.rows = twice.rows * 2
    with pytest.raises(Violation, match="a row twice"):
        check_registers([put(0, 1, 10), twice], ROWS)


def test_rows_outside_the_question_are_refused() -> None:
    stray = read(2, 3, 10)
    stray.rows = (*stray.rows, (b"k", 1, value(10)))
    with pytest.raises(Violation, match="did not ask for"):
        check_registers([put(0, 1, 10), stray], ROWS)


LOCAL, EACH = Consistency.LOCAL_QUORUM, Consistency.EACH_QUORUM


def at(dc: str, event: Event, level: Consistency = LOCAL) -> Event:
    request = msgspec.structs.replace(event.request, consistency=level)
    return msgspec.structs.replace(event, dc=dc, request=request)


DCS_SOUND = {
    "another data centre may not have it yet": [at("a", put(0, 1, 10)), at("b", read(2, 3, None))],
    "a quorum of all need not be one of the data centre": [
        at("a", put(0, 1, 10), QUORUM),
        at("a", read(2, 3, None)),
    ],
    "nor the other way round": [at("a", put(0, 1, 10)), at("a", read(2, 3, None), QUORUM)],
    "each data centre has it": [at("a", put(0, 1, 10), EACH), at("b", read(2, 3, 10))],
    "a read of another data centre may be older": [
        at("a", put(0, 1, 10)),
        at("a", read(2, 3, 10)),
        at("b", read(4, 5, None)),
    ],
}
DCS_BROKEN = {
    "lost in its own data centre": [at("a", put(0, 1, 10)), at("a", read(2, 3, None))],
    "lost in one of each": [at("a", put(0, 1, 10), EACH), at("b", read(2, 3, None))],
    "lost though each was asked": [at("a", put(0, 1, 10)), at("b", read(2, 3, None), EACH)],
    "a quorum of each is one of all": [at("a", put(0, 1, 10), EACH), at("b", read(2, 3, None), QUORUM)],
    "lost by a quorum of all": [at("a", put(0, 1, 10), QUORUM), at("b", read(2, 3, None), QUORUM)],
    "goes back in one data centre": [
        at("a", put(0, 1, 10)),
        at("b", read(2, 3, 10)),
        at("b", read(4, 5, None)),
    ],
    "goes back after each was read": [
        at("a", put(0, 1, 10, Outcome.UNKNOWN)),
        at("a", read(2, 3, 10), EACH),
        at("b", read(4, 5, None)),
    ],
    "a weak read after a write to all": [
        at("a", put(0, 1, 10), ALL),
        at("b", read(2, 3, None), Consistency.LOCAL_ONE),
    ],
}


@pytest.mark.parametrize("name", DCS_SOUND)
def test_sound_histories_of_several_data_centres_pass(name: str) -> None:
    assert check_registers(DCS_SOUND[name], ROWS) >= 1


@pytest.mark.parametrize("name", DCS_BROKEN)
def test_broken_histories_of_several_data_centres_are_refused(name: str) -> None:
    with pytest.raises(Violation, match=r"timestamp 10 .*was there before"):
        check_registers(DCS_BROKEN[name], ROWS)


def test_a_weak_read_after_a_deletion_at_all_shows_nothing_that_was_deleted() -> None:
    gone = delete(2, 3, 20)
    gone = msgspec.structs.replace(gone, request=msgspec.structs.replace(gone.request, consistency=ALL))
    with pytest.raises(Violation, match=r"REP-3: .*timestamp 20"):
        check_registers([put(0, 1, 10), gone, read(4, 5, 10, ONE)], ROWS)
    old = read(4, 5, 10, ONE)
    assert check_registers([put(0, 1, 10), gone, old], ROWS, apart=[old])
