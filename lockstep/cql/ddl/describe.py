"""DESCRIBE: the schema as statements that create it again.

Invariant: running the statements of a description in order gives a schema of the same description.

DESCRIBE of user functions and aggregates: the statements that create them again.

Invariant: as in `describe`; functions come before the aggregates that call them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from lockstep.cql.compile.prepared import Catalog, ColumnSpec, Prepared, cql_name
from lockstep.cql.ddl.view_statements import index_statement, view_statement
from lockstep.cql.parse import tree
from lockstep.schema.changes import SYSTEM_KEYSPACES
from lockstep.schema.log_tables import is_log
from lockstep.schema.model import Column, ColumnKind, Keyspace, Replication, Table, UserType
from lockstep.schema.objects import Aggregate, Function
from lockstep.schema.replication_options import list_text
from lockstep.schema.table_options import DEFAULTS, MAP_OPTIONS, UNDESCRIBED_DEFAULTS, option, shown_map
from lockstep.schema.tablet_options import shown_tablets
from lockstep.schema.tracking import REPLICATION_TYPE, is_tracked
from lockstep.schema.types import NATIVE_NAMES, parse_type
from lockstep.schema.user_types import in_order_of_use, without_user_types
from lockstep.values.errors import InvalidRequest

Row = tuple[str, ...]


def shown_signature(one: Function | Aggregate) -> str:
    """The name with the types of the arguments, which together name it."""
    return f"{cql_name(one.name)}({', '.join(one.argument_types)})"


def function_rows(space: Keyspace, name: str | None = None) -> list[Row]:
    """(keyspace, function, signature, statement) of the functions, those of one name if it is given."""
    return [
        (*_head(space, "function", one), function_statement(space, one))
        for one in space.functions
        if name is None or one.name == name
    ]


def aggregate_rows(space: Keyspace, name: str | None = None) -> list[Row]:
    """As `function_rows`."""
    return [
        (*_head(space, "aggregate", one), aggregate_statement(space, one))
        for one in space.aggregates
        if name is None or one.name == name
    ]


def listed(spaces: Sequence[Keyspace], what: str) -> list[Row]:
    """(keyspace, function or aggregate, signature) of all of a kind; `what` is functions or aggregates."""
    of_kind = function_rows if what == "functions" else aggregate_rows
    return [row[:3] for space in spaces for row in of_kind(space)]


def _head(space: Keyspace, what: str, one: Function | Aggregate) -> Row:
    return cql_name(space.name), what, shown_signature(one)


def function_statement(space: Keyspace, function: Function) -> str:
    """CREATE FUNCTION."""
    pairs = zip(function.argument_names, function.argument_types, strict=True)
    arguments = ", ".join(f"{cql_name(name)} {text}" for name, text in pairs)
    nulls = "CALLED" if function.called_on_null else "RETURNS NULL"
    quoted = function.body.replace("'", "''")
    # A body that ends in a dollar would end the quotes too early.
    body = f"'{quoted}'" if "$$" in f"{function.body}$" else f"$${function.body}$$"
    return (
        f"CREATE FUNCTION {cql_name(space.name)}.{cql_name(function.name)}({arguments})\n"
        f"    {nulls} ON NULL INPUT\n"
        f"    RETURNS {function.returns}\n"
        f"    LANGUAGE {cql_name(function.language)}\n"
        f"    AS {body};"
    )


def aggregate_statement(space: Keyspace, aggregate: Aggregate) -> str:
    """CREATE AGGREGATE."""
    lines = [
        f"CREATE AGGREGATE {cql_name(space.name)}.{shown_signature(aggregate)}",
        f"SFUNC {cql_name(aggregate.state_function)}",
        f"STYPE {aggregate.state_type}",
    ]
    if aggregate.final_function is not None:
        lines.append(f"FINALFUNC {cql_name(aggregate.final_function)}")
    if aggregate.initial is not None:
        lines.append(f"INITCOND {aggregate.initial}")
    return "\n    ".join(lines) + ";"


_STATEMENT_COLUMNS = ("keyspace_name", "type", "name", "create_statement")
_NAME_COLUMNS = ("keyspace_name", "type", "name")
_QUOTED_OPTIONS = frozenset(
    ("additional_write_policy", "comment", "memtable", "read_repair", "replication_type", "speculative_retry")
)
#: Keyspaces whose tables drivers take for views; the other system keyspaces pass for stored ones.
_VIRTUAL = ("system_views", "system_virtual_schema", "system_metrics")
_SHOWN_KINDS = {
    "table": "Table ",
    "type": "User defined type ",
    "function": "User defined function ",
    "aggregate": "User defined aggregate ",
    "index": "Index ",
    "view": "Materialized view ",
}


class ClusterFacts(msgspec.Struct, frozen=True):
    """What DESCRIBE CLUSTER tells beside the schema. `ownership`: (last token, addresses of the replicas) of
    every range of the session's keyspace, () where there is none. `notes`: what there is to say of keyspaces
    beside their statements, by name."""

    name: str
    partitioner: str = "org.apache.cassandra.dht.Murmur3Partitioner"
    snitch: str = "org.apache.cassandra.locator.SimpleSnitch"
    ownership: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: Mapping[str, str] = {}


class Description(msgspec.Struct, frozen=True):
    """Result columns (all text) and rows of a DESCRIBE."""

    columns: tuple[ColumnSpec, ...]
    rows: tuple[tuple[bytes | None, ...], ...]


def describe(prepared: Prepared, catalog: Catalog, cluster: ClusterFacts) -> Description:
    """Answer a prepared DESCRIBE statement; InvalidRequest when what it names does not exist."""
    statement = prepared.statement
    assert isinstance(statement, tree.Describe), f"{prepared.kind} is no DESCRIBE"
    if statement.what == "cluster":
        return _cluster(cluster)
    if statement.what == "keyspaces":
        found = [*catalog.schema.keyspaces, *catalog.virtual.keyspaces]
        ordered = sorted(found, key=lambda keyspace: keyspace.name)
        return _description(_NAME_COLUMNS, [(_q(k.name), "keyspace", _q(k.name)) for k in ordered])
    if statement.what == "tables":
        tables = _tables(catalog, prepared.session_keyspace)
        return _description(_NAME_COLUMNS, [(_q(t.keyspace), "table", _q(t.name)) for t in tables])
    if statement.what == "types":
        spaces = _spaces(catalog, prepared.session_keyspace)
        types = [(_q(space.name), "type", _q(found.name)) for space in spaces for found in space.types]
        return _description(_NAME_COLUMNS, types)
    if statement.what in ("functions", "aggregates"):
        spaces = _spaces(catalog, prepared.session_keyspace)
        return _description(_NAME_COLUMNS, listed(spaces, statement.what))
    rows = _statements(statement, prepared.session_keyspace, catalog)
    notes = {_q(name): note for name, note in cluster.notes.items()}
    return _description(_STATEMENT_COLUMNS, [_noted(row, notes) for row in rows])


def _noted(row: tuple[str, ...], notes: Mapping[str, str]) -> tuple[str, ...]:
    """The row of a keyspace with what there is to say of it, as a comment behind its statement."""
    name, kind, *others, text = row
    if kind != "keyspace" or name not in notes:
        return row
    return (name, kind, *others, f"{text}\n-- {notes[name]}")


def _cluster(cluster: ClusterFacts) -> Description:
    names = ("cluster", "partitioner", "snitch")
    found = _description(names, [(cluster.name, cluster.partitioner, cluster.snitch)])
    if not cluster.ownership:
        return found
    kind = parse_type("map<text, frozen<list<text>>>")
    owned = kind.serialize({token: list(addresses) for token, addresses in cluster.ownership})
    column = ColumnSpec("system", "describe", "range_ownership", kind)
    return Description((*found.columns, column), ((*found.rows[0], owned),))


def _statements(
    statement: tree.Describe, session_keyspace: str | None, catalog: Catalog
) -> list[tuple[str, ...]]:
    internals = statement.internals
    if statement.what == "schema":
        if statement.full:
            keyspaces = [*catalog.schema.keyspaces, *catalog.virtual.keyspaces]
        else:
            # What another cluster would have to be told: it makes its system keyspaces by itself.
            keyspaces = [found for found in catalog.schema.keyspaces if found.name not in SYSTEM_KEYSPACES]
        return [row for keyspace in keyspaces for row in _keyspace_rows(keyspace, internals)]
    if statement.what == "keyspace":
        name = statement.name if statement.name is not None else session_keyspace
        if name is None:
            raise InvalidRequest("No keyspace specified and no current keyspace")
        return _keyspace_rows(_keyspace(catalog, name), internals, only=statement.only)
    assert statement.name is not None
    if statement.what == "any" and statement.keyspace is None:
        known = catalog.schema.by_name.get(statement.name) or catalog.virtual.by_name.get(statement.name)
        if known is not None:
            return _keyspace_rows(known, internals)
    chosen = statement.keyspace if statement.keyspace is not None else session_keyspace
    if chosen is None:
        if statement.what == "any":
            raise InvalidRequest(f"'{statement.name}' not found in keyspaces")
        raise InvalidRequest("No keyspace specified and no current keyspace")
    space = _keyspace(catalog, chosen)
    table = space.by_name.get(statement.name) if statement.what in ("any", "table", "view") else None
    if table is not None and statement.what in ("any", "table" if table.view is None else "view"):
        return _table_rows(space, table, internals)
    user_type = space.types_by_name.get(statement.name) if statement.what in ("any", "type") else None
    if user_type is not None:
        return [_type_row(space, user_type)]
    if statement.what in ("any", "index"):
        found = [row for row in _index_rows(space.tables) if row[2] == _q(statement.name)]
        if found:
            return found
    if statement.what in ("function", "aggregate"):
        of_kind = function_rows if statement.what == "function" else aggregate_rows
        if found := of_kind(space, statement.name):
            return found
    what = _SHOWN_KINDS.get(statement.what, "")
    raise InvalidRequest(f"{what}'{statement.name}' not found in keyspace '{chosen}'")


def _keyspace(catalog: Catalog, name: str) -> Keyspace:
    found = catalog.schema.by_name.get(name) or catalog.virtual.by_name.get(name)
    if found is None:
        raise InvalidRequest(f"'{name}' not found in keyspaces")
    return found


def _spaces(catalog: Catalog, keyspace: str | None) -> list[Keyspace]:
    """The keyspace of the session, or all."""
    if keyspace is not None:
        return [_keyspace(catalog, keyspace)]
    return sorted((*catalog.schema.keyspaces, *catalog.virtual.keyspaces), key=lambda found: found.name)


def _tables(catalog: Catalog, keyspace: str | None) -> Iterable[Table]:
    return [table for found in _spaces(catalog, keyspace) for table in found.tables if table.view is None]


def _keyspace_rows(keyspace: Keyspace, internals: bool, *, only: bool = False) -> list[tuple[str, ...]]:
    name = _q(keyspace.name)
    rows: list[tuple[str, ...]] = [(name, "keyspace", name, keyspace_statement(keyspace))]
    if only:
        return rows
    rows += [_type_row(keyspace, found) for found in in_order_of_use(keyspace)]
    rows += function_rows(keyspace) + aggregate_rows(keyspace)
    return rows + [
        row
        for table in keyspace.tables
        # Logs of changes are made with their tables.
        if table.view is None and not is_log(table)
        for row in _table_rows(keyspace, table, internals)
    ]


def _type_row(space: Keyspace, user_type: UserType) -> tuple[str, ...]:
    return _q(space.name), "type", _q(user_type.name), type_statement(space, user_type)


def _table_rows(space: Keyspace, table: Table, internals: bool) -> list[tuple[str, ...]]:
    """A table with what hangs on it, or a view."""
    if table.view is not None:
        texts = _option_texts(table, internals, without=("default_time_to_live", REPLICATION_TYPE))
        if is_tracked(space, space.by_name[table.view.base]):
            texts.append(f"{REPLICATION_TYPE} = 'untracked'")
        return [(_q(table.keyspace), "materialized view", _q(table.name), view_statement(table, texts))]
    text = table_statement(table, space if internals else None)
    views = [row for name in table.views for row in _table_rows(space, space.by_name[name], internals)]
    return [(_q(table.keyspace), "table", _q(table.name), text), *_index_rows((table,)), *views]


def _index_rows(tables: Iterable[Table]) -> Iterator[tuple[str, ...]]:
    for table in tables:
        for index in table.indexes:
            yield _q(table.keyspace), "index", _q(index.name), index_statement(table, index)


def keyspace_statement(keyspace: Keyspace) -> str:
    """CREATE KEYSPACE for a keyspace without its tables; a comment for one that cannot be made."""
    if keyspace.name in _VIRTUAL:
        name = _q(keyspace.name)
        return f"/*\n{_not_made('Keyspace', name)}\nVIRTUAL KEYSPACE {name};\n*/"
    replication = _replication(keyspace.replication)
    durable = "true" if keyspace.durable_writes else "false"
    tablets = ""
    if keyspace.tablets is not None:
        tablets = f" AND tablets = {_map(shown_tablets(keyspace.tablets).items())}"
    tracked = " AND replication_type = 'tracked'" if keyspace.tracked else ""
    return (
        f"CREATE KEYSPACE {_q(keyspace.name)} WITH replication = {replication}  "
        f"AND durable_writes = {durable}{tablets}{tracked};"
    )


def _replication(replication: Replication) -> str:
    """As it is written: a list of racks is no text."""
    lists = replication.lists
    texts = [f"'class': {_quoted(replication.strategy)}"]
    for name, factor in replication.factor_texts:
        value = list_text(lists[name]) if name in lists else _quoted(factor)
        texts.append(f"{_quoted(name or 'replication_factor')}: {value}")
    return "{" + ", ".join(texts) + "}"


def type_statement(space: Keyspace, user_type: UserType) -> str:
    """CREATE TYPE."""
    fields = zip(user_type.field_names, user_type.field_types, strict=True)
    body = ",\n".join(f"    {_q(name)} {text}" for name, text in fields)
    return f"CREATE TYPE {_q(space.name)}.{_q(user_type.name)} (\n{body}\n);"


def _not_made(what: str, name: str) -> str:
    return (
        f"Warning: {what} {name} is a virtual {what.lower()} and cannot be recreated with CQL.\n"
        "Structure, for reference:"
    )


def table_statement(table: Table, internals_in: Keyspace | None = None) -> str:
    """CREATE TABLE with all options; a comment for a table that cannot be made.

    `internals_in`: the keyspace, to have the id of the table, and its dropped columns with the statements
    that drop them (and add some again)."""
    name = f"{_q(table.keyspace)}.{_q(table.name)}"
    if table.keyspace in _VIRTUAL:
        comment = _quoted(option(table.options, "comment"))
        shape = "\n".join(_shape(f"VIRTUAL TABLE {name} (", table))
        return f"/*\n{_not_made('Table', name)}\n{shape}\n) WITH comment = {comment};\n*/"
    options = "\n    AND ".join(_option_texts(table, internals_in is not None))
    dropped = sorted(table.dropped, key=lambda one: one.name) if internals_in is not None else []
    gone = [
        Column(one.id, one.name, without_user_types(internals_in, one.type), one.kind)
        for one in dropped
        if internals_in is not None
    ]
    lines = ["\n".join(_shape(f"CREATE TABLE {name} (", table, gone)) + f"\n) WITH {options};"]
    for one in dropped:
        lines.append(f"ALTER TABLE {name} DROP {_q(one.name)} USING TIMESTAMP {one.dropped_at_us};")
        if one.id in table.by_id:
            lines.append(
                f"ALTER TABLE {name} ADD {_column_line(table.by_id[one.id], primary=False).strip()};"
            )
    return "\n".join(lines)


def _shape(head: str, table: Table, gone: Sequence[Column] = ()) -> list[str]:
    """Columns in the order of their descriptions: what is one cell before what are several, then by name.

    Those of `gone` come last, also where they were added again."""
    lines = [head]
    ordered = [*table.partition_key, *table.clustering]
    names = {column.name for column in gone}
    for group in (table.static, table.regular):
        there = [column for column in group if column.name not in names]
        ordered += sorted(there, key=lambda column: (_of_cells(column.type), column.name))
    ordered += gone
    assert len({column.name for column in ordered}) == len(ordered), "a column is described once"
    single = len(table.partition_key) == 1 and not table.clustering
    body = [_column_line(column, primary=single and column is table.partition_key[0]) for column in ordered]
    if not single:
        body.append(f"    PRIMARY KEY {_key_text(table)}")
    lines.append(",\n".join(body))
    return lines


def _of_cells(type_text: str) -> bool:
    """Whether values have several cells: collections and user types that are not frozen."""
    return not (type_text in NATIVE_NAMES or type_text.startswith(("frozen<", "tuple<", "vector<", "'")))


def _column_line(column: Column, *, primary: bool) -> str:
    static = " static" if column.kind is ColumnKind.STATIC else ""
    return f"    {_q(column.name)} {column.type}{static}{' PRIMARY KEY' if primary else ''}"


def _key_text(table: Table) -> str:
    partition = ", ".join(_q(column.name) for column in table.partition_key)
    if len(table.partition_key) > 1:
        partition = f"({partition})"
    return "(" + ", ".join([partition, *(_q(column.name) for column in table.clustering)]) + ")"


def _option_texts(table: Table, with_id: bool, without: Sequence[str] = ()) -> list[str]:
    texts = [f"ID = {table.uuid}"] if with_id else []
    if table.clustering:
        orders = ", ".join(f"{_q(c.name)} {'DESC' if c.descending else 'ASC'}" for c in table.clustering)
        texts.append(f"CLUSTERING ORDER BY ({orders})")
    for name in DEFAULTS:
        value = option(table.options, name)
        if name in without or (name in UNDESCRIBED_DEFAULTS and value == DEFAULTS[name]):
            continue
        if name in MAP_OPTIONS or value.startswith("{"):
            value = _map(sorted(shown_map(name, value).items()))
        elif name in _QUOTED_OPTIONS:
            value = _quoted(value)
        texts.append(f"{name} = {value}")
    return texts


def _map(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"{_quoted(key)}: {_quoted(value)}" for key, value in pairs) + "}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _q(name: str) -> str:
    return cql_name(name)


def _description(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Description:
    text = parse_type("text")
    columns = tuple(ColumnSpec("system", "describe", name, text) for name in names)
    return Description(columns, tuple(tuple(value.encode() for value in row) for row in rows))
