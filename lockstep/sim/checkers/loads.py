"""Judges bulk loads by what clients saw: each is whole or nothing, and hides no newer write.

Invariant: a load's rows of one partition are seen all or not at all; all once its client was told that it is
done, none when it ended without being committed. What was written with a newer time stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome


class Loading(msgspec.Struct):
    """A load of one client: the partitions it has rows of, how many in each. `told_ns`: when its client heard
    how it ended. FAILED: it is sure that it was not committed."""

    number: int
    job: str
    keys: tuple[bytes, ...]
    rows: int
    outcome: Outcome = Outcome.UNKNOWN
    told_ns: int = 0


class Live(msgspec.Struct):
    """A write of a row that loads write as well, with a newer time."""

    key: bytes
    outcome: Outcome
    told_ns: int


class Seen(msgspec.Struct):
    """What a QUORUM read of a partition found: rows by load, and whether the row is there that is written
    live (None: no such row) and by whom. `only`: it was asked by an index for the rows of that load alone."""

    key: bytes
    start_ns: int
    rows: Mapping[int, int]
    live: bool | None
    is_last: bool = False
    only: int | None = None


def check_loads(
    loads: Sequence[Loading], writes: Sequence[Live], seen: Sequence[Seen], committed: Mapping[str, bool]
) -> int:
    """How many answers were judged. `committed`: what the log says at the end of each load. Violation."""
    judged = 0
    for load in loads:
        is_committed = committed.get(load.job, False)
        if load.outcome is Outcome.OK and not is_committed:
            raise Violation("LOAD", f"load {load.number} was said to be done, and the log has no such load")
        if load.outcome is Outcome.FAILED and is_committed:
            raise Violation("LOAD", f"load {load.number} was said to have failed, and was committed")
        for look in seen:
            if look.key in load.keys and look.only in (None, load.number):
                _check_rows(load, look, is_committed)
                judged += 1
    for look in seen:
        if look.only is not None:
            continue
        before = [
            w for w in writes if w.key == look.key and w.outcome is Outcome.OK and w.told_ns < look.start_ns
        ]
        if before and look.live is not True:
            raise Violation(
                "LOAD",
                f"a newer write of {look.key.decode()} is hidden by an older one",
            )
    return judged


def _check_rows(load: Loading, look: Seen, is_committed: bool) -> None:
    found = look.rows.get(load.number, 0)
    if found not in (0, load.rows):
        raise Violation("LOAD", f"{found} of {load.rows} rows of load {load.number} are seen")
    done = load.outcome is Outcome.OK and load.told_ns < look.start_ns
    if not found and is_committed and (done or look.is_last):
        raise Violation("LOAD", f"nothing of load {load.number} is seen, which was done before")
    if found and not is_committed:
        raise Violation("LOAD", f"load {load.number} is seen, and was never committed")
