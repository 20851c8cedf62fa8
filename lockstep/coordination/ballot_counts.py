"""How conditional requests ended: counts of outcomes, of how long they took, and how often others were first.

Invariant: a request is counted once, when it ends; counts only grow.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from lockstep.values.errors import ConditionalUnknown, LockstepError, ReadTimeout, Unavailable, WriteTimeout

#: Decided, or answered where nothing is decided.
DONE: Final = "done"
NOT_MET: Final = "condition_not_met"
TIMEOUT: Final = "timeout"
UNKNOWN: Final = "unknown"
UNAVAILABLE: Final = "unavailable"
#: Refused, or replicas said that they cannot.
FAILED: Final = "failed"
ABANDONED: Final = "abandoned"
OUTCOMES: Final = (DONE, NOT_MET, TIMEOUT, UNKNOWN, UNAVAILABLE, FAILED, ABANDONED)
#: Upper bounds in seconds: from a round on one machine to the end of a client's patience.
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
#: Upper bounds of how often one request was beaten by others.
BOUNDS_BEATEN: Final = (0, 1, 2, 4, 8, 16, 32)


class ConditionalCounts:
    """Of writes, or of reads. Lists have one more element than their bounds: what is above all of them."""

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.took = [0] * (len(BOUNDS_S) + 1)
        self.took_s = 0.0
        self.beaten = [0] * (len(BOUNDS_BEATEN) + 1)
        self.beaten_total = 0
        #: Proposals of others that requests found in progress, and finished.
        self.finished = 0

    def note(self, outcome: str, took_s: float, beaten: int) -> None:
        self.outcomes[outcome] += 1
        self.took[bisect_left(BOUNDS_S, took_s)] += 1
        self.took_s += took_s
        self.beaten[bisect_left(BOUNDS_BEATEN, beaten)] += 1
        self.beaten_total += beaten

    def validate(self) -> None:
        ended = sum(self.outcomes.values())
        assert ended == sum(self.took) == sum(self.beaten), "a request is counted once"


def outcome_of(error: LockstepError) -> str:
    """How a request ended that raised this."""
    if isinstance(error, ConditionalUnknown):
        return UNKNOWN
    if isinstance(error, WriteTimeout | ReadTimeout):
        return TIMEOUT
    return UNAVAILABLE if isinstance(error, Unavailable) else FAILED
