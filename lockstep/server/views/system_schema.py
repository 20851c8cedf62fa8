"""`system_schema` and `system_virtual_schema`: the schema as drivers read it.

Invariant: every keyspace is listed in exactly one of the two, so that drivers see each table once.

Rows of `system_schema.functions` and `system_schema.aggregates`.

Invariant: types are texts as in a statement; what drivers make of a row creates an equal function.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final

from lockstep.cql.ddl.view_statements import shown_where, target_text
from lockstep.schema.function_changes import return_type
from lockstep.schema.log_tables import is_log
from lockstep.schema.model import Column, ColumnKind, Keyspace, Schema, Table
from lockstep.schema.table_options import CAPTURE_OFF, option, option_map, shown_map
from lockstep.schema.types import parse_type, parse_uuid
from lockstep.server.statements.statements import shown
from lockstep.server.views.virtual import NamedRows, Serialized, VirtualRow, VirtualTable, define
from lockstep.values.limits import TABLE_OPTIONS_KEPT_MAX


def function_rows(schema: Schema) -> Iterator[VirtualRow]:
    for space in schema.keyspaces:
        for one in space.functions:
            yield {
                "keyspace_name": space.name,
                "function_name": one.name,
                "argument_types": one.argument_types,
                "argument_names": one.argument_names,
                "body": one.body,
                "called_on_null_input": one.called_on_null,
                "language": one.language,
                "return_type": one.returns,
            }


def aggregate_rows(schema: Schema) -> Iterator[VirtualRow]:
    for space in schema.keyspaces:
        for one in space.aggregates:
            yield {
                "keyspace_name": space.name,
                "aggregate_name": one.name,
                "argument_types": one.argument_types,
                "final_func": one.final_function,
                "initcond": one.initial,
                "return_type": return_type(space, one),
                "state_func": one.state_function,
                "state_type": one.state_type,
            }


#: Virtual keyspaces that drivers expect in system_virtual_schema; the others pass for stored ones.
SHOWN_AS_VIRTUAL: Final = ("system_views", "system_virtual_schema")

_STRATEGIES = "org.apache.cassandra.locator."
_KINDS = {
    ColumnKind.PARTITION_KEY: "partition_key",
    ColumnKind.CLUSTERING: "clustering",
    ColumnKind.STATIC: "static",
    ColumnKind.REGULAR: "regular",
}
_COLUMNS = (
    "keyspace_name text; table_name text; column_name text; clustering_order text; "
    "column_name_bytes blob; kind text; position int; type text"
)
_TABLES = (
    "keyspace_name text; table_name text; additional_write_policy text; allow_auto_snapshot boolean; "
    "bloom_filter_fp_chance double; caching frozen<map<text, text>>; cdc boolean; comment text; "
    "compaction frozen<map<text, text>>; compression frozen<map<text, text>>; crc_check_chance double; "
    "dclocal_read_repair_chance double; default_time_to_live int; extensions frozen<map<text, blob>>; "
    "flags frozen<set<text>>; gc_grace_seconds int; id uuid; incremental_backups boolean; "
    "max_index_interval int; memtable text; memtable_flush_period_in_ms int; min_index_interval int; "
    "read_repair text; read_repair_chance double; speculative_retry text"
)
_TABLE_TYPES = {
    name: parse_type(text)
    for name, _, text in (column.strip().partition(" ") for column in _TABLES.split(";"))
}
#: By this name drivers of ScyllaDB take the first bytes of a stream's id for its token.
_LOG_PARTITIONER = "com.scylladb.dht.CDCPartitioner"
_FLAGS = Serialized(_TABLE_TYPES["flags"].serialize(["compound"]))
_COUNTER_FLAGS = Serialized(_TABLE_TYPES["flags"].serialize(["compound", "counter"]))
_FUNCTIONS = (
    "keyspace_name text; function_name text; argument_types frozen<list<text>>; "
    "argument_names frozen<list<text>>; body text; called_on_null_input boolean; language text; "
    "return_type text"
)
_AGGREGATES = (
    "keyspace_name text; aggregate_name text; argument_types frozen<list<text>>; final_func text; "
    "initcond text; return_type text; state_func text; state_type text"
)
_VIEWS = (
    "keyspace_name text; view_name text; base_table_id uuid; base_table_name text; "
    "include_all_columns boolean; where_clause text; "
    + _TABLES.removeprefix("keyspace_name text; table_name text; ")
)
#: Tables that are empty because what they list cannot be made (yet): name, columns, clustering key.
_EMPTY = (
    (
        "triggers",
        "keyspace_name text; table_name text; trigger_name text; options frozen<map<text, text>>",
        ("table_name", "trigger_name"),
    ),
    (
        "column_masks",
        "keyspace_name text; table_name text; column_name text; "
        "function_argument_nulls frozen<list<boolean>>; "
        "function_argument_types frozen<list<text>>; function_argument_values frozen<list<text>>; "
        "function_keyspace text; function_name text",
        ("table_name", "column_name"),
    ),
)

SchemaOf = Callable[[], Schema]


class SchemaTables:
    """`stored` and `virtual` give the present schemas; `virtual` is asked only when rows are read."""

    def __init__(self, stored: SchemaOf, virtual: SchemaOf) -> None:
        self._stored = stored
        self._virtual = virtual

    def tables(self) -> list[VirtualTable]:
        def schema(name: str, columns: str, clustering: tuple[str, ...], rows: Any) -> VirtualTable:
            return define("system_schema", name, columns, ("keyspace_name",), clustering, rows)

        def virtual(name: str, columns: str, clustering: tuple[str, ...], rows: Any) -> VirtualTable:
            return define("system_virtual_schema", name, columns, ("keyspace_name",), clustering, rows)

        return [
            schema(
                "keyspaces",
                "keyspace_name text; durable_writes boolean; replication frozen<map<text, text>>",
                (),
                lambda: map(_keyspace_row, self._real()),
            ),
            schema("tables", _TABLES, ("table_name",), self._of_tables(_TableRows())),
            *self._of_scylla(),
            schema("views", _VIEWS, ("view_name",), self._of_tables(_ViewRows(self._stored))),
            schema("columns", _COLUMNS, ("table_name", "column_name"), self._of_tables(_column_rows)),
            schema(
                "dropped_columns",
                "keyspace_name text; table_name text; column_name text; dropped_time timestamp; "
                "kind text; type text",
                ("table_name", "column_name"),
                self._of_tables(_dropped_rows),
            ),
            schema(
                "indexes",
                "keyspace_name text; table_name text; index_name text; kind text; "
                "options frozen<map<text, text>>",
                ("table_name", "index_name"),
                self._of_tables(_index_rows),
            ),
            schema(
                "types",
                "keyspace_name text; type_name text; field_names frozen<list<text>>; "
                "field_types frozen<list<text>>",
                ("type_name",),
                lambda: _type_rows(self._real()),
            ),
            schema(
                "functions",
                _FUNCTIONS,
                ("function_name", "argument_types"),
                lambda: function_rows(self._stored()),
            ),
            schema(
                "aggregates",
                _AGGREGATES,
                ("aggregate_name", "argument_types"),
                lambda: aggregate_rows(self._stored()),
            ),
            *(schema(name, columns, clustering, _nothing) for name, columns, clustering in _EMPTY),
            virtual("keyspaces", "keyspace_name text", (), self._virtual_keyspaces),
            virtual(
                "tables",
                "keyspace_name text; table_name text; comment text",
                ("table_name",),
                self._of_virtual_tables(_comment_rows),
            ),
            virtual(
                "columns",
                _COLUMNS,
                ("table_name", "column_name"),
                self._of_virtual_tables(_column_rows),
            ),
        ]

    def _of_scylla(self) -> list[VirtualTable]:
        """What clients of ScyllaDB look at: who has tablets, who captures changes, which tables are logs."""
        return [
            define(
                "system_schema",
                "scylla_keyspaces",
                "keyspace_name text; initial_tablets int; storage_options frozen<map<text, text>>; "
                "storage_type text",
                ("keyspace_name",),
                (),
                lambda: map(_spread_row, filter(_has_tablets, self._real())),
            ),
            define(
                "system_schema",
                "scylla_tables",
                "keyspace_name text; table_name text; cdc frozen<map<text, text>>; in_memory boolean; "
                "partitioner text; tablets map<text, text>; version uuid",
                ("keyspace_name",),
                ("table_name",),
                self._of_tables(_captured_rows),
            ),
        ]

    def _of_tables(self, rows: Callable[[Table], Iterable[VirtualRow]]) -> NamedRows:
        return NamedRows(self._real, self._real_one, attrgetter("tables"), _table_named, rows)

    def _of_virtual_tables(self, rows: Callable[[Table], Iterable[VirtualRow]]) -> NamedRows:
        return NamedRows(
            self._shown_virtual, self._shown_virtual_one, attrgetter("tables"), _table_named, rows
        )

    def _real(self) -> list[Keyspace]:
        stored, virtual = shown(self._stored(), self._virtual())
        hidden = [keyspace for keyspace in virtual.keyspaces if keyspace.name not in SHOWN_AS_VIRTUAL]
        return [*stored.keyspaces, *hidden]

    def _real_one(self, name: str) -> Keyspace | None:
        stored, virtual = shown(self._stored(), self._virtual())
        found = stored.by_name.get(name)
        if found is None and name not in SHOWN_AS_VIRTUAL:
            found = virtual.by_name.get(name)
        return found

    def _shown_virtual(self) -> list[Keyspace]:
        return [keyspace for keyspace in self._virtual().keyspaces if keyspace.name in SHOWN_AS_VIRTUAL]

    def _shown_virtual_one(self, name: str) -> Keyspace | None:
        return self._virtual().by_name.get(name) if name in SHOWN_AS_VIRTUAL else None

    def _virtual_keyspaces(self) -> Iterator[VirtualRow]:
        return ({"keyspace_name": keyspace.name} for keyspace in self._shown_virtual())


def _nothing() -> Iterator[VirtualRow]:
    return iter(())


def _table_named(keyspace: Keyspace, name: str) -> Table | None:
    return keyspace.by_name.get(name)


def replication_map(keyspace: Keyspace) -> dict[str, str]:
    """The replication as drivers read it: the fully qualified class name and the factors."""
    replication = keyspace.replication
    factors = {name or "replication_factor": factor for name, factor in replication.factor_texts}
    return {"class": _STRATEGIES + replication.strategy, **factors}


def _keyspace_row(keyspace: Keyspace) -> VirtualRow:
    return {
        "keyspace_name": keyspace.name,
        "durable_writes": keyspace.durable_writes,
        "replication": replication_map(keyspace),
    }


def _spread_row(keyspace: Keyspace) -> VirtualRow:
    """Clients of ScyllaDB tell by `initial_tablets` that the keyspace has tablets, some by the row."""
    assert keyspace.tablets is not None, "others have no row"
    return {"keyspace_name": keyspace.name, "initial_tablets": keyspace.tablets.initial}


def _has_tablets(keyspace: Keyspace) -> bool:
    return keyspace.tablets is not None


def _captured_rows(table: Table) -> Iterator[VirtualRow]:
    """Whose changes are captured, and which tables are logs, whose tokens are those of their streams."""
    text = option(table.options, "cdc")
    if table.view is None:
        yield {
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "cdc": option_map(text) if text.startswith("{") else None,
            "partitioner": _LOG_PARTITIONER if is_log(table) else None,
        }


def _comment_rows(table: Table) -> Iterator[VirtualRow]:
    comment = table.option("comment", "")
    yield {"keyspace_name": table.keyspace, "table_name": table.name, "comment": comment}


class _TableRows:
    """Rows of `tables`. Most tables have the options of many others: what those make of a row is kept."""

    def __init__(self) -> None:
        self._kept: dict[tuple[tuple[str, str], ...], VirtualRow] = {}

    def __call__(self, table: Table) -> Iterator[VirtualRow]:
        if table.view is None:
            yield {**self.shared(table), "table_name": table.name}

    def shared(self, table: Table) -> VirtualRow:
        """What tables and views have in common."""
        shared = self._kept.get(table.options)
        if shared is None:
            if len(self._kept) >= TABLE_OPTIONS_KEPT_MAX:
                self._kept.clear()
            shared = self._kept[table.options] = _option_values(table)
        return {
            **shared,
            "keyspace_name": table.keyspace,
            "id": parse_uuid(table.uuid),
            # Without `compound` drivers take a table for one with compact storage.
            "flags": _COUNTER_FLAGS if table.is_counter else _FLAGS,
        }


class _ViewRows:
    """Rows of `views`: as of tables, and what makes them views."""

    def __init__(self, schema: SchemaOf) -> None:
        self._schema = schema
        self._rows = _TableRows()

    def __call__(self, table: Table) -> Iterator[VirtualRow]:
        if table.view is None:
            return
        base = self._schema().table(table.keyspace, table.view.base)
        yield {
            **self._rows.shared(table),
            "view_name": table.name,
            "base_table_id": parse_uuid(base.uuid) if base is not None else None,
            "base_table_name": table.view.base,
            "include_all_columns": table.view.all_columns,
            "where_clause": shown_where(table.view.where),
        }


def _packed(options: Mapping[str, str]) -> bytes:
    """As clients of ScyllaDB read the option: a count and texts behind their lengths, little end first."""
    parts = [len(options).to_bytes(4, "little")]
    for text in itertools.chain.from_iterable(sorted(options.items())):
        parts.append(len(text.encode()).to_bytes(4, "little") + text.encode())
    return b"".join(parts)


def _option_values(table: Table) -> VirtualRow:
    def text(name: str) -> str:
        return option(table.options, name)

    found = {
        "additional_write_policy": text("additional_write_policy"),
        "allow_auto_snapshot": text("allow_auto_snapshot") == "true",
        "bloom_filter_fp_chance": float(text("bloom_filter_fp_chance")),
        "caching": option_map(text("caching")),
        "cdc": text("cdc") != CAPTURE_OFF,
        "comment": text("comment"),
        "compaction": shown_map("compaction", text("compaction")),
        "compression": shown_map("compression", text("compression")),
        "crc_check_chance": float(text("crc_check_chance")),
        "dclocal_read_repair_chance": 0.0,
        "default_time_to_live": int(text("default_time_to_live")),
        "extensions": {
            **{name: value.encode() for name, value in json.loads(text("extensions")).items()},
            **({"cdc": _packed(option_map(text("cdc")))} if text("cdc").startswith("{") else {}),
        },
        "gc_grace_seconds": int(text("gc_grace_seconds")),
        "incremental_backups": text("incremental_backups") == "true",
        "max_index_interval": int(text("max_index_interval")),
        "memtable": None if text("memtable") == "default" else text("memtable"),
        "memtable_flush_period_in_ms": int(text("memtable_flush_period_in_ms")),
        "min_index_interval": int(text("min_index_interval")),
        "read_repair": text("read_repair"),
        "read_repair_chance": 0.0,
        "speculative_retry": text("speculative_retry"),
    }
    return {
        name: None if value is None else Serialized(_TABLE_TYPES[name].serialize(value))
        for name, value in found.items()
    }


def _column_rows(table: Table) -> Iterator[VirtualRow]:
    for column in table.columns:
        yield {
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "column_name": column.name,
            "clustering_order": _order(column),
            "column_name_bytes": column.name.encode(),
            "kind": _KINDS[column.kind],
            "position": column.position,
            "type": column.type,
        }


def _order(column: Column) -> str:
    if column.kind is not ColumnKind.CLUSTERING:
        return "none"
    return "desc" if column.descending else "asc"


def _type_rows(keyspaces: list[Keyspace]) -> Iterator[VirtualRow]:
    for keyspace in keyspaces:
        for found in keyspace.types:
            yield {
                "keyspace_name": keyspace.name,
                "type_name": found.name,
                "field_names": found.field_names,
                "field_types": found.field_types,
            }


def _dropped_rows(table: Table) -> Iterator[VirtualRow]:
    for column in table.dropped:
        yield {
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "column_name": column.name,
            "dropped_time": column.dropped_at_us // 1000,
            "kind": _KINDS[column.kind],
            "type": column.type,
        }


def _index_rows(table: Table) -> Iterator[VirtualRow]:
    for index in table.indexes:
        options = {**dict(index.options), "target": target_text(table, index)}
        if index.class_:
            options["class_name"] = index.class_
        yield {
            "keyspace_name": table.keyspace,
            "table_name": table.name,
            "index_name": index.name,
            "kind": "CUSTOM" if index.class_ else "COMPOSITES",
            "options": options,
        }
