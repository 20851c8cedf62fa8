"""How much each operation has moved, as its nodes reported it to the coordinator.

What a stage brought is counted in the metadata when the stage ends. Until then each receiving node reports
what it has made durable, so that any coordinator comes to the same sum.

Invariant: the bytes told of an operation never become less, whatever stage it is in, whichever node reports
next, however often one begins anew and whoever coordinates: a new coordinator tells none until every
receiving node has reported to it. They stay after the operation has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation
from lockstep.metadata.requests import Request
from lockstep.node.log.messages import WorkStatus
from lockstep.topology.kind import stage_row
from lockstep.topology.planning import streaming_session
from lockstep.topology.stages import STREAMING
from lockstep.topology.step import WorkKey, receivers
from lockstep.values.ids import NodeId

#: Operations of which it is kept: more than the requests that the metadata keeps after their end.
OPERATIONS_KEPT_MAX: Final = 256
_COUNTS: Final = ("moved_bytes", "moved_fragments", "files_done", "ranges_done", "tables_done")
_TOTALS: Final = ("total_bytes", "files_total", "ranges_total", "tables_total")


class Amount(msgspec.Struct, frozen=True):
    """What was moved."""

    bytes: int = 0
    fragments: int = 0

    def most(self, other: Amount) -> Amount:
        return Amount(max(self.bytes, other.bytes), max(self.fragments, other.fragments))


class _Session:
    """What one stage's streams have brought, as this coordinator heard."""

    def __init__(self, expected: frozenset[NodeId]) -> None:
        """`expected`: who takes something in."""
        self.expected = expected
        self.by_node: dict[NodeId, Amount] = {}
        #: Who reported in the term of `term`.
        self.heard: set[NodeId] = set()
        self.term: int | None = None

    def in_term(self, term: int | None) -> _Session:
        if term != self.term:
            self.term = term
            self.heard.clear()
        return self

    @property
    def total(self) -> Amount:
        amounts = self.by_node.values()
        return Amount(sum(one.bytes for one in amounts), sum(one.fragments for one in amounts))


class Moved:
    """`term()` is that in which this node coordinates; None while it does not."""

    def __init__(self, term: Callable[[], int | None]) -> None:
        self._term = term
        self._parts: dict[int, dict[WorkKey, WorkStatus]] = {}
        self._sessions: dict[str, _Session] = {}

    # -- what stages bring --------------------------------------------------------------------------

    def applied(self, before: ClusterMetadata, after: ClusterMetadata, term: int) -> None:
        """Of a stage that begins by an entry of this coordinator's own term nobody else told anything."""
        if before.operations is after.operations or term != self._term():
            return
        for operation in after.operations:
            begins = operation.stage_epoch == after.epoch
            if begins and stage_row(operation).work in STREAMING:
                session = self._session(operation, after)
                session.heard |= session.expected

    def heard(self, operation: Operation, cluster: ClusterMetadata, key: WorkKey, said: WorkStatus) -> None:
        """A report of one node's part of the present stage."""
        if key[1] != operation.session_id or not streaming_session(operation) or said.taken_bytes < 0:
            return
        session = self._session(operation, cluster)
        now = Amount(said.taken_bytes, said.taken_fragments)
        session.by_node[key[2]] = session.by_node.get(key[2], now).most(now)
        session.heard.add(key[2])

    def uncounted(self, operation: Operation, cluster: ClusterMetadata) -> Amount:
        """What the present stage's streams brought as far as it is known here: for the entry that ends it."""
        return self._session(operation, cluster).total if streaming_session(operation) else Amount()

    def told(self, request: Request, cluster: ClusterMetadata) -> Amount | None:
        """What the operations of a request have moved; None while this node cannot tell."""
        counted = Amount(request.moved_bytes, request.moved_fragments)
        operation = cluster.operations_by_id.get(request.operation_id)
        if operation is None or not streaming_session(operation):
            return counted
        if self._term() is None:
            return None
        session = self._session(operation, cluster)
        if not session.expected <= session.heard:
            return None
        now = session.total
        return Amount(counted.bytes + now.bytes, counted.fragments + now.fragments)

    def _session(self, operation: Operation, cluster: ClusterMetadata) -> _Session:
        name = streaming_session(operation)
        found = self._sessions.get(name)
        if found is None:
            found = self._sessions[name] = _Session(receivers(operation, cluster))
            while len(self._sessions) > OPERATIONS_KEPT_MAX:
                del self._sessions[next(iter(self._sessions))]
        return found.in_term(self._term())

    # -- how far parts are --------------------------------------------------------------------------

    def note(self, key: WorkKey, said: WorkStatus) -> WorkStatus:
        """A report of one node's part of a stage's work; the part as it stands with it."""
        parts = self._parts.setdefault(key[0], {})
        before = parts.get(key, said)
        counts = {name: max(getattr(before, name), getattr(said, name)) for name in _COUNTS}
        totals = {name: getattr(said, name) or getattr(before, name) for name in _TOTALS}
        if totals["total_bytes"]:
            # An estimate is corrected by what there was.
            totals["total_bytes"] = max(totals["total_bytes"], counts["moved_bytes"])
        parts[key] = now = msgspec.structs.replace(said, **counts, **totals)
        while len(self._parts) > OPERATIONS_KEPT_MAX:
            del self._parts[next(iter(self._parts))]
        return now

    def parts(self, operation_id: int) -> WorkStatus | None:
        """The sum of what all nodes have said of their parts in all stages; None when nobody did."""
        parts = self._parts.get(operation_id)
        return _sum(parts.values()) if parts else None

    def of(self, request: Request, cluster: ClusterMetadata) -> WorkStatus | None:
        """How far a request is; None when nothing is known. The bytes are those of `told`, 0 without it."""
        amount, found = self.told(request, cluster), self.parts(request.operation_id)
        if found is None and amount in (None, Amount()):
            return None
        found = found if found is not None else WorkStatus("done")
        if amount is None:
            return msgspec.structs.replace(found, moved_bytes=0, moved_fragments=0, total_bytes=0)
        left_bytes = max(0, found.total_bytes - found.moved_bytes)
        return msgspec.structs.replace(
            found,
            moved_bytes=amount.bytes,
            moved_fragments=amount.fragments,
            total_bytes=max(found.total_bytes, amount.bytes + left_bytes) if found.total_bytes else 0,
        )


def _sum(parts: Iterable[WorkStatus]) -> WorkStatus:
    listed = list(parts)
    running = [part for part in listed if part.state == "running"]
    sums = {name: sum(getattr(part, name) for part in listed) for name in (*_COUNTS, *_TOTALS)}
    # Two nodes that fill the same tables do not have twice as many.
    if sum(1 for part in listed if part.tables_total) > 1:
        sums |= {"tables_done": 0, "tables_total": 0}
    # Parts of a stage go on beside each other.
    left = [part.left_s for part in running]
    return WorkStatus(
        "running" if running else "done",
        rate_bytes_s=sum(part.rate_bytes_s for part in running),
        left_s=-1 if -1 in left or not left else max(left),
        **sums,
    )
