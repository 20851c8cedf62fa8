"""REP-1 of counters: what is counted is counted once.

Invariant of a counter with changes at quorum and reads at quorum: a read shows every change that was
acknowledged before it began, and nothing that was not asked for before it ended; a change whose outcome is
unknown may have counted, once; a refused one never has.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome


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
