"""INDEX-1: what an index answers is what a scan of its table finds.

Invariant: rows are compared whole; both answers are of a table that nobody writes any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.sim.checkers.violation import Violation

#: Values of the columns that are asked for, in any order of rows.
Row = tuple[bytes | None, ...]
Wanted = Callable[[bytes], bool]


def check_index(
    question: str, column: int, wanted: Wanted, scanned: Sequence[Row], found: Sequence[Row]
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


def check_answer(question: str, column: int, wanted: Wanted, found: Sequence[Row]) -> None:
    """Whether every row of an answer has a value that was asked for, whatever else is going on."""
    wrong = [row for row in found if not _has(row, column, wanted)]
    if wrong:
        raise Violation("INDEX-1", f"{question} answers {_shown(wrong)}")


def _has(row: Row, column: int, wanted: Wanted) -> bool:
    value = row[column]
    return value is not None and wanted(value)


def _shown(rows: Sequence[Row]) -> list[str]:
    return [
        "/".join("-" if part is None else str(int.from_bytes(part, "big", signed=True)) for part in row)
        for row in rows
    ]
