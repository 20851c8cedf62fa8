"""Whether a connection may do what it asks for, at this moment, and what a statement needs, as Cassandra asks
for it.

Invariant: every answer is of the newest metadata this node has applied; what is remembered of a session is
forgotten whenever roles or grants change. What a statement reads, writes or changes is covered by its needs,
whatever way it takes there (a batch, a condition, a view, a function); tables that every driver reads need
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, get_args

import msgspec

from lockstep.cql.compile.prepared import Catalog, Prepared
from lockstep.cql.parse import tree
from lockstep.cql.parse.tree import RoleStatement
from lockstep.metadata.access import roles
from lockstep.metadata.access.roles import Access
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.schema.function_changes import parts_of
from lockstep.schema.model import Keyspace, Table
from lockstep.schema.user_types import type_in
from lockstep.server.cql.backpressure import Responses
from lockstep.values.errors import Unauthorized
from lockstep.values.limits import ALLOWED_NEEDS_KEPT_MAX

#: (permission, resource).
Need = tuple[str, str]
Needs = tuple[Need, ...]
#: In place of a permission: what only superusers may do, whatever permissions are checked.
SUPERUSER: Final = "SUPERUSER"
NOT_LOGGED_IN: Final = "You have to be logged in and not anonymous to perform this request"


class Session(msgspec.Struct):
    """What a connection has agreed on; `keyspace` follows USE, `user` is None where nobody logs in.

    `judged_by` is the value whose roles allowed the needs in `allowed`. `responses`: what the connection
    owes, None until it is a client's.
    """

    version: int
    keyspace: str | None = None
    user: str | None = None
    judged_by: Access | None = None
    allowed: dict[Needs, None] = {}
    responses: Responses | None = None


class Permits:
    """Of one node whose clients log in. `data_center` is the node's; `checks`: whether permissions count, or
    being logged in is enough."""

    def __init__(self, cluster: Callable[[], ClusterMetadata], data_center: str, *, checks: bool) -> None:
        self._cluster = cluster
        self._data_center = data_center
        self.checks = checks

    def admit(self, session: Session) -> Access:
        """Unauthorized when the session's role is gone or may not be here."""
        access = self._cluster().access
        if session.judged_by is not access:
            session.allowed = {}
            session.judged_by = None
            role = access.role(session.user) if session.user is not None else None
            if role is None:
                raise Unauthorized("You have not logged in")
            if role.data_centers and self._data_center not in role.data_centers:
                raise Unauthorized(f"You do not have access to this datacenter ({self._data_center})")
            session.judged_by = access
        return access

    def require(self, session: Session, needs: Needs) -> None:
        """Unauthorized unless the session's role has all these permissions now."""
        access = self.admit(session)
        if needs in session.allowed:
            return
        assert session.user is not None, "it was admitted"
        self._judge(access, session.user, needs)
        if len(session.allowed) >= ALLOWED_NEEDS_KEPT_MAX:
            session.allowed = {}
        session.allowed[needs] = None

    def require_all(self, session: Session, parts: Sequence[Needs]) -> None:
        """`require` of each part of a batch; most parts of a batch are alike."""
        for needs in dict.fromkeys(parts):
            self.require(session, needs)

    def creator(self, session: Session) -> str:
        """The role that gets permissions on what the session creates; empty where none count."""
        return (session.user or "") if self.checks else ""

    def _judge(self, access: Access, user: str, needs: Sequence[Need]) -> None:
        if access.is_superuser(user):
            return
        for permission, resource in needs:
            if permission == SUPERUSER:
                raise Unauthorized(f"User {user} is not a superuser: only those may read {resource}")
            if self.checks and permission not in access.permissions(user, resource):
                raise Unauthorized(
                    f"User {user} has no {permission} permission on {roles.text(resource)} "
                    "or any of its parents"
                )


#: Read by drivers when they connect, and holding nothing that a client could not see anyway.
OPEN_KEYSPACES: Final = frozenset(("system", "system_schema", "system_virtual_schema"))
#: Where the hashes of passwords are: keyspace, table, column.
_SECRET: Final = ("system_auth", "roles", "salted_hash")


def needs_of(prepared: Prepared, catalog: Catalog) -> Needs:
    """The needs of a statement as it was planned, each once; () for what everybody who is logged in may do.

    Statements about roles and permissions judge for themselves.
    """
    statement = prepared.statement
    return tuple(dict.fromkeys(_NEEDS[type(statement)](statement, prepared, catalog)))


def _table(name: tree.TableName, prepared: Prepared, catalog: Catalog) -> Table:
    return catalog.table(name.keyspace, name.name, prepared.session_keyspace)


