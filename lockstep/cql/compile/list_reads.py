"""Lists that must be read before they can be changed: by an index, or by the values of elements.

Invariant: `commands` asks for exactly the rows that the statements change, `lists` keeps their live elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.cql.compile.context import Context, ListPlace, Lists
from lockstep.cql.compile.modification import BatchPlan, ModificationPlan
from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.compile.ranges import clusterings, partition_keys
from lockstep.cql.compile.terms import Values
from lockstep.values.limits import IN_COMBINATIONS_MAX
from lockstep.values.rows import Cell, ReadCommand, ReadResult, Row, Slice
from lockstep.values.tokens import token_of


def reads_lists(prepared: Prepared) -> bool:
    """Whether a modification or batch needs lists that are there."""
    return any(plan.reads_lists for plan in plans_of(prepared))


def plans_of(prepared: Prepared) -> Sequence[ModificationPlan]:
    """The statement's plan, or those of a batch."""
    if isinstance(prepared.plan, BatchPlan):
        return prepared.plan.parts
    return (prepared.plan,) if isinstance(prepared.plan, ModificationPlan) else ()


def commands(entries: Sequence[tuple[Prepared, Values]], context: Context) -> list[ReadCommand]:
    """The reads that the statements need, one a partition and statement; InvalidRequest for unfit values."""
    found: list[ReadCommand] = []
    for prepared, values in entries:
        prepared.check_values(list(values))
        for plan in plans_of(prepared):
            if plan.reads_lists:
                found.extend(of_plan(plan, values, context))
    return found


def of_plan(plan: ModificationPlan, values: Values, context: Context) -> Iterator[ReadCommand]:
    """The reads that one statement needs, one a partition."""
    shape = plan.shape
    slices: tuple[Slice, ...] = ()
    if any(operation.reads_list for operation in plan.operations):
        parts = clusterings(shape, plan.restrictions, values, context)
        slices = tuple(Slice(part, part + b"\x00") for part in parts)
    if not slices:
        # No row lies in front of every clustering: only the static row is asked.
        slices = (Slice(b"", b"\x00"),)
    reads_static = any(operation.reads_list for operation in plan.static_operations)
    for key in partition_keys(plan.restrictions, values, context):
        token = token_of(key)
        yield ReadCommand(
            shape.table.id,
            token - 1,
            token,
            key,
            slices,
            (),
            reads_static,
            False,
            IN_COMBINATIONS_MAX,
            0,
            context.now_s,
            None,
            shape.table.gone,
            dead=shape.table.dead,
        )


def lists(asked: Sequence[ReadCommand], results: Sequence[ReadResult]) -> Lists:
    """Live cells with a path of the rows read, by place, sorted by path."""
    found: dict[ListPlace, Sequence[Cell]] = {}
    for command, result in zip(asked, results, strict=True):
        for partition in result.partitions:
            rows: list[tuple[bytes, Row]] = []
            if partition.static is not None:
                rows.append((b"", partition.static))
            rows += [(row.clustering, row) for row in partition.rows]
            for clustering, row in rows:
                # Several statements may have asked for one row: one answer counts.
                found.update(_of_row(row, (command.table_id, partition.key, clustering)))
    return found


def _of_row(row: Row, place: tuple[int, bytes, bytes]) -> Lists:
    cells: dict[ListPlace, list[Cell]] = {}
    for cell in row.cells:
        if cell.path is not None and cell.value is not None:
            cells.setdefault((*place, cell.column), []).append(cell)
    return {at: sorted(members, key=lambda cell: cell.path or b"") for at, members in cells.items()}
