"""Forgetting which ranges lack writes that no hint was kept for, once a repair of all replicas is recorded.

Invariant: a mark goes only when the repair began after the newest write that the mark stands for. What a
crash or a busy disk leaves behind goes at the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.values.errors import LockstepError


class Marks(Protocol):
    def repaired(self, table_id: int, left: int, right: int, before_us: int) -> int: ...


class RepairedMarks:
    def __init__(self, marks: Marks, log: Callable[..., None]) -> None:
        self._marks = marks
        self._log = log

    def recorded(self, before: ClusterMetadata | None, after: ClusterMetadata) -> None:
        """What `after` records more than `before`, or all that it records."""
        known = {} if before is None else before.repairs.by_table
        for table_id, ranges in after.repairs.by_table.items():
            if known.get(table_id) == ranges:
                continue
            for one in ranges:
                try:
                    self._marks.repaired(table_id, one.range.left, one.range.right, one.at_s * 1_000_000)
                except LockstepError as error:
                    self._log("repair.marks_stay", table=table_id, error=str(error))