def _select(statement: tree.Select, prepared: Prepared, catalog: Catalog) -> Iterator[Need]:
    table = _table(statement.table, prepared, catalog)
    yield from _calls(statement, table, catalog)
    if table.keyspace in OPEN_KEYSPACES:
        return
    # Who may read a table may read its views.
    read = table.view.base if table.view is not None else table.name
    yield "SELECT", roles.table(table.keyspace, read)
    if (table.keyspace, table.name) == _SECRET[:2]:
        columns = {node.name for node in _nodes(statement) if isinstance(node, tree.ColumnName)}
        named = [name for relation in statement.where for name in relation.names]
        if not statement.selectors or _SECRET[2] in columns.union(named):
            yield SUPERUSER, f"{_SECRET[2]} of {roles.text(roles.table(table.keyspace, table.name))}"


def _modification(statement: tree.Modification, prepared: Prepared, catalog: Catalog) -> Iterator[Need]:
    table = _table(statement.table, prepared, catalog)
    about = roles.table(table.keyspace, table.name)
    yield "MODIFY", about
    tables = catalog.keyspace(table.keyspace).by_name.values()
    views = sorted(one.name for one in tables if one.view is not None and one.view.base == table.name)
    if statement.conditions is not None or views:
        # A condition tells what is there, and rows of views are made from what is there.
        yield "SELECT", about
    yield from (("MODIFY", roles.table(table.keyspace, view)) for view in views)
    yield from _calls(statement, table, catalog)


def _batch(statement: tree.Batch, prepared: Prepared, catalog: Catalog) -> Iterator[Need]:
    for part in statement.statements:
        yield from _modification(part, prepared, catalog)


def _truncate(statement: tree.Truncate, prepared: Prepared, catalog: Catalog) -> Iterator[Need]:
    yield "MODIFY", roles.table(prepared.keyspace, prepared.table)


def _calls(statement: tree.Statement, table: Table, catalog: Catalog) -> Iterator[Need]:
    """EXECUTE on each user-defined function that a statement calls, also where several fit the call, and on
    those that its aggregates are made of."""
    for node in _nodes(statement):
        if not isinstance(node, tree.Call):
            continue
        space = catalog.schema.by_name.get(node.keyspace or table.keyspace)
        if space is not None:
            count = len(node.arguments)
            found = (*_functions(space, node.name, count), *_parts(space, node.name, count))
            yield from (("EXECUTE", resource) for resource in found)


def _functions(space: Keyspace, name: str, count: int | None = None) -> Iterator[str]:
    """Functions and aggregates of this name, and of as many arguments if that is said."""
    signatures = [one.signature for one in space.functions] + [one.signature for one in space.aggregates]
    for found, arguments in signatures:
        if found == name and (count is None or len(arguments) == count):
            yield roles.function(space.name, found, arguments)


def _parts(space: Keyspace, name: str, count: int) -> Iterator[str]:
    """The functions behind aggregates of this name and of as many arguments."""
    for aggregate in space.aggregates:
        if aggregate.name == name and len(aggregate.argument_types) == count:
            for part in parts_of(space, aggregate):
                if part is not None:
                    yield roles.function(space.name, *part.signature)


def function_resource(space: Keyspace | None, keyspace: str, name: str, types: tuple[str, ...]) -> str:
    """A function as a resource; `types` as written. InvalidRequest for a type that there is not."""
    if space is not None:
        types = tuple(type_in(space, text).text for text in types)
    return roles.function(keyspace, name, types)


def _nodes(node: Any) -> Iterator[Any]:
    """Everything inside a statement; its depth is bounded by the parser."""
    waiting = [node]
    while waiting:
        found = waiting.pop()
        if isinstance(found, tuple):
            waiting += found
        elif isinstance(found, msgspec.Struct):
            yield found
            waiting += (getattr(found, field) for field in found.__struct_fields__)


def _nothing(*_: Any) -> Iterator[Need]:
    return iter(())


# -- schema statements -----------------------------------------------------------------------------


def _create_keyspace(*_: Any) -> Iterator[Need]:
    yield "CREATE", roles.DATA


def _of_keyspace(permission: str) -> _Rule:
    def need(_statement: Any, prepared: Prepared, _catalog: Catalog) -> Iterator[Need]:
        yield permission, roles.keyspace(prepared.keyspace)

    return need


def _of_tables(permission: str) -> _Rule:
    """On all tables of the keyspace: of what is no table yet, or belongs to none."""

    def need(_statement: Any, prepared: Prepared, _catalog: Catalog) -> Iterator[Need]:
        yield permission, roles.all_tables(prepared.keyspace)

    return need


