"""VIEW-1: a materialized view is its definition, applied to the merged base table.

Invariant: rows are compared whole; a view of a key with `v` has exactly the rows of the base that have a `v`.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.sim.checkers.violation import Violation

#: (pk, ck, v, w) of each row, in any order.
Rows = Sequence[tuple[bytes | None, ...]]


def difference(view: str, keyed_by_value: bool, base: Rows, seen: Rows, *, raises: bool) -> bool:
    """Whether a view has what it has to have. Violation instead of False when that is due by now."""
    wanted = [row for row in base if not keyed_by_value or row[2] is not None]
    if _ordered(wanted) == _ordered(seen):
        return True
    if raises:
        lacks = [_shown(row) for row in wanted if row not in seen]
        stale = [_shown(row) for row in seen if row not in wanted]
        raise Violation("VIEW-1", f"{view} lacks {lacks} and has {stale} that its base has not")
    return False


def _ordered(rows: Rows) -> list[tuple[bytes, ...]]:
    return sorted(tuple(b"\0" if part is None else b"\1" + part for part in row) for row in rows)


def _shown(row: tuple[bytes | None, ...]) -> str:
    return "/".join("-" if part is None else part.hex() or "empty" for part in row)
