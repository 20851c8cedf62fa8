"""How long metadata changes that were submitted at this node took, by how they ended.

Invariant: a submission is counted once, when it ends, whichever node judged it; counts only grow.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.values.errors import InvalidRequest, OutcomeUnknown, Rejected

ACCEPTED: Final = "accepted"
REJECTED: Final = "rejected"
UNKNOWN: Final = "unknown"
#: No voter could be asked: nothing was done, and nothing was judged.
UNREACHED: Final = "unreached"
OUTCOMES: Final = (ACCEPTED, REJECTED, UNKNOWN, UNREACHED)
#: Upper bounds in seconds: from a commit on one fast disk to the end of a client's patience.
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Times(msgspec.Struct):
    """`counts` has one more element than BOUNDS_S: those that took longer than all of them."""

    counts: list[int]
    total_s: float = 0.0


class CommitTimes:
    def __init__(self) -> None:
        self.by_outcome = {outcome: Times([0] * (len(BOUNDS_S) + 1)) for outcome in OUTCOMES}

    def note(self, outcome: str, took_s: float) -> None:
        times = self.by_outcome[outcome]
        at = next((at for at, bound in enumerate(BOUNDS_S) if took_s <= bound), len(BOUNDS_S))
        times.counts[at] += 1
        times.total_s += took_s


def outcome_of(error: BaseException) -> str:
    """How a submission ended that raised this; one that its caller gave up may be in the log."""
    if isinstance(error, Rejected | InvalidRequest):
        return REJECTED
    if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
        return UNKNOWN
    return UNREACHED
