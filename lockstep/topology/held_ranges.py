"""Finding without a plan that a request wants ranges that a running operation holds.

Invariant: sound, not complete. The owner of a token is a replica of the range that ends there, wherever its
data centre has replicas at all; so who joins with it, leaves, replaces or rebuilds it changes that range.
What is not found here, a plan finds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, OperationKind
from lockstep.metadata.requests import Request
from lockstep.placement.quorums import dc_factors
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class HeldRanges:
    """The locked ranges of one metadata value, to be asked about many requests."""

    def __init__(self, cluster: ClusterMetadata) -> None:
        self._cluster = cluster
        held: dict[tuple[int, Replication], list[Range]] = {}
        for lock in cluster.locks:
            for replication, range_ in lock.ranges:
                held.setdefault((lock.operation_id, replication), []).append(range_)
        self._held = [
            (operation_id, replication, [range_.right for range_ in ranges], ranges)
            for (operation_id, replication), ranges in held.items()
        ]

    def holder(self, request: Request) -> tuple[Operation, str] | None:
        """An operation that holds a range the request wants, and the refusal a plan would end with."""
        node, tokens = self._wanted(request)
        if not tokens:
            return None
        dc = self._cluster.directory.dc_by_id.get(node, "")
        for operation_id, replication, rights, ranges in self._held:
            factors = dict(dc_factors(replication))
            if factors and not factors.get(dc):
                continue
            for token in tokens:
                at = bisect_left(rights, token)
                if at < len(ranges) and ranges[at].left < token:
                    operation, found = self._cluster.operations_by_id[operation_id], ranges[at]
                    where = f"range ({found.left}, {found.right}] of {replication.strategy}"
                    return operation, f"{operation.title()} holds {where}"
        return None

    def _wanted(self, request: Request) -> tuple[NodeId, Sequence[int]]:
        """A node and tokens the ranges at whose ends the request surely changes; a move may keep some."""
        by_id = self._cluster.directory.by_id
        if request.kind is OperationKind.BOOTSTRAP:
            return request.node, request.tokens
        if request.kind is OperationKind.REPLACE and request.replaced in by_id:
            return request.replaced, by_id[request.replaced].tokens
        leaves = (OperationKind.DECOMMISSION, OperationKind.REMOVE, OperationKind.REBUILD)
        if request.kind in leaves and request.node in by_id:
            return request.node, by_id[request.node].tokens
        return request.node, ()
