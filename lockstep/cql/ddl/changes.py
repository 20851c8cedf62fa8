"""Schema statements to schema changes.

Owns: what the text alone decides (which columns form the key, clustering order, option names). Invariant:
the change holds all that applying it needs; nothing here looks at the schema.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepared import Prepared
from lockstep.cql.ddl.function_ddl import FunctionStatement, function_change
from lockstep.cql.ddl.view_statements import ViewStatement, index_change, view_change
from lockstep.cql.functions.native import random_uuid
from lockstep.cql.parse import tree
from lockstep.schema.changes import (
    AddColumns,
    AlterKeyspace,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropColumns,
    DropKeyspace,
    DropTable,
    EmptyTable,
    NewColumn,
    RenameColumns,
    SchemaChange,
)
from lockstep.schema.model import ColumnKind
from lockstep.schema.type_changes import AddTypeField, CreateType, DropType, RenameTypeFields
from lockstep.schema.types import parse_uuid, uuid_text
from lockstep.schema.view_changes import ViewChange
from lockstep.values.errors import ConfigurationInvalid, InvalidRequest, SyntaxError_
from lockstep.values.node_limits import TABLE_COLUMNS_MAX, USER_TYPE_FIELDS_MAX


def schema_change(prepared: Prepared, context: Context) -> SchemaChange:
    """The change that a prepared DDL or TRUNCATE statement asks for; `context` gives new uuids.

    InvalidRequest, SyntaxError_ or ConfigurationInvalid for what the text alone shows to be wrong.
    """
    statement = prepared.statement
    if isinstance(statement, tree.CreateKeyspaceStatement):
        replication, durable, tablets, tracking = _keyspace_properties(statement.properties)
        if replication is None:
            raise ConfigurationInvalid("Missing mandatory replication strategy class")
        if_not_exists = statement.if_not_exists
        return CreateKeyspace(
            statement.name,
            replication,
            durable is not False,
            if_not_exists,
            tablets=tablets,
            replication_type=tracking,
        )
    if isinstance(statement, tree.AlterKeyspaceStatement):
        replication, durable, tablets, tracking = _keyspace_properties(statement.properties)
        return AlterKeyspace(
            statement.name, replication, durable, statement.if_exists, tablets, replication_type=tracking
        )
    if isinstance(statement, tree.DropKeyspaceStatement):
        return DropKeyspace(statement.name, statement.if_exists)
    if isinstance(statement, tree.CreateTableStatement):
        return _create_table(statement, prepared.keyspace, context)
    if isinstance(statement, tree.DropTableStatement):
        return DropTable(prepared.keyspace, prepared.table, statement.if_exists)
    if isinstance(statement, tree.Truncate):
        return EmptyTable(prepared.keyspace, prepared.table)
    if isinstance(statement, tree.CreateTypeStatement):
        if len(statement.fields) > USER_TYPE_FIELDS_MAX:
            raise InvalidRequest(f"A user-defined type has at most {USER_TYPE_FIELDS_MAX} fields")
        return CreateType(prepared.keyspace, prepared.table, statement.fields, statement.if_not_exists)
    if isinstance(statement, tree.AlterTypeStatement):
        return _alter_type(statement, prepared.keyspace)
    if isinstance(statement, tree.DropTypeStatement):
        return DropType(prepared.keyspace, prepared.table, statement.if_exists)
    if isinstance(statement, tree.CreateIndexStatement | tree.DropIndexStatement):
        return index_change(statement, prepared.keyspace)
    if isinstance(statement, ViewStatement):
        return _view_change(statement, prepared.keyspace, context)
    if isinstance(statement, FunctionStatement):
        return function_change(statement, prepared.keyspace)
    assert isinstance(statement, tree.AlterTableStatement), f"{prepared.kind} is no schema statement"
    return _alter_table(statement, prepared.keyspace, context)


_Map = tuple[tuple[str, str], ...]


def _keyspace_properties(
    properties: tree.Properties,
) -> tuple[_Map | None, bool | None, _Map | None, str | None]:
    maps: dict[str, _Map] = {}
    durable: bool | None = None
    replication_type: str | None = None
    for name, value in properties.options:
        if name in ("replication", "tablets"):
            if isinstance(value, str):
                raise SyntaxError_(f"Invalid value for property '{name}'. It should be a map of options.")
            maps[name] = value
        elif name == "durable_writes":
            if not isinstance(value, str) or value.lower() not in ("true", "false"):
                raise SyntaxError_(f"Invalid boolean value {value} for 'durable_writes'")
            durable = value.lower() == "true"
        elif name == "replication_type":
            if not isinstance(value, str):
                raise SyntaxError_(f"Invalid value for property '{name}'. It should be a simple value.")
            replication_type = value
        else:
            raise SyntaxError_(f"Unknown property '{name}'")
    if properties.clustering_order or properties.compact_storage:
        raise SyntaxError_("A keyspace has no clustering order or storage kind")
    return maps.get("replication"), durable, maps.get("tablets"), replication_type


def _create_table(statement: tree.CreateTableStatement, keyspace: str, context: Context) -> CreateTable:
    name, properties = statement.table.name, statement.properties
    if properties.compact_storage:
        raise InvalidRequest("COMPACT STORAGE tables are not allowed starting with version 4.0")
    key = _primary_key(statement, f"{keyspace}.{name}")
    kinds = {
        **{column: (ColumnKind.PARTITION_KEY, position) for position, column in enumerate(key.partition)},
        **{column: (ColumnKind.CLUSTERING, position) for position, column in enumerate(key.clustering)},
    }
    if len(statement.columns) > TABLE_COLUMNS_MAX:
        many = f"Table '{name}' has {len(statement.columns)} columns"
        raise InvalidRequest(f"{many}, more than {TABLE_COLUMNS_MAX}")
    declared: dict[str, None] = {}
    for definition in statement.columns:
        if definition.name in declared:
            raise InvalidRequest(f"Duplicate column '{definition.name}' declaration for table '{name}'")
        declared[definition.name] = None
    for column in (*key.partition, *key.clustering):
        if column not in declared:
            raise InvalidRequest(f"Unknown column '{column}' referenced in PRIMARY KEY for table '{name}'")
    descending = _descending(name, properties.clustering_order, key.clustering)
    columns = []
    for definition in statement.columns:
        kind, position = kinds.get(definition.name, (ColumnKind.REGULAR, -1))
        if definition.static:
            if position >= 0:
                raise InvalidRequest(f"Static column '{definition.name}' cannot be part of the PRIMARY KEY")
            kind = ColumnKind.STATIC
        columns.append(
            NewColumn(definition.name, definition.type, kind, position, definition.name in descending)
        )
    uuid, options = _table_id(properties.options)
    return CreateTable(
        keyspace,
        name,
        uuid if uuid is not None else uuid_text(random_uuid(context)),
        tuple(columns),
        options,
        statement.if_not_exists,
    )


def _primary_key(statement: tree.CreateTableStatement, where: str) -> tree.PrimaryKey:
    keys = list(statement.primary_keys)
    keys += [tree.PrimaryKey((column.name,), ()) for column in statement.columns if column.primary]
    if not keys:
        raise InvalidRequest(f"No PRIMARY KEY specifed for table '{where}' (exactly one required)")
    if len(keys) > 1:
        raise InvalidRequest(f"Multiple PRIMARY KEYs specified for table '{where}' (exactly one required)")
    names = [*keys[0].partition, *keys[0].clustering]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(
                f"Duplicate column '{name}' in PRIMARY KEY clause for table '{statement.table.name}'"
            )
    return keys[0]


def _view_change(statement: ViewStatement, keyspace: str, context: Context) -> ViewChange:
    if isinstance(statement, tree.DropViewStatement):
        return view_change(statement, keyspace, "", (), ())
    if isinstance(statement, tree.AlterViewStatement):
        return view_change(statement, keyspace, "", statement.properties.options, ())
    key = statement.primary_key
    orders = statement.properties.clustering_order
    if orders and tuple(name for name, _ in orders) != (key.clustering if key is not None else ()):
        raise InvalidRequest(
            "Clustering key columns must exactly match columns in CLUSTERING ORDER BY directive"
        )
    descending = [name for name, turned in orders if turned]
    uuid, options = _table_id(statement.properties.options)
    chosen = uuid if uuid is not None else uuid_text(random_uuid(context))
    return view_change(statement, keyspace, chosen, options, sorted(descending))


def _descending(table: str, orders: Sequence[tuple[str, bool]], clustering: Sequence[str]) -> frozenset[str]:
    if not orders:
        return frozenset()
    names = [name for name, _ in orders]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InvalidRequest(
            f"Duplicate column '{twice[0]}' in CLUSTERING ORDER BY clause for table '{table}'"
        )
    unknown = [name for name in names if name not in clustering]
    if unknown:
        raise InvalidRequest(
            "Only clustering key columns can be defined in CLUSTERING ORDER directive: "
            f"[{', '.join(unknown)}] are not clustering columns"
        )
    # Of what follows the named ones nothing need be said.
    for name, expected in zip(names, clustering, strict=False):
        if name == expected:
            continue
        if expected not in names:
            raise InvalidRequest(f"Missing CLUSTERING ORDER for column {expected}")
        raise InvalidRequest(
            "The order of columns in the CLUSTERING ORDER directive must match that of the clustering "
            f"columns ({expected} must appear before {name})"
        )
    return frozenset(name for name, turned in orders if turned)


def _table_id(
    options: Sequence[tuple[str, tree.OptionValue]],
) -> tuple[str | None, tuple[tuple[str, tree.OptionValue], ...]]:
    """The ID option, which DESCRIBE ... WITH INTERNALS writes, taken out of the others."""
    uuid = None
    rest = []
    for name, value in options:
        if name != "id":
            rest.append((name, value))
            continue
        if not isinstance(value, str):
            raise ConfigurationInvalid("Invalid table id")
        uuid = uuid_text(parse_uuid(value))
    return uuid, tuple(rest)


def _alter_table(statement: tree.AlterTableStatement, keyspace: str, context: Context) -> SchemaChange:
    name, if_exists = statement.table.name, statement.if_exists
    if statement.alter_type is not None:
        raise InvalidRequest("Altering column types is no longer supported")
    if statement.add:
        columns = tuple(
            NewColumn(column.name, column.type, ColumnKind.STATIC if column.static else ColumnKind.REGULAR)
            for column in statement.add
        )
        return AddColumns(keyspace, name, columns, if_exists, statement.if_column_not_exists)
    if statement.drop:
        return DropColumns(
            keyspace,
            name,
            statement.drop,
            _drop_time(statement, context),
            if_exists,
            statement.if_column_exists,
        )
    if statement.rename:
        return RenameColumns(keyspace, name, statement.rename, if_exists, statement.if_column_exists)
    properties = statement.properties
    assert properties is not None
    if properties.clustering_order or properties.compact_storage:
        raise InvalidRequest("Cannot alter the clustering order or storage kind of a table")
    for option, _ in properties.options:
        if option == "id":
            raise ConfigurationInvalid("Cannot alter table id.")
    return AlterOptions(keyspace, name, properties.options, if_exists)


def _alter_type(statement: tree.AlterTypeStatement, keyspace: str) -> SchemaChange:
    name, if_exists = statement.table.name, statement.if_exists
    if statement.alter is not None:
        raise InvalidRequest("Altering field types is no longer supported")
    if statement.add is not None:
        return AddTypeField(keyspace, name, statement.add, if_exists, statement.if_field_not_exists)
    return RenameTypeFields(keyspace, name, statement.rename, if_exists, statement.if_field_exists)


def _drop_time(statement: tree.AlterTableStatement, context: Context) -> int:
    timestamp = statement.using.timestamp
    if timestamp is None:
        return context.stamp_us
    if not isinstance(timestamp, tree.Literal):
        raise InvalidRequest("USING TIMESTAMP needs a literal in ALTER TABLE")
    return int(timestamp.text[:20])
