"""What holds once nothing is owed to anyone any more: BAT-1, INDEX-1, VIEW-1.

BAT-1: a logged batch is there whole or not at all, and what was acknowledged reaches every replica, judged by
what disks certainly hold, before any read could repair it. Each batch writes rows that no other request
writes. A coordinator that lived on left hints for all replicas that did not acknowledge; for one that died
only the level of an acknowledged batch counts, and nothing where it left with hints that nobody took, which
is recorded. INDEX-1: what an index answers is what a scan of its table finds. VIEW-1: a materialized view is
its definition, applied to the merged base table; a view of a key with `v` has exactly the rows of the base
that have a `v`.

Invariant: rows are compared whole, of tables that nobody writes any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Outcome
from lockstep.values.ids import NodeId

#: (table, partition key, clustering) of a row.
Row = tuple[str, bytes, int]


class Batched(msgspec.Struct, frozen=True):
    """`needs`: how many replicas its level asks for. `survived`: its coordinator lives to this day."""

    number: int
    client: str
    rows: tuple[Row, ...]
    logged: bool
    outcome: Outcome
    needs: int
    survived: bool

    def named(self) -> str:
        kind = "logged" if self.logged else "unlogged"
        return f"the {kind} batch {self.number} of {self.client}, which ended {self.outcome}"


#: Of a row: its replicas, and which nodes, replicas or not, hold it durably.
Held = Callable[[Batched, Row], tuple[Sequence[NodeId], Sequence[NodeId]]]


def check_batches(batches: Sequence[Batched], held: Held) -> int:
    """Raise the first Violation; the number of rows judged otherwise."""
    judged = 0
    for batch in batches:
        found = {row: held(batch, row) for row in batch.rows}
        judged += len(found)
        there = [row for row, (_, holders) in found.items() if holders]
        if batch.outcome is Outcome.FAILED and there:
            raise Violation("BAT-1", f"{batch.named()}, has written {there[0]}")
        whole = batch.outcome is Outcome.OK or (batch.logged and bool(there))
        for row in batch.rows if whole else there:
            _check_row(batch, row, *found[row])
    return judged


def _check_row(batch: Batched, row: Row, replicas: Sequence[NodeId], holders: Sequence[NodeId]) -> None:
    if batch.survived:
        needs = len(replicas)
    elif batch.outcome is Outcome.OK or batch.logged:
        needs = min(batch.needs, len(replicas))
    else:
        needs = 0
    having = [node for node in replicas if node in holders]
    if len(having) < needs:
        raise Violation(
            "BAT-1",
            f"{batch.named()}, needs {needs} of {list(replicas)} to hold {row}, and {list(holders)} do",
        )


#: Values of the columns that are asked for, in any order of rows.
IndexRow = tuple[bytes | None, ...]
Wanted = Callable[[bytes], bool]


def check_index(
    question: str, column: int, wanted: Wanted, scanned: Sequence[IndexRow], found: Sequence[IndexRow]
) -> int:
    """How many rows were found: those of the scan whose value in this place is wanted. Raises Violation."""
    due = [row for row in scanned if _has(row, column, wanted)]
    lacks = [row for row in due if row not in found]
    more = [row for row in found if row not in due]
    if lacks or more or len(found) != len(due):
        raise Violation(
            "INDEX-1",
            f"{question} lacks {_shown(lacks)}, has {_shown(more)} that a scan has not, "
            f"{len(found)} rows for {len(due)}",
        )
    return len(due)


def check_answer(question: str, column: int, wanted: Wanted, found: Sequence[IndexRow]) -> None:
    """Whether every row of an answer has a value that was asked for, whatever else is going on."""
    wrong = [row for row in found if not _has(row, column, wanted)]
    if wrong:
        raise Violation("INDEX-1", f"{question} answers {_shown(wrong)}")


def _has(row: IndexRow, column: int, wanted: Wanted) -> bool:
    value = row[column]
    return value is not None and wanted(value)


def _shown(rows: Sequence[IndexRow]) -> list[str]:
    return [
        "/".join("-" if part is None else str(int.from_bytes(part, "big", signed=True)) for part in row)
        for row in rows
    ]


#: (pk, ck, v, w) of each row, in any order.
Rows = Sequence[tuple[bytes | None, ...]]


def difference(view: str, keyed_by_value: bool, base: Rows, seen: Rows, *, raises: bool) -> bool:
    """Whether a view has what it has to have. Violation instead of False when that is due by now."""
    wanted = [row for row in base if not keyed_by_value or row[2] is not None]
    if _ordered(wanted) == _ordered(seen):
        return True
    if raises:
        lacks = [_view_shown(row) for row in wanted if row not in seen]
        stale = [_view_shown(row) for row in seen if row not in wanted]
        raise Violation("VIEW-1", f"{view} lacks {lacks} and has {stale} that its base has not")
    return False


def _ordered(rows: Rows) -> list[tuple[bytes, ...]]:
    return sorted(tuple(b"\0" if part is None else b"\1" + part for part in row) for row in rows)


def _view_shown(row: tuple[bytes | None, ...]) -> str:
    return "/".join("-" if part is None else part.hex() or "empty" for part in row)
