"""What filters say about which rows are to be read: keys of partitions, and slices of the rows in each.

Invariant: every row for which all filters hold is selected. A filter counts as applied only when no other row
is selected that it does not hold for; all others are still to be looked at by who asked. Values are compared
as the column's type orders them, and only where Spark, Arrow and CQL order and compare them alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from lockstep.schema.clustering import derived_key, slice_for
from lockstep.schema.types import CqlType
from lockstep.spark.encoders import encoder
from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import SPARK_POINT_READS_MAX
from lockstep.values.rows import Slice

EQUAL: Final = "="
IN: Final = "in"
NOT_IN: Final = "not in"
ABOVE: Final = (">", ">=")
BELOW: Final = ("<", "<=")

#: Types that are equal and ordered everywhere as in CQL; others are selected by, and then compared again.
_SAME: Final = frozenset(
    ("tinyint", "smallint", "int", "bigint", "text", "ascii", "blob", "boolean", "date", "time")
)
_COMPARED_AGAIN: Final = frozenset(("uuid", "timeuuid", "timestamp", "inet"))
#: An empty value of these is a value like others; of other types it is read as none, and comes first.
_MAY_BE_EMPTY: Final = frozenset(("text", "ascii", "blob"))
_TIMESTAMP: Final = "timestamp"


class Condition(msgspec.Struct, frozen=True):
    """That a column's value compares so with `value`, or is one of them (`in`), or none."""

    column: str
    operator: str
    value: Any

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(self.value) if self.operator in (IN, NOT_IN) else (self.value,)


class Bound(msgspec.Struct, frozen=True):
    value: bytes
    inclusive: bool


class Selection(msgspec.Struct, frozen=True):
    """Partitions by the values of their keys. Of each the rows whose first clustering values are one of
    `prefixes`, and whose next one lies between the bounds."""

    keys: tuple[tuple[bytes, ...], ...]
    prefixes: tuple[tuple[bytes, ...], ...] = ((),)
    lower: Bound | None = None
    upper: Bound | None = None

    @property
    def chooses_rows(self) -> bool:
        """Whether it may leave out rows of a partition, and so those that have no clustering."""
        return self.prefixes != ((),) or self.lower is not None or self.upper is not None

    def slices(self, kinds: Sequence[CqlType], descending: Sequence[bool]) -> list[Slice]:
        """Of the rows of each partition, in a table with these clustering columns."""
        lower, upper = (
            None if bound is None else (bound.value, bound.inclusive) for bound in (self.lower, self.upper)
        )
        return [slice_for(kinds, descending, prefix, lower, upper) for prefix in self.prefixes]


class KeyColumn(msgspec.Struct, frozen=True):
    name: str
    kind: CqlType


def select(
    partition: Sequence[KeyColumn], clustering: Sequence[KeyColumn], conditions: Sequence[Condition]
) -> tuple[Selection | None, list[Condition]]:
    """(what to read, the conditions that are applied by that); None when they do not fix every column of the
    partition key, or name too many partitions."""
    applied: list[Condition] = []
    values: list[tuple[bytes, ...]] = []
    count = 1
    for column in partition:
        found = _equal(column, conditions, applied)
        count *= 0 if found is None else len(found)
        if found is None or count > SPARK_POINT_READS_MAX:
            return None, []
        values.append(found)
    # Nodes refuse to be asked for a row of the empty key rather than to answer that there is none.
    found_keys = tuple(key for key in itertools.product(*values) if key != (b"",))
    prefixes: tuple[tuple[bytes, ...], ...] = ((),)
    lower = upper = None
    for column in clustering:
        of_column: list[Condition] = []
        found = _equal(column, conditions, of_column)
        if found is None or len(found) * len(prefixes) * max(count, 1) > SPARK_POINT_READS_MAX:
            lower, upper = _between(column, conditions, applied)
            break
        applied += of_column
        prefixes = tuple((*prefix, value) for prefix in prefixes for value in found)
    return Selection(found_keys if prefixes else (), prefixes, lower, upper), applied


def partition_key(parts: Sequence[bytes]) -> bytes:
    """The serialised key that tokens are made of."""
    return derived_key(parts)


def _equal(
    column: KeyColumn, conditions: Iterable[Condition], applied: list[Condition]
) -> tuple[bytes, ...] | None:
    """The values that the column may have; None when any."""
    name = column.kind.name
    if name not in _SAME | _COMPARED_AGAIN:
        return None
    found: dict[bytes, None] | None = None
    for one in conditions:
        if one.column != column.name or one.operator not in (EQUAL, IN):
            continue
        values = _serialised(column.kind, one.values)
        if values is None:
            continue
        found = values if found is None else {value: None for value in found if value in values}
        if name in _SAME:
            applied.append(one)
    return None if found is None else tuple(found)


def _serialised(kind: CqlType, values: Sequence[Any]) -> dict[bytes, None] | None:
    """Each once; those that the type cannot hold equal nothing and are left out. None when that is not known
    of one."""
    encode = encoder(kind)
    found: dict[bytes, None] = {}
    for value in values:
        if value is None:
            continue
        try:
            found[encode(value)] = None
        except InvalidRequest:
            if kind.name == _TIMESTAMP:
                # One without a time zone is one by the zone of who asked.
                return None
    return found


def _between(
    column: KeyColumn, conditions: Iterable[Condition], applied: list[Condition]
) -> tuple[Bound | None, Bound | None]:
    """The narrowest bounds of the column's values."""
    name, kind = column.kind.name, column.kind
    lower: Bound | None = None
    upper: Bound | None = None
    known: list[Condition] = []
    if name not in _SAME and name != _TIMESTAMP:
        return None, None
    for one in conditions:
        if one.column != column.name or one.operator not in (*ABOVE, *BELOW) or one.value is None:
            continue
        try:
            value = encoder(kind)(one.value)
        except InvalidRequest:
            continue
        # What is below a millisecond is gone: whether the bound itself counts is seen when it is compared.
        bound = Bound(value, one.operator in (">=", "<=") or name == _TIMESTAMP)
        if one.operator in ABOVE:
            lower = bound if lower is None else max(lower, bound, key=lambda each: _lower_order(kind, each))
        else:
            upper = bound if upper is None else min(upper, bound, key=lambda each: _upper_order(kind, each))
        known.append(one)
    if name in _SAME:
        exact = lower is not None or name in _MAY_BE_EMPTY
        applied += [one for one in known if exact or one.operator in ABOVE]
    return lower, upper


def _lower_order(kind: CqlType, bound: Bound) -> tuple[bytes, bool]:
    return kind.component(bound.value), not bound.inclusive


def _upper_order(kind: CqlType, bound: Bound) -> tuple[bytes, bool]:
    return kind.component(bound.value), bound.inclusive
