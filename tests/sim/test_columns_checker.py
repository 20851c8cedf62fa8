"""The checker of single columns: it refuses what goes back, by ties and by expiry too, and nothing else."""

from __future__ import annotations

import pytest

from lockstep.sim.checkers.columns import (
    EXPIRES,
    MARKER,
    STAYS,
    Place,
    Read,
    Seen,
    State,
    Wrote,
    check_columns,
)
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome
from lockstep.values.ids import Consistency

S = 1_000_000_000
A: Place = (b"k", 0, "a")
QUORUM = Consistency.QUORUM


def wrote(start_s: float, state: State, *, ttl_s: int = 0, ok: bool = True, place: Place = A) -> Wrote:
    return Wrote(
        client="w",
        text="",
        start_ns=int(start_s * S),
        end_ns=int((start_s + 0.1) * S),
        level=QUORUM,
        effects={place: state},
        ttl_s=ttl_s,
        outcome=Outcome.OK if ok else Outcome.UNKNOWN,
    )


def read(start_s: float, seen: Seen, place: Place = A) -> Read:
    return Read(
        client="r",
        text="",
        start_ns=int(start_s * S),
        end_ns=int((start_s + 0.1) * S),
        level=QUORUM,
        cells={place: seen},
    )


def check(writes: list[Wrote], reads: list[Read]) -> int:
    return check_columns(writes, reads, lambda at_ns: at_ns // S)


PUT = wrote(1.0, State(100, STAYS, 0, b"x"))
DELETED = wrote(2.0, State(100))
EXPIRING = wrote(1.0, State(100, EXPIRES, 3, b"a"), ttl_s=2)


def test_what_is_explained_passes() -> None:
    assert check([PUT], [read(0.5, Seen(None)), read(2.0, Seen(b"x", 100))]) == 2
    assert check([PUT, DELETED], [read(1.5, Seen(b"x", 100)), read(3.0, Seen(None))]) == 2
    assert check(
        [EXPIRING], [read(1.5, Seen(b"a", 100, 2)), read(2.95, Seen(b"a", 100, 1)), read(3.0, Seen(None))]
    )
    unknown = wrote(1.0, State(200, STAYS, 0, b"y"), ok=False)
    assert check([PUT, unknown], [read(2.0, Seen(b"x", 100)), read(3.0, Seen(b"y", 200))])
    marker = (b"k", 0, MARKER)
    assert check([wrote(1.0, State(5, STAYS), place=marker)], [read(2.0, Seen(b""), marker)])


@pytest.mark.parametrize(
    ("writes", "reads", "rule"),
    [
        ([PUT], [read(2.0, Seen(None))], "REP-1"),
        ([PUT], [read(2.0, Seen(b"x", 99))], "REP-1"),
        ([PUT, DELETED], [read(3.0, Seen(b"x", 100))], "REP-3"),
        ([PUT, EXPIRING], [read(2.0, Seen(b"x", 100))], "REP-1"),
        ([EXPIRING], [read(1.5, Seen(None))], "REP-1"),
        ([EXPIRING], [read(3.2, Seen(b"a", 100, 1))], "REP-1"),
        ([EXPIRING], [read(1.5, Seen(b"a", 100, 9))], "REP-1"),
        ([EXPIRING], [read(1.5, Seen(b"a", 100))], "REP-1"),
        ([], [read(1.5, Seen(b"a", 100))], "REP-1"),
        (
            [PUT, wrote(1.0, State(200, STAYS, 0, b"y"), ok=False)],
            [read(2.0, Seen(b"y", 200)), read(3.0, Seen(b"x", 100))],
            "REP-1",
        ),
    ],
)
def test_what_goes_back_is_refused(writes: list[Wrote], reads: list[Read], rule: str) -> None:
    with pytest.raises(Violation) as found:
        check(writes, reads)
    assert found.value.invariant == rule
