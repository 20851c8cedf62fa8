"""Changes as statements that bring another table to the state of the table they are of.

Invariant: a pure function of a change and the time. Each statement has the write time of its change, so
applying a change again, later or beside others changes nothing: the newest of each cell stays, as in the
table that was followed. What is to live on lives as long as it does there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import Value
from lockstep.schema.types import CollectionType, ListType, MapType, SetType
from lockstep.spark.changes.columns import (
    CHANGE_DELETED,
    CHANGE_ELEMENTS,
    CHANGE_ID,
    CHANGE_OPERATION,
    CHANGE_TTL,
    CHANGE_WRITTEN,
    INSERT,
    PARTITION_DELETE,
    POSTIMAGE,
    PREFIX,
    PREIMAGE,
    RANGE_ENDS,
    RANGE_STARTS,
    ROW_DELETE,
    UPDATE,
)
from lockstep.spark.encoders import encoder
from lockstep.spark.ring import TableColumn, TableShape, quoted
from lockstep.values.errors import ConfigurationError, InvalidRequest

#: What applying needs of a stream, beside the table's columns.
NEEDED: Final = (CHANGE_OPERATION, CHANGE_WRITTEN, CHANGE_ID, CHANGE_TTL, CHANGE_DELETED)
_US_PER_S: Final = 1_000_000
#: The operators of a range's bounds, by whether they are inclusive, in the clustering order.
_FROM: Final = {True: ">=", False: ">"}
_UNTIL: Final = {True: "<=", False: "<"}
_MIRRORED: Final = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}


class Statement(msgspec.Struct, frozen=True):
    """What is sent: a text, which is prepared, its values, and the write time."""

    text: str
    values: tuple[Value, ...]
    written_us: int


class Assigned(msgspec.Struct, frozen=True):
    """A column's quoted name, its value or elements, and what stands between them in an UPDATE."""

    name: str
    value: Value
    how: str = ""

    @property
    def text(self) -> str:
        return f"{self.name} = {f'{self.name} {self.how} ' if self.how else ''}?"


class Target(msgspec.Struct, frozen=True):
    """The table that changes are applied to; `descending` are its clustering columns in that order, and
    `names` the columns that the stream brings."""

    shape: TableShape
    descending: tuple[str, ...]
    names: tuple[str, ...]


def check_target(shape: TableShape, names: Sequence[str]) -> None:
    """ConfigurationError for columns whose changes cannot be applied as they are told."""
    for name in names:
        kind = shape.column(name).cql_type
        if kind.is_multicell and (isinstance(kind, ListType) or not isinstance(kind, CollectionType)):
            raise ConfigurationError(
                f"changes of column {name} ({kind.text}) cannot be applied to a table: they tell of its "
                "parts by ids that only the followed table has",
                hint="leave it out with the option columns, or make it frozen",
            )


