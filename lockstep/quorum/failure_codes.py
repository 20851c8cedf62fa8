"""Why replicas failed, as clients are told: the protocol's number for each failure.

Invariant: a failure without a number of its own is 0, unknown, and its words say what it was; whoever gave
none is not named.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from lockstep.internode.repeated_log import RepeatedLog
from lockstep.quorum.refusals import STALE_AFTERWARDS, STALE_PLACEMENT
from lockstep.quorum.round import Target
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
