"""What replicas scanned for one read, against the node's thresholds.

Invariant: a read that made a replica scan more tombstones than the failure threshold is not answered, however
many rounds it took; one above the warning threshold is noted for its client.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep.quorum.failure_codes import is_inet
from lockstep.quorum.plans import Plan
from lockstep.quorum.request_trace import REQUEST_TRACE
from lockstep.quorum.round import Target
from lockstep.replica.messages import ReadReply
from lockstep.values.errors import ReadFailure
from lockstep.values.ids import TOO_MANY_TOMBSTONES, NodeId


class Thresholds(msgspec.Struct, frozen=True):
    """Tombstones that one read may scan on one replica; 0 for no bound."""

    tombstone_warn: int = 0
    tombstone_failure: int = 0


class Scanned:
    """Sums of one read over its rounds."""

    __slots__ = ("_by_node", "_thresholds")

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._by_node: dict[NodeId, int] = {}

    def add(self, plan: Plan, answers: Iterable[tuple[Target, ReadReply]]) -> None:
        """ReadFailure when any replica has scanned too many by now."""
        by_node = self._by_node
        for target, reply in answers:
            by_node[target.node] = by_node.get(target.node, 0) + reply.dead
        warn, failure = self._thresholds.tombstone_warn, self._thresholds.tombstone_failure
        notes = REQUEST_TRACE.get()
        if notes is not None and warn:
            for node, dead in by_node.items():
                if dead > warn:
                    notes.dead_by_node[node] = max(dead, notes.dead_by_node.get(node, 0))
        over = {node: dead for node, dead in by_node.items() if dead > failure > 0}
        if not over:
            return
        if notes is not None:
            notes.overwhelmed.update(over)
        answered = [target.node for target, _ in answers if target.node not in over]
        reasons = tuple(
            (target.address[0], TOO_MANY_TOMBSTONES)
            for target, _ in answers
            if target.node in over and is_inet(target.address[0])
        )
        raise ReadFailure(
            plan.consistency, plan.counted(answered), plan.required, len(over), bool(answered), reasons
        )
