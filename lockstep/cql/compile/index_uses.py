"""Which secondary indexes answer a WHERE clause, which values of the chosen one are wanted, and how large one
may be.

Invariant: An index only chooses the rows that are looked at: what it is asked for contains all rows that
fulfil the clause, and the clause is checked on each of them. A clause that is accepted without ALLOW
FILTERING is one that indexes answer alone: one of the plain kind, or any number of those that find ranges. A
value that an index would hold is refused before anything is written when it is too large for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.ranges import supported
from lockstep.cql.compile.restrictions import RANGE_OPERATORS, Clause, Filter, IndexUse, Restrictions
from lockstep.cql.compile.terms import Values
from lockstep.cql.parse import tree
from lockstep.schema.clustering import after_prefix
from lockstep.schema.model import Column, ColumnKind, Table
from lockstep.schema.objects import Index
from lockstep.schema.type_changes import ENTRIES, FULL, KEYS, VALUES, finds_ranges
from lockstep.schema.types import CqlType
from lockstep.values.errors import InvalidRequest
from lockstep.values.rows import Cell, IndexRead

#: As of a key, which it is part of in Cassandra.
INDEXED_BYTES_MAX: Final = 65_535


def check_indexed(table: Table, cells: Sequence[Cell]) -> None:
    """InvalidRequest for a value that is too large for an index of the table."""
    for index in table.indexes:
        for cell in cells:
            if cell.column == index.column and cell.value is not None:
                size = _size(table, index, cell)
                if size > INDEXED_BYTES_MAX:
                    raise InvalidRequest(
                        f"Cannot index value of size {size} for index {index.name} on {table.keyspace}."
                        f"{table.name}({table.by_id[index.column].name}) (maximum allowed "
                        f"size={INDEXED_BYTES_MAX})"
                    )


def _size(table: Table, index: Index, cell: Cell) -> int:
    value, path = len(cell.value or b""), len(cell.path or b"")
    if index.target == ENTRIES:
        return value + path
    if index.target == KEYS or table.by_id[index.column].type.startswith("set<"):
        return path
    return value


#: Types whose values an index of the range kind finds by equality only.
_NO_RANGES = frozenset(("text", "ascii", "varchar", "boolean"))


class Usable(msgspec.Struct, frozen=True):
    """An index that finds the rows of the relations on its column, or of some of them (`by_all` False)."""

    index: Index
    column: Column
    by_all: bool


def usable_indexes(clause: Clause) -> list[Usable]:
    """The indexes of the table that find rows of relations of the clause, in the order of the relations."""
    if clause.rule.verb != "SELECT" or not clause.shape.table.indexes:
        return []
    found: list[Usable] = []
    for name, relations in clause.single.items():
        column, kind = clause.shape.column(name), clause.shape.types[name]
        for index in clause.shape.table.indexes:
            if index.column != column.id:
                continue
            answered = [_answers(index, kind, relation) for relation in relations]
            if any(answered):
                alone = len(relations) == 1 or finds_ranges(index)
                found.append(Usable(index, column, alone and all(answered)))
    return found


def _answers(index: Index, kind: CqlType, relation: tree.Relation) -> bool:
    if relation.shape == "element":
        return index.target == ENTRIES and relation.operator == "="
    if relation.shape != "single":
        return False
    if relation.operator == "CONTAINS":
        return index.target == VALUES and kind.is_multicell
    if relation.operator == "CONTAINS KEY":
        return index.target == KEYS
    if kind.is_multicell or index.target not in (VALUES, FULL):
        return False
    if relation.operator in RANGE_OPERATORS:
        plain = not (kind.is_collection or kind.is_frozen or kind.name in _NO_RANGES)
        return finds_ranges(index) and plain
    return relation.operator == "="


def with_index(
    clause: Clause, found: Restrictions, usable: Sequence[Usable], *, allowed: bool
) -> Restrictions:
    """The restrictions with the index that chooses rows. `allowed`: ALLOW FILTERING was said. InvalidRequest
    when indexes alone do not answer the clause and that was not said."""
    outside = any(
        clause.shape.column(name).kind in (ColumnKind.STATIC, ColumnKind.REGULAR) for name in clause.single
    )
    by_key_range = not found.partition
    looks_through = not (outside or by_key_range)
    if looks_through and not any(one.column.kind is ColumnKind.CLUSTERING for one in found.filters):
        return found
    if not allowed and not _indexes_suffice(clause, found, usable):
        raise InvalidRequest(needs_filtering())
    if any(choice.is_in for choice in found.partition):
        raise InvalidRequest(
            "Select on indexed columns and with IN clause for the PRIMARY KEY are not supported"
        )
    if looks_through:
        # A given partition holds all that an index on its clusterings would find.
        return found
    chosen = None
    for candidate in sorted(usable, key=lambda one: one.column.kind is ColumnKind.CLUSTERING):
        if by_key_range or candidate.column.kind in (ColumnKind.STATIC, ColumnKind.REGULAR):
            chosen = _use(found, candidate)
            if chosen is not None:
                break
    return msgspec.structs.replace(found, index=chosen, uses_indexes=True)


def needs_filtering() -> str:
    return (
        "Cannot execute this query as it might involve data filtering and thus may have unpredictable "
        "performance. If you want to execute this query despite the performance unpredictability, use "
        "ALLOW FILTERING"
    )


def _indexes_suffice(clause: Clause, found: Restrictions, usable: Sequence[Usable]) -> bool:
    """Whether each condition that partition keys and slices of them do not answer is answered by one plain
    index, or by those that find ranges."""
    key_range = not found.partition
    filtered = {one.column.name for one in found.filters}
    in_clustering = [column.name for column in clause.shape.table.clustering if column.name in clause.single]
    indexed = [one.column.name for one in usable if one.column.kind is ColumnKind.CLUSTERING]
    if (key_range and (indexed or not clause.tokens)) or filtered.intersection(in_clustering):
        filtered.update(in_clustering)
        if clause.multi:
            return False
    if not filtered:
        return not found.has_clustering
    groups: list[list[Usable]] = [[one] for one in usable if not finds_ranges(one.index)]
    groups.append([one for one in usable if finds_ranges(one.index)])
    return any(filtered <= {one.column.name for one in group if one.by_all} for group in groups)


def _use(found: Restrictions, usable: Usable) -> IndexUse | None:
    """How an index is asked; None when nothing that it answers was kept apart."""
    index, column = usable.index, usable.column
    whole = column.kind in (ColumnKind.STATIC, ColumnKind.PARTITION_KEY)
    wanted = [one for one in found.filters if one.column.name == column.name and _is_for(index, one)]
    if wanted:
        equal = [one for one in wanted if one.operator not in RANGE_OPERATORS]
        return IndexUse(index.id, whole, tuple(equal[:1] or wanted))
    for choice in found.clustering:
        if choice.names == (column.name,) and not choice.is_in and not choice.joint:
            return IndexUse(index.id, whole, (Filter(column, choice.types[0], "=", choice.terms),))
    return None


def _is_for(index: Index, condition: Filter) -> bool:
    operators = {
        KEYS: ("CONTAINS KEY",),
        ENTRIES: ("ELEMENT",),
        FULL: ("=",),
        VALUES: ("=", "CONTAINS", *(RANGE_OPERATORS if finds_ranges(index) else ())),
    }
    return condition.operator in operators[index.target]


def index_read(use: IndexUse, values: Values, context: Context) -> IndexRead:
    """The values that are wanted of an index, in one execution. InvalidRequest for null or unset ones."""
    lower = upper = b""
    for condition in use.conditions:
        component = _component(condition, values, context)
        if condition.operator in (">", ">="):
            lower = max(lower, component if condition.operator == ">=" else after_prefix(component))
        elif condition.operator in ("<", "<="):
            upper = component if condition.operator == "<" else after_prefix(component)
        else:
            lower, upper = component, after_prefix(component)
    return IndexRead(use.index_id, lower, upper, use.whole)


def _component(condition: Filter, values: Values, context: Context) -> bytes:
    name, kind = condition.column.name, condition.type
    what = "map value" if condition.operator == "ELEMENT" else "value"
    value = supported(condition.terms[0], what, name, values, context)
    if len(value) > INDEXED_BYTES_MAX:
        raise InvalidRequest("Index expression values may not be larger than 64K")
    if condition.operator == "ELEMENT":
        assert condition.element is not None
        key = supported(condition.element, "map key", name, values, context)
        return kind.key.component(key) + kind.value.component(value)
    if condition.operator == "CONTAINS KEY":
        return kind.key.component(value)
    if condition.operator == "CONTAINS":
        return (kind.value if kind.name == "map" else kind.element).component(value)
    return kind.component(value)
