"""Restrictions with values: the partition keys, clusterings, slices and tokens they mean, and the conditions
that are checked on rows after the read.

Invariant: slices are sorted, disjoint and never adjacent; keys and clusterings are sorted and unique, so `IN
(1, 1)` asks once. A null column fulfils no condition.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import msgspec

from lockstep.cql.bind.evaluation import Record
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepared import TableShape
from lockstep.cql.compile.restrictions import Bound, Choice, Filter, Restrictions
from lockstep.cql.compile.terms import Computed, Constant, TermPlan, Values
from lockstep.cql.wire.messages import UNSET
from lockstep.schema.clustering import check_clustering, encode_prefix, routing_key, slice_for
from lockstep.schema.types import CollectionType, CqlType, ListType, TupleType
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import IN_COMBINATIONS_MAX
from lockstep.values.rows import ALL_ROWS, Slice
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN


def required(term: TermPlan, name: str, values: Values, context: Context) -> bytes:
    """The bytes of a condition's value; InvalidRequest when it is null or unset."""
    value = term.get(values, context)
    if value is None:
        raise InvalidRequest(f"Invalid null value in condition for column {name}")
    if value is UNSET:
        raise InvalidRequest(f"Invalid unset value for column {name}")
    return value


def alternatives(choice: Choice, values: Values, context: Context) -> list[tuple[bytes, ...]]:
    """Unique value tuples of a choice, in the order of the columns' types."""
    name = choice.names[0] if len(choice.names) == 1 else ", ".join(choice.names)
    if choice.listed is not None:
        data = required(choice.listed, name, values, context)
        found = ListType(_alternative_type(choice), frozen=False).split(data)
    else:
        found = [required(term, name, values, context) for term in choice.terms]
    if not choice.joint:
        if len(found) == 1:
            return [(found[0],)]
        unique = sorted(dict.fromkeys(found), key=choice.types[0].sort_key)
        return [(value,) for value in unique]
    tuples = list(dict.fromkeys(_fields(choice, data) for data in found))
    keyed = [
        (tuple(kind.sort_key(v) for kind, v in zip(choice.types, item, strict=True)), item) for item in tuples
    ]
    return [item for _, item in sorted(keyed)]


def _alternative_type(choice: Choice) -> CqlType:
    return TupleType(choice.types) if choice.joint else choice.types[0]


def _fields(choice: Choice, data: bytes) -> tuple[bytes, ...]:
    return _whole_tuple(TupleType(choice.types), data, choice.names)


def _whole_tuple(kind: TupleType, data: bytes, names: Sequence[str]) -> tuple[bytes, ...]:
    parts = kind.split(data)
    if len(parts) != len(names) or any(part is None for part in parts):
        raise InvalidRequest(f"Invalid null value in condition for columns: ({', '.join(names)})")
    return tuple(part for part in parts if part is not None)


def settled(restrictions: Restrictions, values: Values, context: Context) -> Restrictions:
    """The same with the keys worked out, also by functions that give another value each time."""
    if not any(_is_computed(choice) for choice in (*restrictions.partition, *restrictions.clustering)):
        return restrictions
    return msgspec.structs.replace(
        restrictions,
        partition=tuple(_settled(choice, values, context) for choice in restrictions.partition),
        clustering=tuple(_settled(choice, values, context) for choice in restrictions.clustering),
    )


def _is_computed(choice: Choice) -> bool:
    return isinstance(choice.listed, Computed) or any(isinstance(term, Computed) for term in choice.terms)


def _settled(choice: Choice, values: Values, context: Context) -> Choice:
    terms = tuple(_settled_term(term, values, context) for term in choice.terms)
    listed = None if choice.listed is None else _settled_term(choice.listed, values, context)
    return msgspec.structs.replace(choice, terms=terms, listed=listed)


def _settled_term(term: TermPlan, values: Values, context: Context) -> TermPlan:
    if not isinstance(term, Computed):
        return term
    value = term.get(values, context)
    return term if value is UNSET else Constant(value if isinstance(value, bytes) else None)


def partition_keys(restrictions: Restrictions, values: Values, context: Context) -> list[bytes]:
    """Serialised keys of a fully restricted partition key, in the order of the columns' types."""
    assert restrictions.partition, "the whole key is restricted"
    combined = _product(restrictions.partition, values, context, "partition keys")
    return [routing_key(parts) for parts in combined]


