"""Who gives way to whom: the order of the queue, and what may interrupt what, as one table.

Invariant: every kind of request has a row. Nothing that runs is ever interrupted for something that waits:
only an operator's cancel, or its own work that cannot succeed, sends it back. Between two of its steps a
change of replication rests in the queue for what mends a dead node and may begin then. What waits is passed
by what goes before it, and by what may begin while it may not; but not for ever (see `is_passed_over`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import OperationKind
from lockstep.metadata.requests import PRIORITY, Request
from lockstep.values.limits import REQUESTS_PASSED_MAX


class Precedence(msgspec.Struct, frozen=True):
    """`is_held_back`: it does not begin while an earlier one has been passed too often. `why`: why it stands
    where it does, for people. `scope`: a node's request, or a global one, beside which no ring operation
    runs."""

    kind: OperationKind
    is_held_back: bool
    why: str
    scope: str = "node"


#: In the order of the queue, first what goes first.
TABLE: tuple[Precedence, ...] = (
    Precedence(OperationKind.REPLACE, False, "the dead node's ranges lack a copy until it is done"),
    Precedence(OperationKind.BOOTSTRAP, True, "more room and copies first, so that what leaves after may"),
    Precedence(OperationKind.REMOVE, False, "the dead node's ranges lack a copy until it is done"),
    Precedence(OperationKind.DECOMMISSION, True, "a node that lives serves until it may leave"),
    Precedence(OperationKind.MOVE, True, "only the balance changes"),
    Precedence(OperationKind.REBUILD, True, "nobody's ranges change"),
    Precedence(OperationKind.REPLICATION, True, "it needs the ring to itself, and may take long", "global"),
)

BY_KIND: Mapping[OperationKind, Precedence] = {row.kind: row for row in TABLE}

assert tuple(row.kind.value for row in TABLE) == PRIORITY, "the table is in the order of the queue"


def is_passed_over(cluster: ClusterMetadata, waiting: Request) -> bool:
    """Whether so many requests that were asked for later have begun before it that it is its turn now."""
    requests = cluster.requests
    passed = sum(1 for other in requests.live if other.id > waiting.id and other.began_epoch)
    passed += sum(1 for other in requests.ended if other.id > waiting.id and other.began_epoch)
    return passed >= REQUESTS_PASSED_MAX
