"""The checker of whole mutations: histories that it passes, and torn ones that it must refuse."""

from __future__ import annotations

import pytest

from lockstep.sim.checkers.tracked import check_whole
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Change, Event, Look, Outcome
from lockstep.values.ids import Consistency

QUORUM, ONE = Consistency.QUORUM, Consistency.ONE


def wrote(at_us: int, *rows: int, start: int = 0, delete_row: int | None = None) -> Event:
    puts = tuple((row, b"%d" % at_us) for row in rows)
    change = Change("t", b"k", at_us, QUORUM, 1000, puts, delete_row)
    return Event(client="w", request=change, start_ns=start, end_ns=start + 1, outcome=Outcome.UNKNOWN)


def read(seen: dict[int, int], level: Consistency = QUORUM, page_rows: int = 100) -> Event:
    look = Look("t", b"k", None, level, 1000, page_rows)
    rows = tuple((b"k", row, b"%d" % value) for row, value in seen.items())
    return Event(client="r", request=look, start_ns=10, end_ns=20, outcome=Outcome.OK, rows=rows)


SOUND = {
    "whole": [wrote(5, 1, 2), read({1: 5, 2: 5})],
    "not at all": [wrote(5, 1, 2), read({})],
    "newer in its place": [wrote(5, 1, 2), wrote(6, 2), read({1: 5, 2: 6})],
    "deleted since": [wrote(5, 1, 2), wrote(6, start=15, delete_row=2), read({1: 5})],
}
TORN = {
    "half": [wrote(5, 1, 2), read({1: 5})],
    "half of it over what was older": [wrote(4, 2), wrote(5, 1, 2), read({1: 5, 2: 4})],
    "deleted before it": [wrote(5, 1, 2), wrote(4, delete_row=2), read({1: 5})],
    "deleted after the read": [wrote(5, 1, 2), wrote(6, start=30, delete_row=2), read({1: 5})],
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_seen_whole_passes(name: str) -> None:
    assert check_whole(SOUND[name]) == 1


@pytest.mark.parametrize("name", TORN)
def test_what_is_torn_is_refused(name: str) -> None:
    with pytest.raises(Violation, match="REP-2b"):
        check_whole(TORN[name])


def test_reads_of_one_replica_and_of_several_pages_are_not_judged() -> None:
    assert check_whole([wrote(5, 1, 2), read({1: 5}, ONE)]) == 0
    assert check_whole([wrote(5, 1, 2), read({1: 5}, page_rows=1)]) == 0
