"""Who gives way to whom: how long what waits is passed by others.

Invariant: nothing that runs is ever interrupted for something that waits: only an operator's cancel, or its
own work that cannot succeed, sends it back. Between two of its steps a change of replication rests in the
queue for what mends a dead node and may begin then. What waits is passed by what its kind lets go before it,
and by what may begin while it may not; but not for ever: a kind that `is_held_back` does not begin while an
earlier request has been passed too often.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.requests import Request
from lockstep.values.limits import REQUESTS_PASSED_MAX


def is_passed_over(cluster: ClusterMetadata, waiting: Request) -> bool:
    """Whether so many requests that were asked for later have begun before it that it is its turn now."""
    requests = cluster.requests
    passed = sum(1 for other in requests.live if other.id > waiting.id and other.began_epoch)
    passed += sum(1 for other in requests.ended if other.id > waiting.id and other.began_epoch)
    return passed >= REQUESTS_PASSED_MAX
