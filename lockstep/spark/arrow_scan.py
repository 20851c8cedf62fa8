"""A table as Arrow batches without Spark, for pyarrow, pandas, polars and whatever else takes them.

Invariant: what comes is every row for which all filters hold. Those that name keys and slices choose what
replicas read; all others are applied here to what they send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.scans.arrow_columns import arrow_type
from lockstep.schema.clustering import derived_key
from lockstep.schema.log_tables import SUFFIX
from lockstep.schema.model import Column
from lockstep.spark.options import Options, parse_options
from lockstep.spark.selecting import IN, NOT_IN, Condition, KeyColumn, select
from lockstep.spark.snapshot_reading import SnapshotScan, slices_of
from lockstep.spark.snapshots import Snapshot, close_snapshot, open_snapshot
from lockstep.values.errors import ConfigurationError
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, stream_token, token_of

Filter = tuple[str, str, Any]
#: What is wanted of a value that is compared; one that is missing is never wanted.
_COMPARED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_OTHER_NAMES: Final = {"==": "="}
_OPERATORS: Final = (*_COMPARED, IN, NOT_IN)


def scan(
    keyspace: str, table: str, columns: Sequence[str], filters: Sequence[Filter], options: dict[str, str]
) -> pa.RecordBatchReader:
    """See `lockstep.spark.scan_arrow`."""
    given = {"keyspace": keyspace, "table": table, **options}
    if columns:
        given["columns"] = ",".join(columns)
    parsed = parse_options(given)
    conditions = [_condition(one) for one in filters]
    snapshot = open_snapshot(parsed)
    try:
        names = parsed.columns or tuple(column.name for column in snapshot.table.in_order)
        found = _Filtered(parsed, snapshot, names, conditions)
    except BaseException:
        close_snapshot(parsed, snapshot)
        raise
    return pa.RecordBatchReader.from_batches(found.schema, _batches(parsed, snapshot, found))


def _condition(told: Filter) -> Condition:
    column, named, value = told
    operator = _OTHER_NAMES.get(named.lower(), named.lower())
    if operator not in _OPERATORS:
        raise ConfigurationError(
            f"a filter of {column} has the operator {named!r}, but takes {', '.join(_OPERATORS)}"
        )
    values = value if operator in (IN, NOT_IN) else (value,)
    if isinstance(values, str | bytes) or any(one is None for one in values):
        raise ConfigurationError(f"the filter of {column} by {named!r} wants values, not {value!r}")
    return Condition(column, operator, tuple(values) if operator in (IN, NOT_IN) else value)


class _Filtered:
    """The wanted columns of the rows for which conditions hold."""

    def __init__(
        self, options: Options, snapshot: Snapshot, names: Sequence[str], conditions: Sequence[Condition]
    ) -> None:
        table = snapshot.table
        self._options, self._snapshot = options, snapshot
        values = [self._value(one) for one in conditions]
        self._selection, applied = select(
            self._key(table.table.partition_key), self._key(table.table.clustering), conditions
        )
        self._checks = [
            (one, value)
            for one, value in zip(conditions, values, strict=True)
            if not any(one is done for done in applied)
        ]
        read = tuple(dict.fromkeys((*names, *(one.column for one, _ in self._checks))))
        # Where rows are left out here, how many are to be read is not known.
        rows_max = 0 if self._checks else options.limit
        self._scan = SnapshotScan(options, snapshot, read, rows_max=rows_max)
        self.schema = pa.schema([self._scan.schema.field(name) for name in names])

    def _key(self, columns: Sequence[Column]) -> list[KeyColumn]:
        return [KeyColumn(column.name, self._snapshot.table.kinds[column.name]) for column in columns]

    def _value(self, condition: Condition) -> Any:
        """What is compared with, as the column has it. ConfigurationError."""
        name = self._snapshot.table.column(condition.column).name
        kind = arrow_type(self._snapshot.table.kinds[name], self._options.decimal_scale)
        try:
            if pa.types.is_nested(kind):
                raise pa.ArrowInvalid("collections are not compared")
            if condition.operator in (IN, NOT_IN):
                return pa.array(list(condition.values), kind)
            return pa.scalar(condition.value, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as error:
            raise ConfigurationError(
                f"the filter of {name} by {condition.value!r} does not fit its type {kind}: {error}"
            ) from None

    def batches(self) -> Iterator[pa.RecordBatch]:
        for batch in self._read():
            kept = batch
            if self._checks:
                kept = batch.filter(self._mask(batch))
            if kept.num_rows:
                yield kept.select(self.schema.names)

    def _mask(self, batch: pa.RecordBatch) -> Any:
        mask = None
        for one, value in self._checks:
            column = batch.column(one.column)
            if one.operator in (IN, NOT_IN):
                found = pc.is_in(column, value_set=value)
                found = pc.invert(found) if one.operator == NOT_IN else found
                found = pc.and_(found, pc.is_valid(column))
            else:
                found = _COMPARED[one.operator](column, value)
            mask = found if mask is None else pc.and_(mask, found)
        return pc.fill_null(mask, False)

    def _read(self) -> Iterator[pa.RecordBatch]:
        ranges, selection = self._options.token_ranges, self._selection
        if selection is None:
            return self._scan.ranges(ranges or ((TOKEN_MIN, TOKEN_MAX),))
        of_key = stream_token if self._options.table.endswith(SUFFIX) else token_of
        keys = [derived_key(parts) for parts in selection.keys]
        wanted = [(of_key(key), key) for key in keys]
        if ranges:
            wanted = [one for one in wanted if any(left < one[0] <= right for left, right in ranges)]
        return self._scan.keys(wanted, slices_of(self._snapshot, selection))


def _batches(options: Options, snapshot: Snapshot, found: _Filtered) -> Iterator[pa.RecordBatch]:
    left = options.limit
    try:
        for batch in found.batches():
            yield batch.slice(0, left) if options.limit else batch
            left -= batch.num_rows
            if options.limit and left <= 0:
                return
    finally:
        close_snapshot(options, snapshot)
