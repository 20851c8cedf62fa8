"""INSERT JSON: one text that gives a value, null or nothing to every column.

Invariant: a decoded row has one value a column of the table, in the table's order.
"""

from __future__ import annotations

import msgspec

from lockstep.cql.bind.json_values import parse_json, serialized, unquoted_name
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.terms import TermPlan, Values
from lockstep.cql.wire.messages import UNSET, Value
from lockstep.schema.types import CqlType
from lockstep.values.errors import InvalidRequest


class Given(TermPlan):
    """A value at an index of what a JsonRow gave: valid as it is."""

    def __init__(self, index: int) -> None:
        self.index = index

    def get(self, values: Values, context: Context) -> Value:
        return values[self.index]


class JsonRow(msgspec.Struct, frozen=True):
    """`columns`: (name, type) in order. `unset`: columns that the text does not name are left alone."""

    source: TermPlan
    columns: tuple[tuple[str, CqlType], ...]
    unset: bool

    def values(self, values: Values, context: Context) -> Values:
        """The values of the bind variables, and behind them those of the columns."""
        data = self.source.get(values, context)
        if data is UNSET:
            raise InvalidRequest("Invalid unset value for INSERT JSON values")
        return [*values, *self.decoded(data)]

    def decoded(self, data: Value) -> list[Value]:
        """One value a column; InvalidRequest when the text is no object or does not fit the table."""
        if not isinstance(data, bytes):
            raise InvalidRequest("Got null for INSERT JSON values")
        text = data.decode()
        try:
            found = parse_json(text)
        except InvalidRequest as error:
            raise InvalidRequest(
                f"Could not decode JSON string as a map: {error.message}. (String was: {text})"
            ) from None
        if found is None:
            raise InvalidRequest("Got null for INSERT JSON values")
        if not isinstance(found, dict):
            raise InvalidRequest(f"Could not decode JSON string as a map. (String was: {text})")
        given = {unquoted_name(name): value for name, value in found.items()}
        row: list[Value] = []
        for name, kind in self.columns:
            if name in given:
                row.append(_column(name, kind, given.pop(name)))
            else:
                row.append(UNSET if self.unset else None)
        if given:
            raise InvalidRequest(f"JSON values map contains unrecognized column: {next(iter(given))}")
        return row


def _column(name: str, kind: CqlType, value: object) -> bytes | None:
    try:
        return serialized(kind, value)
    except InvalidRequest as error:
        raise InvalidRequest(f"Error decoding JSON value for {name}: {error.message}") from None
