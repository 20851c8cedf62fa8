"""Filters of Spark as conditions that choose what is read.

Invariant: what is given back of the filters is whatever the selection does not apply wholly, the same objects
in their order, so that Spark applies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from lockstep.spark.ring import TableColumn, TableShape
from lockstep.spark.selecting import EQUAL, IN, Condition, KeyColumn, Selection, select

_OPERATORS: Final[dict[type[Filter], str]] = {
    EqualTo: EQUAL,
    EqualNullSafe: EQUAL,
    In: IN,
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def selection_of(shape: TableShape, filters: Sequence[Filter]) -> tuple[Selection | None, list[Filter]]:
    """(what the filters choose, filters Spark must still apply). None: they do not fix the partition key."""
    conditions = [(one, found) for one in filters if (found := _condition(one)) is not None]
    selection, applied = select(
        _columns(shape.partition_key), _columns(shape.clustering), [condition for _, condition in conditions]
    )
    done = {id(one) for one, condition in conditions if any(condition is each for each in applied)}
    return selection, [one for one in filters if id(one) not in done]


def _condition(found: Filter) -> Condition | None:
    operator = _OPERATORS.get(type(found))
    path: tuple[str, ...] = getattr(found, "attribute", ())
    value = getattr(found, "value", None)
    if operator is None or len(path) != 1 or value is None:
        return None
    return Condition(path[0], operator, value)


def _columns(columns: Sequence[TableColumn]) -> list[KeyColumn]:
    return [KeyColumn(column.name, column.cql_type) for column in columns]
