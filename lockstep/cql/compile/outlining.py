"""What of a SELECT replicas can tell in place of rows: rows of plain columns as the protocol writes them, and
native aggregates whose parts can be joined in any order.

Invariant: a statement with an outline is answered the same without one. There is none where rows are grouped,
sorted or limited within partitions, where filters are more than comparisons of plain values, and where one
row at most is asked for.
"""

from __future__ import annotations

from msgspec.structs import replace

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.expressions import Folding, Selection
from lockstep.cql.compile.prepared import TableShape
from lockstep.cql.compile.ranges import supported
from lockstep.cql.compile.restrictions import Filter, Restrictions
from lockstep.cql.compile.terms import Values
from lockstep.schema.model import Column, ColumnKind
from lockstep.schema.types import CqlType, parse_type
from lockstep.values.errors import InvalidRequest
from lockstep.values.outlines import (
    CLUSTERING,
    PARTITION_KEY,
    REGULAR,
    STATIC,
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


def outline_of(shape: TableShape, restrictions: Restrictions, selection: Selection) -> Outline | None:
    """Of a statement that neither groups, sorts nor reverses, and whose limit is of all rows alone."""
    if restrictions.uses_indexes or _is_one_row(shape, restrictions):
        return None
    filters = [_filter(shape, one) for one in restrictions.filters]
    if None in filters:
        return None
    table = shape.table
    if not all(_is_native(kind) for kind in (*shape.partition_types, *shape.clustering_types)):
        return None
    packs: tuple[OutlineColumn, ...] = ()
    folds: tuple[OutlineFold, ...] = ()
    if selection.has_aggregates:
        found = [_fold(shape, folding) for folding in selection.foldings]
        if selection.reads_rows or None in found:
            return None
        folds = tuple(fold for fold in found if fold is not None)
    elif selection.plain is not None and not selection.cells:
        columns = [selection.columns[slot] for slot in selection.plain]
        if not all(_has_one_cell(shape, column) for column in columns):
            return None
        packs = tuple(_column(shape, column) for column in columns)
    else:
        return None
    types = shape.types
    widths = ((column.id, types[column.name].fixed_bytes) for column in table.regular)
    return Outline(
        tuple(kind.text for kind in shape.partition_types),
        tuple((kind.text, down) for kind, down in zip(shape.clustering_types, shape.descending, strict=True)),
        tuple((column, width) for column, width in widths if width is not None),
        packs,
        folds,
        tuple(one for one in filters if one is not None),
    )


def bound_outline(outline: Outline, restrictions: Restrictions, values: Values, context: Context) -> Outline:
    """With the values of one execution that rows are filtered by. InvalidRequest for null or unset ones."""
    if not outline.filters:
        return outline
    found = tuple(
        replace(one, value=supported(of.terms[0], "value", of.column.name, values, context))
        for one, of in zip(outline.filters, restrictions.filters, strict=True)
    )
    return replace(outline, filters=found)


def _filter(shape: TableShape, found: Filter) -> OutlineFilter | None:
    """Without its value."""
    kind = shape.types[found.column.name]
    compares = found.operator in ("=", "<", "<=", ">", ">=") and found.type == kind
    if not compares or not _is_native(kind) or not _has_one_cell(shape, found.column):
        return None
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
