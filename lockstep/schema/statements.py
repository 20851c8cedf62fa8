"""What a schema statement means, and is refused for, beyond what its change is when it is applied.

Invariant: nothing that applies an entry asks here. So the entries of a log mean on every version what they
meant when they were written; what is refused here by a schema that is just being replaced does no harm.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from lockstep.schema.changes import (
    AddColumns,
    AlterKeyspace,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropColumns,
    SchemaChange,
)
from lockstep.schema.function_changes import CreateAggregate, CreateFunction
from lockstep.schema.model import Schema, Table
from lockstep.schema.replication_options import with_factor
from lockstep.schema.summaries import declared_type
from lockstep.schema.table_options import OptionValue, refused
from lockstep.schema.types import UserDefinedType
from lockstep.schema.user_types import check_brought_back
from lockstep.schema.view_changes import AlterView, CreateView
from lockstep.values.errors import Rejected

_NOT_IN_FUNCTION_NAMES: Final = "/[]"


def meant(schema: Schema, change: SchemaChange) -> SchemaChange:
    """The change to put into the log. Rejected."""
    if isinstance(change, CreateKeyspace | AlterKeyspace):
        return _with_factor(schema, change)
    if isinstance(change, AddColumns | DropColumns):
        table = schema.table(change.keyspace, change.name)
        if table is not None:
            return _columns_meant(schema, table, change)
    elif isinstance(change, CreateFunction | CreateAggregate):
        if any(sign in change.name for sign in _NOT_IN_FUNCTION_NAMES):
            word = "Function" if isinstance(change, CreateFunction) else "Aggregate"
            raise Rejected(f"{word} name '{change.name}' is invalid")
    elif isinstance(change, CreateTable | AlterOptions | CreateView | AlterView):
        _check_compression(dict(change.options).get("compression"))
    return change


def _with_factor(schema: Schema, change: CreateKeyspace | AlterKeyspace) -> SchemaChange:
    if change.replication is None:
        return change
    known = schema.by_name.get(change.keyspace) if isinstance(change, AlterKeyspace) else None
    earlier = known.replication if known is not None else None
    return replace(change, replication=with_factor(change.replication, earlier))


def _columns_meant(schema: Schema, table: Table, change: AddColumns | DropColumns) -> SchemaChange:
    space = schema.by_name[table.keyspace]
    if isinstance(change, DropColumns):
        for column in (table.by_name[name] for name in change.columns if name in table.by_name):
            kind = declared_type(space, column.type)
            if isinstance(kind, UserDefinedType) and kind.is_multicell:
                raise Rejected(f"Cannot drop non-frozen column {column.name} of user type {kind.text}")
        return change
    again: list[str] = []
    for added in change.columns:
        earlier = [dropped for dropped in table.dropped if dropped.name == added.name]
        if not earlier or added.name in table.by_name:
            continue
        try:
            was, kind = declared_type(space, earlier[-1].type), declared_type(space, added.type)
        except Rejected:
            # It was of a user's type that is gone too; or it is to be of one that there is not, which is told
            # when it is applied.
            continue
        check_brought_back(added.name, kind, added.kind, was, earlier[-1].kind)
        again.append(added.name)
    return replace(change, brings_back=tuple(again)) if again else change


def _check_compression(given: OptionValue | None) -> None:
    if isinstance(given, tuple) and dict(given).get("class") == "":
        raise refused("The 'class' option must not be empty. To disable compression use 'enabled' : false")
