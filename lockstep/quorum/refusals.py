"""Why a replica does not take a request as it comes, and what that cost: the names, and how often.

Invariant: every refusal of the request path has one of these reasons, is counted once under it, and passes
the probe `replica.<write or read>.<reason>`; the tables of names are made once.
"""

from __future__ import annotations

from typing import Final

from lockstep.runtime.ports import Probes

#: The replica group of the token or range changed after the plan was made.
STALE_PLACEMENT: Final = "stale_placement"
#: It changed while the write was executed: what was applied stays, and is not acknowledged.
STALE_AFTERWARDS: Final = "stale_afterwards"
STALE_TABLE: Final = "stale_table"
STALE_KEYSPACE: Final = "stale_keyspace"
#: The table was dropped after the plan was made.
STALE_DROPPED: Final = "stale_dropped"
#: Sender and replica are at one epoch, or the replica is behind, and there is no such table here.
UNKNOWN_TABLE: Final = "unknown_table"
NOT_REPLICA: Final = "not_replica"
#: The replica is behind in something that matters, and what it lacks did not arrive.
CATCH_UP_FAILED: Final = "catch_up_failed"

REASONS: Final = (
    STALE_PLACEMENT,
    STALE_AFTERWARDS,
    STALE_TABLE,
    STALE_KEYSPACE,
    STALE_DROPPED,
    UNKNOWN_TABLE,
    NOT_REPLICA,
    CATCH_UP_FAILED,
)
WRITE: Final = "write"
READ: Final = "read"
#: (kind of request, reason) -> the probe that tells of it.
LABELS: Final = {
    (kind, reason): f"replica.{kind}.{reason}"
    for kind in (WRITE, READ)
    for reason in REASONS
    # A read that was overtaken left nothing behind, so it is refused as one that comes late.
    if (kind, reason) != (READ, STALE_AFTERWARDS)
}


class Refusals:
    """`counts` by reason, all of them from the start; `waits` are requests that had to wait for a catch-up.

    Both only grow.
    """

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self.counts: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.waits = 0

    def waiting(self, kind: str) -> None:
        self.waits += 1
        self._probes.reach(f"replica.{kind}.waits")

    def refused(self, kind: str, reason: str) -> None:
        self.counts[reason] += 1
        self._probes.reach(LABELS[kind, reason])
