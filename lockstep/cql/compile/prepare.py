"""Text to Prepared: parse, resolve, type, compile.

Invariant: everything a statement needs from the schema is resolved here, once; executing looks nothing up.
"""

from __future__ import annotations

from msgspec.structs import replace

from lockstep.cql.compile.modification import compile_batch, compile_modification, key_bind_indexes
from lockstep.cql.compile.prepared import Catalog, Prepared, Scope, TableShape, no_keyspace, shape_of
from lockstep.cql.compile.select import compile_select
from lockstep.cql.ddl.view_statements import check_where
from lockstep.cql.parse import tree
from lockstep.cql.parse.parser import Parsed, parse
from lockstep.cql.parse.tree import RoleStatement
from lockstep.schema.log_tables import is_log
from lockstep.values.errors import InvalidRequest


def prepare(text: str, keyspace: str | None, catalog: Catalog) -> Prepared:
    """Prepare one statement in a session's keyspace.

    SyntaxError_ when it does not parse, InvalidRequest when it does not fit the schema.
    """
    try:
        parsed = parse(text)
        scope = Scope(parsed.binds)
        scope.catalog = catalog
        made = _prepared(parsed, keyspace, catalog, scope)
        return replace(made, called=scope.called) if scope.called else made
    except RecursionError:
        raise InvalidRequest("The statement is nested too deeply") from None


def _prepared(parsed: Parsed, keyspace: str | None, catalog: Catalog, scope: Scope) -> Prepared:
    statement = parsed.statement
    if isinstance(statement, tree.Select):
        return _select(statement, keyspace, catalog, scope, parsed)
    if isinstance(statement, tree.Insert | tree.Update | tree.Delete):
        return _modification(statement, keyspace, catalog, scope, parsed)
    if isinstance(statement, tree.Batch):
        return _batch(statement, keyspace, catalog, scope, parsed)
    if parsed.binds:
        raise InvalidRequest("Bind variables are not allowed in this statement")
    if isinstance(statement, tree.Truncate):
        table = catalog.table(statement.table.keyspace, statement.table.name, keyspace)
        if catalog.is_virtual(table.keyspace):
            raise InvalidRequest("Cannot truncate virtual tables")
        return _plain("TRUNCATE", statement, keyspace, table.keyspace, table.name, table.id, table.epoch)
    if isinstance(statement, tree.Use):
        if not catalog.has_keyspace(statement.keyspace):
            raise InvalidRequest(f"Keyspace '{statement.keyspace}' does not exist")
        return _plain("USE", statement, keyspace, statement.keyspace)
    if isinstance(statement, tree.Describe):
        return _plain("DESCRIBE", statement, keyspace)
    if isinstance(statement, RoleStatement):
        return _plain("ROLE", statement, keyspace)
    target = _schema_target(statement, keyspace)
    if isinstance(statement, tree.CreateViewStatement):
        check_where(statement, target[0], catalog)
    return _plain("DDL", statement, keyspace, *target)


def _plain(
    kind: str,
    statement: tree.Statement,
    session_keyspace: str | None,
    keyspace: str = "",
    table: str = "",
    table_id: int = 0,
    table_epoch: int = 0,
) -> Prepared:
    return Prepared(
        kind, statement, keyspace, table, table_id, table_epoch, (), (), session_keyspace=session_keyspace
    )


def _schema_target(statement: tree.SchemaStatement, session_keyspace: str | None) -> tuple[str, str]:
    if isinstance(
        statement,
        tree.CreateKeyspaceStatement | tree.AlterKeyspaceStatement | tree.DropKeyspaceStatement,
    ):
        return statement.name, ""
    chosen = statement.table.keyspace or session_keyspace
    if chosen is None:
        raise no_keyspace()
    return chosen, statement.table.name


def _shape(name: tree.TableName, keyspace: str | None, catalog: Catalog) -> TableShape:
    table = catalog.table(name.keyspace, name.name, keyspace)
    return shape_of(table, catalog.keyspace(table.keyspace))


def _select(
    statement: tree.Select, keyspace: str | None, catalog: Catalog, scope: Scope, parsed: Parsed
) -> Prepared:
    shape = _shape(statement.table, keyspace, catalog)
    scope.enter(shape)
    table = shape.table
    is_virtual = catalog.is_virtual(table.keyspace)
    plan = compile_select(statement, shape, scope, is_virtual=is_virtual)
    if isinstance(statement.using.timeout, tree.Bind):
        raise InvalidRequest("USING TIMEOUT needs a literal")
    return Prepared(
        "SELECT",
        statement,
        table.keyspace,
        table.name,
        table.id,
        table.epoch,
        scope.columns(),
        parsed.binds,
        key_bind_indexes(plan.restrictions),
        plan.selection.specs(table.keyspace, table.name),
        plan,
        keyspace,
        is_virtual,
    )


def _modification(
    statement: tree.Modification, keyspace: str | None, catalog: Catalog, scope: Scope, parsed: Parsed
) -> Prepared:
    shape = _writable_shape(statement.table, keyspace, catalog)
    scope.enter(shape)
    plan = compile_modification(statement, shape, scope)
    table = shape.table
    return Prepared(
        "MODIFY",
        statement,
        table.keyspace,
        table.name,
        table.id,
        table.epoch,
        scope.columns(),
        parsed.binds,
        key_bind_indexes(plan.restrictions),
        plan=plan,
        session_keyspace=keyspace,
    )


def _batch(
    statement: tree.Batch, keyspace: str | None, catalog: Catalog, scope: Scope, parsed: Parsed
) -> Prepared:
    shapes = [_writable_shape(part.table, keyspace, catalog) for part in statement.statements]
    plan = compile_batch(statement, shapes, scope)
    first = shapes[0].table if shapes else None
    return Prepared(
        "BATCH",
        statement,
        first.keyspace if first is not None else "",
        first.name if first is not None else "",
        first.id if first is not None else 0,
        max((shape.table.epoch for shape in shapes), default=0),
        scope.columns(),
        parsed.binds,
        key_bind_indexes(plan.parts[0].restrictions) if plan.parts else (),
        plan=plan,
        session_keyspace=keyspace,
    )


def _writable_shape(name: tree.TableName, keyspace: str | None, catalog: Catalog) -> TableShape:
    shape = _shape(name, keyspace, catalog)
    if catalog.is_virtual(shape.table.keyspace):
        raise InvalidRequest(f"Virtual table {shape.table.keyspace}.{shape.table.name} cannot be modified")
    if shape.table.view is not None:
        raise InvalidRequest("Cannot directly modify a materialized view")
    if is_log(shape.table):
        raise InvalidRequest("Cannot directly modify a log of changes")
    return shape
