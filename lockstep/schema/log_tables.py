"""Logs of changes: the table beside a base table into which its changes are captured, and what changes of the
schema mean for it.

Invariant: the log of a table has its name and a suffix, which no other table may have; it is made and altered
in the entry that changes its base table, and is dropped with it. While the base captures, nothing else alters
its log. Capturing that is turned off leaves the log to be read, and to be dropped alone. A column of the log
keeps its id while the base's column of its name is there. While the base captures, its log is tracked as it
is: one id names a mutation and what that adds to the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from lockstep.schema.model import Column, ColumnKind, DroppedColumn, Keyspace, Schema, Table
from lockstep.schema.table_options import CAPTURE_DEFAULTS, CAPTURE_OFF, checked_options, option, option_map
from lockstep.schema.tracking import REPLICATION_TYPE
from lockstep.schema.types import CqlType, ListType, MapType, SetType, UserDefinedType, uuid_text
from lockstep.schema.user_types import type_in
from lockstep.values.errors import Rejected
from lockstep.values.hash_tree import blake
from lockstep.values.tokens import stream_token, token_of

SUFFIX: Final = "_scylla_cdc_log"
STREAM_ID: Final = "cdc$stream_id"
TIME: Final = "cdc$time"
SEQUENCE: Final = "cdc$batch_seq_no"
OPERATION: Final = "cdc$operation"
TTL: Final = "cdc$ttl"
END_OF_BATCH: Final = "cdc$end_of_batch"
DELETED: Final = "cdc$deleted_"
DELETED_ELEMENTS: Final = "cdc$deleted_elements_"
#: No column of a captured table begins so.
_RESERVED: Final = "cdc$"
#: What every log has: name, type, kind, position.
_FIXED: Final = (
    (STREAM_ID, "blob", ColumnKind.PARTITION_KEY, 0),
    (TIME, "timeuuid", ColumnKind.CLUSTERING, 0),
    (SEQUENCE, "int", ColumnKind.CLUSTERING, 1),
    (OPERATION, "tinyint", ColumnKind.REGULAR, -1),
    (TTL, "bigint", ColumnKind.REGULAR, -1),
    (END_OF_BATCH, "boolean", ColumnKind.REGULAR, -1),
)
_KEY_KINDS: Final = (ColumnKind.PARTITION_KEY, ColumnKind.CLUSTERING)


class CaptureOptions(msgspec.Struct, frozen=True):
    """`preimage`: "false", "true" (of the columns that a change writes) or "full". `keys_only`: what changed
    is named by its key, its values are left out. `ttl_s`: of rows in the log, 0 for ever."""

    preimage: str
    postimage: bool
    keys_only: bool
    ttl_s: int


def capture_options(table: Table) -> CaptureOptions | None:
    """How changes of the table are captured; None when they are not."""
    text = option(table.options, "cdc")
    if text == CAPTURE_OFF:
        return None
    # What an earlier version stored of a table whose changes were to be captured is a word.
    found: Mapping[str, str] = option_map(text) if text.startswith("{") else CAPTURE_DEFAULTS
    assert int(found["ttl"]) >= 0, "options were checked when they were set"
    return CaptureOptions(
        found["preimage"], found["postimage"] == "true", found["delta"] == "keys", int(found["ttl"])
    )


def log_of(schema: Schema, table: Table) -> Table | None:
    """The log that changes of the table go to; None when they are not captured."""
    if option(table.options, "cdc") == CAPTURE_OFF:
        return None
    return schema.table(table.keyspace, table.name + SUFFIX)


def is_log(table: Table) -> bool:
    return table.name.endswith(SUFFIX)


def captured_by(schema: Schema, log: Table) -> Table | None:
    """The table whose changes a log takes; None of other tables."""
    base = schema.table(log.keyspace, log.name.removesuffix(SUFFIX)) if is_log(log) else None
    return base if base is not None and log_of(schema, base) is not None else None


def token_in(table: Table, key: bytes) -> int:
    """The token of a partition key of the table."""
    return stream_token(key) if is_log(table) else token_of(key)


def captures(schema: Schema, keyspace: Keyspace) -> bool:
    """Whether changes of any of its tables are captured."""
    return any(log_of(schema, table) is not None for table in keyspace.by_name.values())


# What logs mean for changes of the schema


def check_name(keyspace: str, name: str) -> None:
    """Rejected when a table that is to be made has the name of a log."""
    if name.endswith(SUFFIX):
        raise Rejected(
            f"Table '{keyspace}.{name}' cannot be made: names that end in {SUFFIX} are those of logs",
            hint="set the option cdc of the table whose changes are to be captured",
        )


def check_not_log(table: Table, what: str) -> None:
    """Rejected when `what` (such as "an index") is to be made from a log."""
    if is_log(table):
        raise Rejected(f"{table.keyspace}.{table.name} is a log of changes: {what} cannot be made from it")


def check_view(keyspace: str, name: str, options: tuple[tuple[str, str], ...]) -> None:
    """Rejected when a view would have the name of a log, or changes of its own to be captured."""
    check_name(keyspace, name)
    if option(options, "cdc") != CAPTURE_OFF:
        raise Rejected(
            f"Changes of {keyspace}.{name} cannot be captured: it is a materialized view",
            hint="capture those of its base table",
        )


def check_alone(schema: Schema, table: Table, what: str) -> None:
    """Rejected when `what` (such as "altered") may not be done to a log while its table captures."""
    base = captured_by(schema, table)
    if base is not None:
        raise Rejected(
            f"{table.keyspace}.{table.name} holds the changes of {base.name} and cannot be {what} alone",
            keyspace=table.keyspace,
            table=table.name,
            hint=f"it follows it; ALTER TABLE {base.name} WITH cdc = {{'enabled': false}} ends capturing",
        )


def logs_follow(schema: Schema, before: Table | None, name: tuple[str, str], epoch: int) -> Schema:
    """The schema with the log of a table that was made or altered as it is after it."""
    table = schema.table(*name)
    assert table is not None, "a table that was altered is there"
    if before is table or option(table.options, "cdc") == CAPTURE_OFF:
        return schema
    space = schema.by_name[table.keyspace]
    _check_captured(table, space)
    log = schema.table(table.keyspace, table.name + SUFFIX)
    if log is None:
        made = _made(schema.next_table_id, table, space, epoch)
        return replace(schema, next_table_id=schema.next_table_id + 1).with_table(made)
    followed = _followed(_tracked_as(_renamed(log, before, table), table), table, space)
    assert followed.id == log.id, "a log that follows its table is the same one"
    return schema if followed is log else schema.with_table(replace(followed, epoch=epoch))


def without_log(schema: Schema, table: Table) -> Schema:
    """The schema without the log of a table that is dropped."""
    log = schema.table(table.keyspace, table.name + SUFFIX)
    return schema if log is None else schema.without_table(log)


def _check_captured(table: Table, space: Keyspace) -> None:
    name = f"{table.keyspace}.{table.name}"

    def refused(reason: str, hint: str = "") -> Rejected:
        return Rejected(f"Changes of {name} cannot be captured: {reason}", hint=hint)

    assert table.view is None, "views have no such option"
    if is_log(table):
        raise refused("it is a log of changes itself")
    if table.is_counter:
        raise refused("it counts, and what a counter holds is no single value")
    if space.tablets is not None and space.tablets.from_ring:
        raise refused(
            f"keyspace {space.name} is on its way from the ring to tablets, and streams are of either",
            f"`lockstep tablets migrate {space.name} finalize`, or `rollback`, ends that",
        )
    taken = [column.name for column in table.columns if column.name.startswith(_RESERVED)]
    if taken:
        raise refused(f"its column {taken[0]} has a name of the log's own")


# The log table


def _made(id_: int, table: Table, space: Keyspace, epoch: int) -> Table:
    columns = [
        Column(at, name, kind, of, position) for at, (name, kind, of, position) in enumerate(_FIXED, start=1)
    ]
    wanted = _wanted(table, space)
    assert wanted.keys().isdisjoint(column.name for column in columns), "names of a log are its own"
    columns += [
        Column(at, name, kind, ColumnKind.REGULAR)
        for at, (name, kind) in enumerate(wanted.items(), start=len(columns) + 1)
    ]
    uuid = bytearray(blake(f"{table.uuid}/{epoch}".encode())[:16])
    uuid[6], uuid[8] = uuid[6] & 0x0F | 0x80, uuid[8] & 0x3F | 0x80
    return Table(
        id_,
        uuid_text(bytes(uuid)),
        table.keyspace,
        table.name + SUFFIX,
        _sorted(columns),
        checked_options(
            (("comment", f"CDC log for {table.keyspace}.{table.name}"), *_tracking_options(table))
        ),
        epoch,
        len(columns) + 1,
    )


def _tracking_options(table: Table) -> tuple[tuple[str, str], ...]:
    """What the options say of how a table is tracked, where they say more than that it is as its keyspace."""
    word = option(table.options, REPLICATION_TYPE)
    return () if word == option((), REPLICATION_TYPE) else ((REPLICATION_TYPE, word),)


def _tracked_as(log: Table, table: Table) -> Table:
    """The log, tracked as its table is; itself when it is."""
    if option(log.options, REPLICATION_TYPE) == option(table.options, REPLICATION_TYPE):
        return log
    others = tuple(one for one in log.options if one[0] != REPLICATION_TYPE)
    return replace(log, options=checked_options(_tracking_options(table), others))


def _wanted(table: Table, space: Keyspace) -> dict[str, str]:
    """Name and type of the log's columns that are about the base's."""
    found: dict[str, str] = {}
    for column in table.columns:
        kind = type_in(space, column.type)
        of_column = {column.name: value_type(kind)}
        if column.kind not in _KEY_KINDS:
            of_column[DELETED + column.name] = "boolean"
            elements = elements_type(kind)
            if elements:
                of_column[DELETED_ELEMENTS + column.name] = elements
        for name in of_column:
            if name in found:
                raise Rejected(
                    f"Changes of {table.keyspace}.{table.name} cannot be captured: two of its columns would "
                    f"have the log's column {name}"
                )
        found.update(of_column)
    return found


def value_type(kind: CqlType) -> str:
    """The type of the log's column for a value of the base's; of a list that is not frozen, its elements by
    their ids."""
    if not kind.is_multicell:
        return kind.text
    if isinstance(kind, ListType):
        return f"frozen<map<timeuuid, {kind.element.text}>>"
    return f"frozen<{kind.text}>"


def elements_type(kind: CqlType) -> str:
    """The type of the log's column for elements that are deleted; empty where only the whole can be."""
    if not kind.is_multicell:
        return ""
    if isinstance(kind, SetType):
        return f"frozen<set<{kind.element.text}>>"
    if isinstance(kind, MapType):
        return f"frozen<set<{kind.key.text}>>"
    if isinstance(kind, ListType):
        return "frozen<set<timeuuid>>"
    assert isinstance(kind, UserDefinedType), f"{kind.text} has cells of its own"
    return "frozen<set<smallint>>"


