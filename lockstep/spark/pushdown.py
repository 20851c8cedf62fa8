"""Filters of Spark as conditions that choose what is read, and whether Spark hands filters on at all.

Invariant: what is given back of the filters is whatever the selection does not apply wholly, the same objects
in their order, so that Spark applies it. A reader offers to take filters only where Spark will have it.
"""

from __future__ import annotations

import sys
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

from lockstep.spark.options import Options
from lockstep.spark.ring import TableColumn, TableShape
from lockstep.spark.selecting import EQUAL, IN, Condition, KeyColumn, Selection, select

#: Without it Spark keeps all filters for itself, and refuses a reader that would take some. Off by default.
SETTING: Final = "spark.sql.python.filterPushdown.enabled"
_OPERATORS: Final[dict[type[Filter], str]] = {
    EqualTo: EQUAL,
    EqualNullSafe: EQUAL,
    In: IN,
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
#: Modules of PySpark in which a reader is made: of a query with filters that are handed on, and of any other.
_HANDING_ON: Final = "pyspark.sql.worker.data_source_pushdown_filters"
_PLANNING: Final = "pyspark.sql.worker.plan_data_source_read"
_IS_ON: Final = "enable_pushdown"


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


def takes_filters(options: Options) -> bool:
    """Whether a reader that is made now is to take filters: when the option says so, or else when Spark hands
    them on. Tells whoever runs the job how they would be."""
    if options.filter_pushdown is not None:
        return options.filter_pushdown
    is_on = _setting()
    if is_on is False:
        sys.stderr.write(
            f"lockstep: {options.keyspace}.{options.table}: filters are not pushed down: set {SETTING} to "
            "true, or make the session by lockstep.spark.session (option filterPushdown=false: without this "
            "line)\n"
        )
        sys.stderr.flush()
    return bool(is_on)


def _setting() -> bool | None:
    """The setting, as the process of Spark's has it that is making a reader; None elsewhere. No API tells it
    to a data source."""
    frame = sys._getframe(1)
    while True:
        module = getattr(frame.f_globals.get("__spec__"), "name", "")
        if module == _HANDING_ON:
            return True
        if module == _PLANNING and _IS_ON in frame.f_locals:
            return bool(frame.f_locals[_IS_ON])
        if frame.f_back is None:
            return None
        frame = frame.f_back
