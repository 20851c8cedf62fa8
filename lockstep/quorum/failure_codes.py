"""Why a replica does not take a request as it comes, why replicas failed, as clients are told by the
protocol's numbers, and what that cost.

Invariant: a failure without a number of its own is 0, unknown, and its words say what it was; whoever gave
none is not named. Every refusal of the request path has one of these reasons, is counted once under it, and
passes the probe `replica.<write or read>.<reason>`; the tables of names are made once.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from lockstep.internode.repeated_log import RepeatedLog
from lockstep.quorum.round import Target
from lockstep.runtime.ports import Probes
from lockstep.values.errors import (
    IndexNotAvailable,
    LockstepError,
    NodeExcluded,
    NotReplica,
    PeerError,
    PeerTimeout,
    PeerUnreachable,
    RequestError,
    StaleEpoch,
)
from lockstep.values.ids import (
    COORDINATOR_BEHIND,
    INCOMPATIBLE_SCHEMA,
    INDEX_NOT_AVAILABLE,
    INVALID_ROUTING,
    NAMES,
    NODE_DOWN,
    TIMEOUT,
    UNKNOWN,
    NodeId,
)
from lockstep.values.node_limits import CAUSE_CHARACTERS_MAX

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
        assert kind in (WRITE, READ), "probes are named for these two"
        self.waits += 1
        self._probes.reach(f"replica.{kind}.waits")

    def refused(self, kind: str, reason: str) -> None:
        self.counts[reason] += 1
        self._probes.reach(LABELS[kind, reason])


_BY_ERROR: Final[tuple[tuple[type[LockstepError], int], ...]] = (
    (PeerTimeout, TIMEOUT),
    (PeerUnreachable, NODE_DOWN),
    (StaleEpoch, INCOMPATIBLE_SCHEMA),
    (IndexNotAvailable, INDEX_NOT_AVAILABLE),
    (NotReplica, INVALID_ROUTING),
    (NodeExcluded, INVALID_ROUTING),
)


TimedOut = TypeVar("TimedOut", bound=RequestError)


def failure_code(error: LockstepError) -> int:
    if isinstance(error, StaleEpoch) and error.reason in (STALE_PLACEMENT, STALE_AFTERWARDS):
        return COORDINATOR_BEHIND
    for kind, code in _BY_ERROR:
        if isinstance(error, kind):
            return code
    return UNKNOWN


def reasons_of(
    targets: Iterable[Target], failures: Mapping[NodeId, LockstepError]
) -> tuple[tuple[str, int], ...]:
    """(address, code) of each failed replica whose address is a number, in the order of the targets."""
    return tuple(
        (target.address[0], failure_code(failures[target.node]))
        for target in targets
        if target.node in failures and is_inet(target.address[0])
    )


def causes_of(targets: Iterable[Target], failures: Mapping[NodeId, LockstepError]) -> str:
    """`REASON from /address (CODE: sentence), ...` of each failed replica, in the order of the targets."""
    told = []
    for target in targets:
        error = failures.get(target.node)
        if error is None:
            continue
        cause = f"{error.code}: {error.message}"
        if len(cause) > CAUSE_CHARACTERS_MAX:
            cause = f"{cause[:CAUSE_CHARACTERS_MAX]}…"
        told.append(f"{NAMES[failure_code(error)]} from /{target.address[0]} ({cause})")
    return ", ".join(told)


def late(
    error: TimedOut, targets: Iterable[Target], failures: Mapping[NodeId, LockstepError] | None
) -> TimedOut:
    """The timeout, saying also which replicas failed meanwhile: that they are silent it says already."""
    if failures:
        found = {node: one for node, one in failures.items() if not isinstance(one, PeerTimeout)}
        causes = causes_of(targets, found)
        if causes:
            error.message = f"{error.message} Failures: {causes}"
    return error


def note_refusal(log: RepeatedLog, kind: str, target: Target, error: LockstepError) -> None:
    """A replica refused a request of this coordinator, or failed at it; `kind` is that of the request. Broken
    connections are logged where they break."""
    if isinstance(error, PeerError):
        return

    def facts() -> dict[str, object]:
        return {
            "kind": kind,
            "node": target.node,
            "address": target.address[0],
            "code": error.code,
            "reason": error.message,
        }

    log.note("replica.refused", kind, target.node, error.code, facts=facts)


def is_inet(host: str) -> bool:
    """Whether clients can be told of this address, which may be a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