def _of_table(permission: str) -> _Rule:
    def need(_statement: Any, prepared: Prepared, _catalog: Catalog) -> Iterator[Need]:
        yield permission, roles.table(prepared.keyspace, prepared.table)

    return need


def _create_index(
    statement: tree.CreateIndexStatement, prepared: Prepared, _catalog: Catalog
) -> Iterator[Need]:
    yield "ALTER", roles.table(prepared.keyspace, statement.table.name)


def _drop_index(_statement: Any, prepared: Prepared, catalog: Catalog) -> Iterator[Need]:
    space = catalog.schema.by_name.get(prepared.keyspace)
    for table in space.by_name.values() if space is not None else ():
        if any(index.name == prepared.table for index in table.indexes):
            yield "ALTER", roles.table(table.keyspace, table.name)


def _create_view(
    statement: tree.CreateViewStatement, prepared: Prepared, _catalog: Catalog
) -> Iterator[Need]:
    yield "ALTER", roles.table(statement.base.keyspace or prepared.keyspace, statement.base.name)


def _of_view(_statement: Any, prepared: Prepared, catalog: Catalog) -> Iterator[Need]:
    found = catalog.schema.table(prepared.keyspace, prepared.table)
    name = found.view.base if found is not None and found.view is not None else prepared.table
    yield "ALTER", roles.table(prepared.keyspace, name)


def _create_function(
    statement: tree.CreateFunctionStatement, prepared: Prepared, catalog: Catalog
) -> Iterator[Need]:
    types = tuple(kind for _, kind in statement.arguments)
    yield _new_function(prepared, catalog, types, replaces=statement.or_replace)


def _create_aggregate(
    statement: tree.CreateAggregateStatement, prepared: Prepared, catalog: Catalog
) -> Iterator[Need]:
    yield _new_function(prepared, catalog, statement.arguments, replaces=statement.or_replace)
    space = catalog.schema.by_name.get(prepared.keyspace)
    if space is None:
        return
    called = [(statement.state_function, (statement.state_type, *statement.arguments))]
    if statement.final_function is not None:
        called.append((statement.final_function, (statement.state_type,)))
    for name, types in called:
        meant, known = function_resource(space, space.name, name, types), tuple(_functions(space, name))
        yield from (("EXECUTE", resource) for resource in ((meant,) if meant in known else known))


def _new_function(prepared: Prepared, catalog: Catalog, types: tuple[str, ...], *, replaces: bool) -> Need:
    space = catalog.schema.by_name.get(prepared.keyspace)
    resource = function_resource(space, prepared.keyspace, prepared.table, types)
    if replaces and space is not None and resource in _functions(space, prepared.table):
        return "ALTER", resource
    return "CREATE", roles.functions(prepared.keyspace)


def _drop_function(
    statement: tree.DropFunctionStatement | tree.DropAggregateStatement, prepared: Prepared, catalog: Catalog
) -> Iterator[Need]:
    space = catalog.schema.by_name.get(prepared.keyspace)
    if statement.arguments is not None:
        yield "DROP", function_resource(space, prepared.keyspace, prepared.table, statement.arguments)
    elif space is not None:
        yield from (("DROP", resource) for resource in _functions(space, prepared.table))


_Rule = Callable[[Any, Prepared, Catalog], Iterator[Need]]
_NEEDS: Final[dict[type, _Rule]] = {
    **dict.fromkeys((tree.Use, tree.Describe, *get_args(RoleStatement)), _nothing),
    tree.Select: _select,
    tree.Insert: _modification,
    tree.Update: _modification,
    tree.Delete: _modification,
    tree.Batch: _batch,
    tree.Truncate: _truncate,
    tree.CreateKeyspaceStatement: _create_keyspace,
    tree.AlterKeyspaceStatement: _of_keyspace("ALTER"),
    tree.DropKeyspaceStatement: _of_keyspace("DROP"),
    tree.CreateTableStatement: _of_tables("CREATE"),
    tree.AlterTableStatement: _of_table("ALTER"),
    tree.DropTableStatement: _of_table("DROP"),
    tree.CreateTypeStatement: _of_tables("CREATE"),
    tree.AlterTypeStatement: _of_tables("ALTER"),
    tree.DropTypeStatement: _of_tables("DROP"),
    tree.CreateIndexStatement: _create_index,
    tree.DropIndexStatement: _drop_index,
    tree.CreateViewStatement: _create_view,
    tree.AlterViewStatement: _of_view,
    tree.DropViewStatement: _of_view,
    tree.CreateFunctionStatement: _create_function,
    tree.CreateAggregateStatement: _create_aggregate,
    tree.DropFunctionStatement: _drop_function,
    tree.DropAggregateStatement: _drop_function,
}
