"""Which writes change data capture refuses: those with timestamps that no stream can take.

Invariant: a statement that writes to no captured table is looked at once, when it is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.cql.compile.modification import BatchPlan, ModificationPlan
from lockstep.metadata.cdc import Generation, write_allowed
from lockstep.values.errors import InvalidRequest
from lockstep.values.rows import Mutation, Row


def captured_tables(plan: object) -> frozenset[int]:
    """Ids of the tables whose changes are captured, of those that a compiled statement writes to."""
    parts = plan.parts if isinstance(plan, BatchPlan) else (plan,)
    tables = (part.shape.table for part in parts if isinstance(part, ModificationPlan))
    return frozenset(table.id for table in tables if table.option("cdc", "false") == "true")


def refuse_uncapturable(
    generations: Sequence[Generation], captured: frozenset[int], mutations: Sequence[Mutation], now_us: int
) -> None:
    """Raises InvalidRequest for a change of a captured table with a timestamp that no stream can take."""
    for mutation in mutations:
        if mutation.table_id in captured:
            for timestamp_us in sorted(set(_timestamps(mutation))):
                problem = write_allowed(generations, timestamp_us, now_us)
                if problem:
                    raise InvalidRequest(problem)


def _timestamps(mutation: Mutation) -> Iterator[int]:
    """Those that the client gave: a merged mutation has several, and a collection that is replaced is deleted
    just before."""
    yield mutation.timestamp_us
    if mutation.deletion is not None:
        yield mutation.deletion.timestamp_us
    for gone in mutation.range_deletions:
        yield gone.deletion.timestamp_us
    rows: tuple[Row, ...] = mutation.rows if mutation.static is None else (mutation.static, *mutation.rows)
    for row in rows:
        for part in (row.liveness, row.deletion, *row.cells):
            if part is not None:
                yield part.timestamp_us