class Applier:
    """Of one task. `now_us` gives the time."""

    def __init__(self, target: Target, now_us: Callable[[], int]) -> None:
        self._shape = target.shape
        self._now_us = now_us
        self._descending = frozenset(target.descending)
        self._table = f"{quoted(target.shape.keyspace)}.{quoted(target.shape.table)}"
        self._partition = target.shape.partition_key
        self._clustering = [column for column in target.shape.key if column.kind == "clustering"]
        keys = {column.name for column in target.shape.key}
        self._others = [target.shape.column(name) for name in target.names if name not in keys]
        self._encoders = {column.name: encoder(column.cql_type) for column in target.shape.columns}
        self._elements = {column.name: _elements(column) for column in self._others}
        self._range: Mapping[str, Any] | None = None

    def statements(self, change: Mapping[str, Any]) -> Iterator[Statement]:
        """What applies one row of a stream; nothing for states before and after. InvalidRequest when it
        cannot be."""
        operation = change[CHANGE_OPERATION]
        if operation in (PREIMAGE, POSTIMAGE):
            return
        if operation in RANGE_STARTS:
            self._range = change
        elif operation in RANGE_ENDS:
            yield self._range_delete(change)
        elif operation == PARTITION_DELETE:
            yield self._delete(change, self._partition)
        elif operation == ROW_DELETE:
            yield self._delete(change, (*self._partition, *self._clustering))
        elif operation in (INSERT, UPDATE):
            yield from self._written(change, inserts=operation == INSERT)
        else:
            raise InvalidRequest(f"a change of operation {operation!r} is not known")

    def finish(self) -> None:
        """InvalidRequest when a range that began has not ended: its rows came to different tasks."""
        if self._range is not None:
            raise _torn(self._range)

    # -- rows ---------------------------------------------------------------------------------------

    def _written(self, change: Mapping[str, Any], *, inserts: bool) -> Iterator[Statement]:
        is_static = bool(self._clustering) and change[self._clustering[0].name] is None
        keys = self._partition if is_static else (*self._partition, *self._clustering)
        ttl_s = change[CHANGE_TTL] or 0
        left_s = ttl_s - (self._now_us() - change[CHANGE_WRITTEN]) // _US_PER_S if ttl_s else 0
        is_gone = bool(ttl_s) and left_s <= 0
        plain: list[Assigned] = []
        more: list[Assigned] = []
        for column in self._others:
            if (column.kind == "static") is is_static:
                plain += self._set(column, change, is_gone)
                more += self._changed(column, change, is_gone)
        life = max(left_s, 0).to_bytes(4, "big")
        if inserts and not is_static and not is_gone:
            # Unlike an UPDATE it makes a row that is there without any column.
            names = [*(quoted(key.name) for key in keys), *(one.name for one in plain)]
            marks = ", ".join("?" for _ in names)
            text = f"INSERT INTO {self._table} ({', '.join(names)}) VALUES ({marks}) USING TTL ?"
            yield self._made(change, text, (*self._values(change, keys), *(one.value for one in plain), life))
        elif plain:
            yield self._update(change, keys, plain, life)
        for one in more:
            yield self._update(change, keys, [one], life)

    def _set(self, column: TableColumn, change: Mapping[str, Any], is_gone: bool) -> list[Assigned]:
        """The value of a column that is written whole, or deleted."""
        value, is_deleted = change[column.name], column.name in (change[CHANGE_DELETED] or ())
        if value is None and not is_deleted:
            return []
        if column.cql_type.is_multicell and not is_deleted:
            return []
        told = None if value is None or is_gone else self._encoders[column.name](value)
        return [Assigned(quoted(column.name), told)]

    def _changed(self, column: TableColumn, change: Mapping[str, Any], is_gone: bool) -> list[Assigned]:
        """Elements that a collection gets and loses."""
        name, found = quoted(column.name), []
        remove = self._elements[column.name]
        if remove is None:
            return []
        value = change[column.name]
        if value and column.name not in (change[CHANGE_DELETED] or ()):
            if is_gone:
                keys = [key for key, _ in value] if isinstance(column.cql_type, MapType) else value
                found.append(Assigned(name, remove(keys), "-"))
            else:
                found.append(Assigned(name, self._encoders[column.name](value), "+"))
        taken = change.get(CHANGE_ELEMENTS + column.name)
        if taken:
            found.append(Assigned(name, remove(taken), "-"))
        return found

    def _update(
        self,
        change: Mapping[str, Any],
        keys: Sequence[TableColumn],
        assigned: Sequence[Assigned],
        life: bytes,
    ) -> Statement:
        told = ", ".join(one.text for one in assigned)
        text = f"UPDATE {self._table} USING TTL ? SET {told} WHERE {_equal(keys)}"
        values = (life, *(one.value for one in assigned), *self._values(change, keys))
        return self._made(change, text, values)

    def _delete(self, change: Mapping[str, Any], keys: Sequence[TableColumn]) -> Statement:
        return self._made(
            change, f"DELETE FROM {self._table} WHERE {_equal(keys)}", self._values(change, keys)
        )

    # -- ranges -------------------------------------------------------------------------------------

    def _range_delete(self, last: Mapping[str, Any]) -> Statement:
        first, self._range = self._range, None
        if first is None or first[CHANGE_ID] != last[CHANGE_ID]:
            raise _torn(last)
        low, high = self._bound(first), self._bound(last)
        shared = 0
        while shared < min(len(low), len(high)) and low[shared] == high[shared]:
            shared += 1
        equal = [*self._partition, *self._clustering[:shared]]
        where, values = [_equal(equal)], list(self._values(first, equal))
        if max(len(low), len(high)) > shared + 1:
            raise InvalidRequest(
                "a deleted range of several clustering columns at once cannot be applied to a table"
            )
        ends = (
            (first, low, _FROM[first[CHANGE_OPERATION] == RANGE_STARTS[0]]),
            (last, high, _UNTIL[last[CHANGE_OPERATION] == RANGE_ENDS[0]]),
        )
        for change, bound, operator in ends:
            if len(bound) > shared:
                column = self._clustering[shared]
                turned = _MIRRORED[operator] if column.name in self._descending else operator
                where.append(f"{quoted(column.name)} {turned} ?")
                values += self._values(change, [column])
        return self._made(last, f"DELETE FROM {self._table} WHERE {' AND '.join(where)}", tuple(values))

    def _bound(self, change: Mapping[str, Any]) -> list[Any]:
        found = []
        for column in self._clustering:
            if change[column.name] is None:
                break
            found.append(change[column.name])
        return found

    # -- statements ---------------------------------------------------------------------------------

    def _values(self, change: Mapping[str, Any], columns: Sequence[TableColumn]) -> tuple[Value, ...]:
        return tuple(self._encoders[column.name](change[column.name]) for column in columns)

    def _made(self, change: Mapping[str, Any], text: str, values: tuple[Value, ...]) -> Statement:
        return Statement(text, values, change[CHANGE_WRITTEN])


def table_columns(names: Sequence[str]) -> list[str]:
    """Those of a stream's columns that are the table's. ConfigurationError when it is no stream of changes,
    or lacks what applying needs."""
    missing = [name for name in NEEDED if name not in names]
    if len(missing) == len(NEEDED):
        raise ConfigurationError(
            "only changes can be streamed into a table",
            hint='other rows: .foreachBatch(lambda rows, batch: rows.write.format("lockstep")...)',
        )
    if missing:
        raise ConfigurationError(f"the stream lacks {', '.join(missing)}, which says how changes are applied")
    return [name for name in names if not name.startswith(PREFIX)]


def _equal(keys: Sequence[TableColumn]) -> str:
    return " AND ".join(f"{quoted(key.name)} = ?" for key in keys)


def _elements(column: TableColumn) -> Callable[[Any], bytes] | None:
    """How elements that are taken out are serialised; None for a column that has none."""
    kind = column.cql_type
    if not kind.is_multicell:
        return None
    if isinstance(kind, MapType):
        return encoder(SetType(kind.key, frozen=True))
    return encoder(kind)


def _torn(change: Mapping[str, Any]) -> InvalidRequest:
    return InvalidRequest(
        f"the deleted range of change {change[CHANGE_ID]} is not whole: rows of a change were put into other "
        "tasks, or filtered"
    )
