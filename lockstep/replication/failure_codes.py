"""Why replicas failed, as clients are told: the protocol's number for each failure.

Invariant: a failure without a number of its own is 0, unknown; whoever gave none is not named.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from lockstep.replication.plans import Target
from lockstep.values.errors import IndexNotAvailable, LockstepError, PeerTimeout, PeerUnreachable, StaleEpoch
from lockstep.values.failures import INCOMPATIBLE_SCHEMA, INDEX_NOT_AVAILABLE, NODE_DOWN, TIMEOUT, UNKNOWN
from lockstep.values.ids import NodeId

_BY_ERROR: Final[tuple[tuple[type[LockstepError], int], ...]] = (
    (PeerTimeout, TIMEOUT),
    (PeerUnreachable, NODE_DOWN),
    (StaleEpoch, INCOMPATIBLE_SCHEMA),
    (IndexNotAvailable, INDEX_NOT_AVAILABLE),
)


def failure_code(error: LockstepError) -> int:
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


def is_inet(host: str) -> bool:
    """Whether clients can be told of this address, which may be a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
