"""What of a SELECT replicas can tell in place of rows: rows of plain columns as the protocol writes them,
native aggregates whose parts can be joined in any order, in all or by groups of key columns, and for all
other statements with filters the rows alone that pass those that compare plain values.

Invariant: a statement with an outline is answered the same without one. There is none where rows are read in
reverse or by an index, where partitions are wanted and not rows, and where one row at most is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.expressions import Folding, Selection
from lockstep.cql.compile.prepared import TableShape
from lockstep.cql.compile.ranges import listed_values, supported
from lockstep.cql.compile.restrictions import Filter, Restrictions
from lockstep.cql.compile.terms import Values
from lockstep.cql.parse import tree
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CqlType, parse_type
from lockstep.values.errors import InvalidRequest
from lockstep.values.outlines import (
    CLUSTERING,
    PARTITION_KEY,
    REGULAR,
    STATIC,
    Grouping,
    Outline,
    OutlineColumn,
    OutlineFilter,
    OutlineFold,
)

_KINDS = {
    ColumnKind.PARTITION_KEY: PARTITION_KEY,
    ColumnKind.CLUSTERING: CLUSTERING,
    ColumnKind.STATIC: STATIC,
    ColumnKind.REGULAR: REGULAR,
}


class Outlined(NamedTuple):
    """`filters`: those of the statement that the outline has, in its order."""

    outline: Outline
    filters: tuple[Filter, ...]


def outline_of(
    statement: tree.Select,
    shape: TableShape,
    restrictions: Restrictions,
    selection: Selection,
    grouping: Sequence[tree.Term],
) -> Outlined | None:
    """Of a statement whose rows are read in their order."""
    if statement.distinct or restrictions.uses_indexes or _is_one_row(shape, restrictions):
        return None
    if not all(_is_native(kind) for kind in (*shape.partition_types, *shape.clustering_types)):
        return None
    found = {at: _filter(shape, one) for at, one in enumerate(restrictions.filters)}
    filters = {at: one for at, one in found.items() if one is not None}
    used = tuple(restrictions.filters[at] for at in filters)
    types = shape.types
    widths = ((column.id, types[column.name].fixed_bytes) for column in shape.table.regular)
    whole = Outline(
        tuple(kind.text for kind in shape.partition_types),
        tuple((kind.text, down) for kind, down in zip(shape.clustering_types, shape.descending, strict=True)),
        tuple((column, width) for column, width in widths if width is not None),
        filters=tuple(filters.values()),
    )
    if len(filters) == len(restrictions.filters):
        if statement.group_by or selection.has_aggregates:
            made = _folded(statement, shape, selection, grouping, whole)
        else:
            made = _packed(statement, shape, restrictions, selection, whole)
        if made is not None:
            return Outlined(made, used)
    return Outlined(replace(whole, gives=True), used) if filters else None


def _folded(
    statement: tree.Select,
    shape: TableShape,
    selection: Selection,
    grouping: Sequence[tree.Term],
    outline: Outline,
) -> Outline | None:
    folds = [_fold(shape, folding) for folding in selection.foldings]
    if None in folds or selection.cells:
        return None
    outline = replace(outline, folds=tuple(fold for fold in folds if fold is not None))
    if not statement.group_by and not selection.reads_rows:
        return outline
    if not all(_has_one_cell(shape, column) for column in selection.columns):
        return None
    depth: int | None = None
    if statement.group_by:
        depth = 0
        for term in grouping:
            if not isinstance(term, tree.ColumnName):
                return None
            depth = max(depth, shape.column(term.name).position + 1)
        if depth == len(shape.clustering_types):
            # Each row is a group: telling of groups is no less than giving rows.
            return None
    return replace(outline, grouping=Grouping(depth, tuple(_column(shape, one) for one in selection.columns)))


def _packed(
    statement: tree.Select,
    shape: TableShape,
    restrictions: Restrictions,
    selection: Selection,
    outline: Outline,
) -> Outline | None:
    several = any(choice.is_in for choice in restrictions.partition)
    if statement.json or several or statement.per_partition_limit is not None:
        return None
    if selection.plain is None or selection.cells or selection.user_typed:
        return None
    columns = [selection.columns[slot] for slot in selection.plain]
    if not all(_has_one_cell(shape, column) for column in columns):
        return None
    return replace(outline, packs=tuple(_column(shape, column) for column in columns))


def bound_outline(found: Outlined, values: Values, context: Context) -> Outline:
    """With the values of one execution that rows are filtered by. InvalidRequest for null or unset ones."""
    outline = found.outline
    if not outline.filters:
        return outline
    filters = (
        _bound(one, of, values, context) for one, of in zip(outline.filters, found.filters, strict=True)
    )
    return replace(outline, filters=tuple(filters))


def _bound(found: OutlineFilter, of: Filter, values: Values, context: Context) -> OutlineFilter:
    if found.listed is not None:
        return replace(found, listed=tuple(dict.fromkeys(listed_values(of, values, context))))
    return replace(found, value=supported(of.terms[0], "value", of.column.name, values, context))


def _filter(shape: TableShape, found: Filter) -> OutlineFilter | None:
    """Without its values."""
    kind = shape.types[found.column.name]
    compares = found.operator in ("=", "<", "<=", ">", ">=", "IN") and found.type == kind
    if not compares or not _is_native(kind) or not _has_one_cell(shape, found.column):
        return None
    if found.operator == "IN":
        return OutlineFilter(_column(shape, found.column), "=", listed=())
    return OutlineFilter(_column(shape, found.column), found.operator)


def _is_one_row(shape: TableShape, restrictions: Restrictions) -> bool:
    return bool(restrictions.partition) and restrictions.clustering_width == len(shape.clustering_types)


def _has_one_cell(shape: TableShape, column: Column) -> bool:
    kind = shape.types[column.name]
    return not kind.is_multicell and kind.name != "counter"


def _is_native(kind: CqlType) -> bool:
    """Whether its text alone tells the type."""
    try:
        return parse_type(kind.text) == kind
    except InvalidRequest:
        return False


def _column(shape: TableShape, column: Column) -> OutlineColumn:
    kind = shape.types[column.name]
    # Bytes are handed on as they are.
    return OutlineColumn(
        _KINDS[column.kind], column.position, column.id, kind.text if _is_native(kind) else "blob"
    )


def _fold(shape: TableShape, folding: Folding) -> OutlineFold | None:
    column = folding.column
    if not folding.native or folding.aggregate.join is None:
        return None
    if column is None:
        return OutlineFold(folding.native)
    if not _has_one_cell(shape, column) or not _is_native(shape.types[column.name]):
        return None
    return OutlineFold(folding.native, _column(shape, column))
