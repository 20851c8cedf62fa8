"""Statements about secondary indexes to schema changes, and indexes to the statements that make them.

Invariant: as in `ddl`: the change holds all that applying it needs; making it looks at no schema.
"""

from __future__ import annotations

from lockstep.cql.compile.catalog import cql_name
from lockstep.cql.parse import tree
from lockstep.schema.index_changes import VALUES, CreateIndex, DropIndex, IndexChange, IndexedPart
from lockstep.schema.model import Table
from lockstep.schema.objects import Index
from lockstep.values.errors import InvalidRequest, SyntaxError_


def index_change(
    statement: tree.CreateIndexStatement | tree.DropIndexStatement, keyspace: str
) -> IndexChange:
    """The change that a statement asks for in a keyspace. InvalidRequest or SyntaxError_."""
    if isinstance(statement, tree.DropIndexStatement):
        return DropIndex(keyspace, statement.table.name, statement.if_exists)
    targets = tuple(IndexedPart(target.column, target.what or "") for target in statement.targets)
    return CreateIndex(
        keyspace,
        statement.table.name,
        statement.name or "",
        targets,
        statement.class_ or "",
        _options(statement.properties),
        statement.custom,
        statement.if_not_exists,
    )


def _options(properties: tree.Properties) -> tuple[tuple[str, str], ...]:
    if properties.clustering_order or properties.compact_storage:
        raise SyntaxError_("CREATE INDEX has no such properties")
    found: tuple[tuple[str, str], ...] = ()
    for name, value in properties.options:
        if name != "options":
            raise SyntaxError_(f"Unknown property '{name}'")
        if isinstance(value, str):
            raise InvalidRequest("Invalid value for property 'options'. It should be a map.")
        found = tuple(value)
    return found


def target_text(table: Table, index: Index) -> str:
    """What an index is on, as CREATE INDEX names it."""
    column = table.by_id[index.column]
    name = cql_name(column.name)
    if index.target == VALUES and not column.type.startswith(("map<", "list<", "set<")):
        return name
    return f"{index.target}({name})"


def index_statement(table: Table, index: Index) -> str:
    """CREATE INDEX for an index of a table."""
    custom = "CUSTOM " if index.class_ else ""
    text = (
        f"CREATE {custom}INDEX {cql_name(index.name)} ON {cql_name(table.keyspace)}.{cql_name(table.name)} "
        f"({target_text(table, index)})"
    )
    if index.class_:
        text += f" USING {_quoted(index.class_)}"
    if index.options:
        pairs = ", ".join(f"{_quoted(name)}: {_quoted(value)}" for name, value in index.options)
        text += f" WITH OPTIONS = {{{pairs}}}"
    return text + ";"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
