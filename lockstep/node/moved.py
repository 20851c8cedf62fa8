"""How much each operation has moved, as its nodes reported it to the coordinator.

Invariant: what is told of an operation never becomes less, whatever stage it is in, whichever node reports
next and however often one begins anew; it stays after the operation has ended, for the latest ones. A new
coordinator counts from what nodes report to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from lockstep.node.messages import WorkStatus
from lockstep.topology.step import WorkKey

#: Operations of which it is kept: more than the requests that the metadata keeps after their end.
OPERATIONS_KEPT_MAX: Final = 256
_COUNTS: Final = ("moved_bytes", "moved_fragments", "files_done", "ranges_done", "tables_done")
_TOTALS: Final = ("total_bytes", "files_total", "ranges_total", "tables_total")


class Moved:
    def __init__(self) -> None:
        self._parts: dict[int, dict[WorkKey, WorkStatus]] = {}

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

    def of(self, operation_id: int) -> WorkStatus | None:
        """The sum over all nodes and stages; None when nothing was reported."""
        parts = self._parts.get(operation_id)
        return _sum(parts.values()) if parts else None


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