def _product(
    choices: Sequence[Choice], values: Values, context: Context, what: str
) -> list[tuple[bytes, ...]]:
    lists = [alternatives(choice, values, context) for choice in choices]
    size = math.prod(map(len, lists))
    if size > IN_COMBINATIONS_MAX:
        raise InvalidRequest(
            f"The query asks for {size} combinations of {what}, more than {IN_COMBINATIONS_MAX}"
        )
    found = [tuple(itertools.chain.from_iterable(parts)) for parts in itertools.product(*lists)]
    assert len(found) == size, "each value of a column meets each of the others"
    return found


def clusterings(
    shape: TableShape, restrictions: Restrictions, values: Values, context: Context
) -> list[bytes]:
    """Encoded clusterings when every clustering column is fixed; sorted and unique."""
    assert restrictions.clustering_width == len(shape.clustering_types), "every clustering column is fixed"
    prefixes = _product(restrictions.clustering, values, context, "clustering columns")
    encoded = {encode_prefix(shape.clustering_types, shape.descending, prefix): prefix for prefix in prefixes}
    for clustering, prefix in encoded.items():
        check_clustering(clustering, prefix)
    return sorted(encoded)


def slices(
    shape: TableShape, restrictions: Restrictions, values: Values, context: Context
) -> tuple[Slice, ...]:
    """The clusterings asked for; () when the conditions contradict each other."""
    if not restrictions.has_clustering:
        return ALL_ROWS
    prefixes = _product(restrictions.clustering, values, context, "clustering columns")
    lower = _bound_values(shape, restrictions.lower, values, context)
    upper = _bound_values(shape, restrictions.upper, values, context)
    found: list[Slice] = []
    for prefix in prefixes:
        if lower is None and upper is None:
            found.append(slice_for(shape.clustering_types, shape.descending, prefix, None, None))
            continue
        above = _beyond(shape, prefix, lower, above=True) if lower is not None else None
        below = _beyond(shape, prefix, upper, above=False) if upper is not None else None
        if above is None or below is None:
            found.extend(above if above is not None else below or ())
        else:
            found.extend(_intersected(above, below))
    return _merged(found)


def _bound_values(
    shape: TableShape, bound: Bound | None, values: Values, context: Context
) -> tuple[tuple[bytes, ...], bool] | None:
    if bound is None:
        return None
    if bound.whole is not None:
        data = required(bound.whole, ", ".join(bound.names), values, context)
        kind = TupleType(tuple(shape.types[name] for name in bound.names))
        return _whole_tuple(kind, data, bound.names), bound.inclusive
    found = [
        required(term, name, values, context) for term, name in zip(bound.terms, bound.names, strict=True)
    ]
    return tuple(found), bound.inclusive


def _beyond(
    shape: TableShape, prefix: Sequence[bytes], bound: tuple[tuple[bytes, ...], bool], *, above: bool
) -> list[Slice]:
    """Rows whose columns behind `prefix` compare above (or below) the bound as a tuple.

    One slice a column of the bound, because each column has its own direction.
    """
    parts, inclusive = bound
    assert len(prefix) + len(parts) <= len(shape.clustering_types), "a bound is on clustering columns"
    found = []
    for index, part in enumerate(parts):
        edge = (part, inclusive and index == len(parts) - 1)
        equal = [*prefix, *parts[:index]]
        low, high = (edge, None) if above else (None, edge)
        found.append(slice_for(shape.clustering_types, shape.descending, equal, low, high))
    return found


def _intersected(first: Sequence[Slice], second: Sequence[Slice]) -> list[Slice]:
    found = []
    for a in first:
        for b in second:
            ends = [end for end in (a.end, b.end) if end]
            both = Slice(max(a.start, b.start), min(ends) if ends else b"")
            if not _is_empty(both):
                found.append(both)
    return found


def _is_empty(part: Slice) -> bool:
    return bool(part.end) and part.start >= part.end


