"""How much each operation has moved, as its nodes reported it to the coordinator.

Each receiving node reports what it has made durable; the coordinator has the metadata count it, now and then
while a stage streams and with the entry that ends the stage.

Invariant: the bytes told of an operation never become less, whatever stage it is in, whichever node reports
next, however often one begins anew, whoever coordinates and whoever is lost: told is only what the metadata
counts. They stay after the operation has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation
from lockstep.metadata.requests import Request
from lockstep.node.log.messages import WorkStatus
from lockstep.topology.planning import streaming_session
from lockstep.topology.step import WorkKey
from lockstep.topology.transformations import CountMoved
from lockstep.values.ids import NodeId

#: Operations of which it is kept: more than the requests that the metadata keeps after their end.
OPERATIONS_KEPT_MAX: Final = 256
#: An entry counts at least so much: less is moved before anybody looks twice.
COUNTED_BYTES_MIN: Final = 64 * 1024
#: Of what an operation moves: at most about so many entries are made of it, and a bar moves in such steps.
COUNTED_SHARE: Final = 0.02
_COUNTS: Final = ("moved_bytes", "moved_fragments", "files_done", "ranges_done", "tables_done")
_TOTALS: Final = ("total_bytes", "files_total", "ranges_total", "tables_total")


class Amount(msgspec.Struct, frozen=True):
    """What was moved."""

    bytes: int = 0
    fragments: int = 0

    def most(self, other: Amount) -> Amount:
        return Amount(max(self.bytes, other.bytes), max(self.fragments, other.fragments))


class Moved:
    """What each operation's parts reported, and what of it the metadata does not count yet."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[WorkKey, WorkStatus]] = {}
        #: Streaming session -> what each node said at most.
        self._sessions: dict[str, dict[NodeId, Amount]] = {}

    # -- what stages bring --------------------------------------------------------------------------

    def heard(self, operation: Operation, key: WorkKey, said: WorkStatus) -> None:
        """A report of one node's part of the present stage."""
        session = streaming_session(operation)
        if key[1] != operation.session_id or not session or said.taken_bytes < 0:
            return
        by_node = self._sessions.setdefault(session, {})
        now = Amount(said.taken_bytes, said.taken_fragments)
        by_node[key[2]] = by_node.get(key[2], now).most(now)
        while len(self._sessions) > OPERATIONS_KEPT_MAX:
            del self._sessions[next(iter(self._sessions))]

    def brought(self, operation: Operation) -> Amount:
        """What the streams that go on brought, as far as it is known here: for the entry that ends them."""
        amounts = self._sessions.get(streaming_session(operation), {}).values()
        return Amount(sum(one.bytes for one in amounts), sum(one.fragments for one in amounts))

    def due(self, cluster: ClusterMetadata) -> CountMoved | None:
        """The entry that counts what an operation brought since the last one; None while none is worth it."""
        for operation in cluster.operations:
            brought, counted = self.brought(operation), operation.counted_bytes
            parts = self.parts(operation.id)
            total_bytes = max(counted, parts.total_bytes if parts is not None else 0)
            if brought.bytes - counted >= max(COUNTED_BYTES_MIN, int(total_bytes * COUNTED_SHARE)):
                fragments = max(brought.fragments, operation.counted_fragments)
                return CountMoved(operation.id, streaming_session(operation), brought.bytes, fragments)
        return None

    @staticmethod
    def told(request: Request) -> Amount:
        """What the operations of a request have moved."""
        return Amount(request.moved_bytes, request.moved_fragments)

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

    def of(self, request: Request) -> WorkStatus | None:
        """How far a request is; None when nothing is known. The bytes are those of `told`."""
        amount, found = self.told(request), self.parts(request.operation_id)
        if found is None and amount == Amount():
            return None
        found = found if found is not None else WorkStatus("done")
        left_bytes = max(0, found.total_bytes - max(found.moved_bytes, amount.bytes))
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