def _renamed(log: Table, before: Table | None, table: Table) -> Table:
    """The log with the new names of columns that were renamed, which are of the key."""
    was = before.by_id if before is not None else {}
    names = {
        was[one.id].name: one.name for one in table.columns if one.id in was and was[one.id].name != one.name
    }
    if not names:
        return log
    columns = [replace(column, name=names.get(column.name, column.name)) for column in log.columns]
    assert len({column.name for column in columns}) == len(columns), "a column has a name of its own"
    return replace(log, columns=_sorted(columns))


def _followed(log: Table, table: Table, space: Keyspace) -> Table:
    """The log with exactly the columns that its table calls for; itself when it has them."""
    wanted = _wanted(table, space)
    fixed = {name for name, *_ in _FIXED}
    there = {column.name: column.type for column in log.columns if column.name not in fixed}
    if there == wanted:
        return log
    assert log.partition_key[0].name == STREAM_ID, "a log is by its streams"
    kept = [
        column for column in log.columns if column.name in fixed or wanted.get(column.name) == column.type
    ]
    gone = [column for column in log.columns if column not in kept]
    names = {column.name for column in kept}
    added = list(_numbered(wanted, names, log.next_column_id))
    assert len(kept) + len(added) == len(fixed) + len(wanted), "a log has what its table calls for"
    # No column has an id again, so no time tells cells that are dead from others.
    dropped = (DroppedColumn(one.id, one.name, one.type, 0, one.kind) for one in gone)
    return replace(
        log,
        columns=_sorted([*kept, *added]),
        next_column_id=log.next_column_id + len(added),
        dropped=(*log.dropped, *dropped),
    )


def _numbered(wanted: Mapping[str, str], names: set[str], first: int) -> Iterator[Column]:
    new = [(name, kind) for name, kind in wanted.items() if name not in names]
    for at, (name, kind) in enumerate(new, start=first):
        yield Column(at, name, kind, ColumnKind.REGULAR)


def _sorted(columns: list[Column]) -> tuple[Column, ...]:
    return tuple(sorted(columns, key=lambda column: (column.kind, column.position, column.name)))


def check_references(schema: Schema) -> None:
    """Assert that each table whose changes are captured has a log with columns for all of its own."""
    for keyspace in schema.keyspaces:
        for table in keyspace.tables:
            log = log_of(schema, table)
            if log is None:
                continue
            assert not log.views and not log.indexes, f"nothing is made from {log.name}"
            for column in table.columns:
                assert column.name in log.by_name, f"{log.name} lacks {column.name}"