def _merged(found: Sequence[Slice]) -> tuple[Slice, ...]:
    merged: list[Slice] = []
    for part in sorted((part for part in found if not _is_empty(part)), key=lambda part: part.start):
        last = merged[-1] if merged else None
        if last is not None and (not last.end or part.start <= last.end):
            end = b"" if not last.end or not part.end else max(last.end, part.end)
            merged[-1] = Slice(last.start, end)
        else:
            merged.append(part)
    pairs = itertools.pairwise(merged)
    assert all(one.end and one.end < two.start for one, two in pairs), "slices are apart, and ascend"
    return tuple(merged)


def token_range(restrictions: Restrictions, values: Values, context: Context) -> tuple[int, int] | None:
    """(left, right] of the token bounds, or None when nothing can lie inside.

    The smallest token as an upper bound means the end of the ring, as drivers write it.
    """
    left, right = TOKEN_MIN, TOKEN_MAX
    for operator, term in restrictions.tokens:
        data = required(term, "partition key token", values, context)
        token = int.from_bytes(data, "big", signed=True)
        if operator in ("<", "<=") and token == TOKEN_MIN:
            continue
        if operator in (">", ">=", "="):
            left = max(left, token if operator == ">" else token - 1)
        if operator in ("<", "<=", "="):
            right = min(right, token - 1 if operator == "<" else token)
    assert left >= TOKEN_MIN and right <= TOKEN_MAX, "bounds are on the ring"
    return (left, right) if left < right else None


Check = Callable[[Record], bool]

_COMPARISONS: dict[str, Callable[[bytes, bytes], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def bound_filters(
    filters: Sequence[Filter], slots: dict[str, int], values: Values, context: Context
) -> tuple[Check, ...]:
    """The checks of one execution; InvalidRequest for null or unset values."""
    return tuple(_bound(found, slots[found.column.name], values, context) for found in filters)


def supported(term: TermPlan, what: str, name: str, values: Values, context: Context) -> bytes:
    """The bytes of a value that rows are checked for; InvalidRequest when it is null or unset."""
    value = term.get(values, context)
    if value is None or value is UNSET:
        given = "null" if value is None else "unset"
        raise InvalidRequest(f"Unsupported {given} {what} for column {name}")
    return value


def _bound(found: Filter, slot: int, values: Values, context: Context) -> Check:
    name = found.column.name
    if found.operator == "IN":
        keys = {found.type.sort_key(value): None for value in listed_values(found, values, context)}
        return lambda record: record[slot] is not None and found.type.sort_key(record[slot]) in keys
    if found.operator == "ELEMENT":
        assert found.element is not None
        key = supported(found.element, "map key", name, values, context)
        return _entry(found.type, slot, key, supported(found.terms[0], "map value", name, values, context))
    wanted = [supported(term, "value", name, values, context) for term in found.terms]
    if found.operator == "CONTAINS":
        return _contains(found.type, slot, wanted[0])
    if found.operator == "CONTAINS KEY":
        return lambda record: record[slot] is not None and wanted[0] in _parts(found.type, record[slot])[::2]
    compare, sort_key = _COMPARISONS[found.operator], found.type.sort_key
    target = sort_key(wanted[0])
    return lambda record: record[slot] is not None and compare(sort_key(record[slot]), target)


def listed_values(found: Filter, values: Values, context: Context) -> list[bytes]:
    """The values of IN; InvalidRequest when one is null or unset."""
    name = found.column.name
    wanted = [required(term, name, values, context) for term in found.terms]
    if found.listed is None:
        return wanted
    return _parts(ListType(found.type, frozen=False), required(found.listed, name, values, context))


def _parts(kind: CqlType, data: bytes) -> list[bytes]:
    assert isinstance(kind, CollectionType)
    return kind.split(data)


def _contains(kind: CqlType, slot: int, wanted: bytes) -> Check:
    if kind.name == "map":
        return lambda record: record[slot] is not None and wanted in _parts(kind, record[slot])[1::2]
    return lambda record: record[slot] is not None and wanted in _parts(kind, record[slot])


def _entry(kind: CqlType, slot: int, key: bytes, value: bytes) -> Check:
    def check(record: Record) -> bool:
        if record[slot] is None:
            return False
        parts = _parts(kind, record[slot])
        return any(parts[at] == key and parts[at + 1] == value for at in range(0, len(parts), 2))

    return check
