"""Statements as frozen nodes, exactly as written: no name is resolved and no type is known here.

Invariant: names are already folded (lower case unless quoted); `keyspace` None means the session's. As in
`tree`; names of roles keep their case when they are quoted or given as strings.
"""

from __future__ import annotations

import msgspec

Struct = msgspec.Struct


class RoleOptions(Struct, frozen=True):
    """What was said of a role; None where nothing was. `custom`: the map after OPTIONS. `datacenters` ():
    access to all of them was asked for by ACCESS TO ALL DATACENTERS."""

    password: str | None = None
    hashed_password: str | None = None
    superuser: bool | None = None
    login: bool | None = None
    custom: tuple[tuple[str, str], ...] | None = None
    datacenters: tuple[str, ...] | None = None


class CreateRole(Struct, frozen=True):
    """`is_user`: CREATE USER, which makes a role that can log in."""

    name: str
    options: RoleOptions
    if_not_exists: bool
    is_user: bool = False


class AlterRole(Struct, frozen=True):
    name: str
    options: RoleOptions
    if_exists: bool
    is_user: bool = False


class DropRole(Struct, frozen=True):
    name: str
    if_exists: bool
    is_user: bool = False


class GrantRole(Struct, frozen=True):
    """`role` becomes a role of `to`."""

    role: str
    to: str


class RevokeRole(Struct, frozen=True):
    role: str
    from_: str


class ListRoles(Struct, frozen=True):
    """`of` None: of everybody. `users`: LIST USERS."""

    of: str | None = None
    recursive: bool = True
    users: bool = False


class Resource(Struct, frozen=True):
    """`kind`: keyspaces, keyspace, tables (all of a keyspace), table, roles, role, functions, functions_in,
    function, mbeans, mbean. `arguments`: the type texts of a function."""

    kind: str
    keyspace: str | None = None
    name: str | None = None
    arguments: tuple[str, ...] = ()


class GrantPermission(Struct, frozen=True):
    """`permissions` in upper case; ALL stands for those that fit the resource."""

    permissions: tuple[str, ...]
    resource: Resource
    to: str


class RevokePermission(Struct, frozen=True):
    permissions: tuple[str, ...]
    resource: Resource
    from_: str


class ListPermissions(Struct, frozen=True):
    permissions: tuple[str, ...]
    resource: Resource | None = None
    of: str | None = None
    recursive: bool = True


RoleChange = CreateRole | AlterRole | DropRole | GrantRole | RevokeRole | GrantPermission | RevokePermission
RoleStatement = RoleChange | ListRoles | ListPermissions


# Terms


class Literal(Struct, frozen=True, gc=False):
    """`kind`: string, integer, float, hex, uuid, duration, boolean, null; `text` as written (unquoted)."""

    kind: str
    text: str


class Bind(Struct, frozen=True, gc=False):
    index: int
    name: str | None


class ListLiteral(Struct, frozen=True):
    items: tuple[Term, ...]


class SetLiteral(Struct, frozen=True):
    """Also `{}`, which may be an empty map."""

    items: tuple[Term, ...]


class MapLiteral(Struct, frozen=True):
    entries: tuple[tuple[Term, Term], ...]


class TupleLiteral(Struct, frozen=True):
    items: tuple[Term, ...]


class UserLiteral(Struct, frozen=True):
    """(field name, value) pairs of a user-defined type."""

    entries: tuple[tuple[str, Term], ...]


class ColumnName(Struct, frozen=True):
    name: str


class Element(Struct, frozen=True):
    """`term[key]` in a selection."""

    term: Term
    key: Term


class Span(Struct, frozen=True):
    """`term[low..high]` in a selection: the entries of a map or set between the two, ends included."""

    term: Term
    low: Term | None
    high: Term | None


class Field(Struct, frozen=True):
    """`term.field` in a selection."""

    term: Term
    field: str


class Arithmetic(Struct, frozen=True):
    """`operator`: one of + - * / %. `depth`: how many operators lie inside each other."""

    operator: str
    left: Term
    right: Term
    depth: int = 1


class Negation(Struct, frozen=True):
    term: Term
    depth: int = 1


class Call(Struct, frozen=True):
    """A function call, in a term or a selection; `counts_rows` is the `*` argument."""

    keyspace: str | None
    name: str
    arguments: tuple[Term, ...]
    counts_rows: bool = False


class TypeHint(Struct, frozen=True):
    type: str
    term: Term


class Cast(Struct, frozen=True):
    term: Term
    type: str


Term = (
    Literal
    | Bind
    | ListLiteral
    | SetLiteral
    | MapLiteral
    | TupleLiteral
    | UserLiteral
    | ColumnName
    | Element
    | Span
    | Field
    | Arithmetic
    | Negation
    | Call
    | TypeHint
    | Cast
)


class TableName(Struct, frozen=True):
    keyspace: str | None
    name: str


class Using(Struct, frozen=True):
    ttl: Term | None = None
    timestamp: Term | None = None
    timeout: Term | None = None


class Relation(Struct, frozen=True):
    """`shape`: single, token, tuple, element, field (of IF only). `operator`: = < <= > >= != IN CONTAINS,
    CONTAINS KEY, IS NOT NULL, LIKE. For IN, `value` is the Bind of a whole list, or `values` holds the listed
    terms."""

    shape: str
    names: tuple[str, ...]
    operator: str
    value: Term | None = None
    values: tuple[Term, ...] = ()
    element: Term | None = None
    field: str | None = None


# Data statements


class Selector(Struct, frozen=True):
    expression: Term
    alias: str | None


class Select(Struct, frozen=True):
    """`selectors` () is `*`."""

    table: TableName
    selectors: tuple[Selector, ...]
    where: tuple[Relation, ...] = ()
    order_by: tuple[tuple[str, bool], ...] = ()
    group_by: tuple[Term, ...] = ()
    limit: Term | None = None
    per_partition_limit: Term | None = None
    distinct: bool = False
    json: bool = False
    allow_filtering: bool = False
    using: Using = Using()


class Conditions(Struct, frozen=True):
    """IF NOT EXISTS, IF EXISTS, or IF relations."""

    not_exists: bool = False
    exists: bool = False
    relations: tuple[Relation, ...] = ()


class Insert(Struct, frozen=True):
    """`json`: the text instead of names and values; `json_unset`: what it does not mention is left alone."""

    table: TableName
    names: tuple[str, ...]
    values: tuple[Term, ...]
    using: Using = Using()
    conditions: Conditions | None = None
    json: Term | None = None
    json_unset: bool = False


class Assignment(Struct, frozen=True):
    """`operation`: set, append, prepend, remove, element, field. `other` is the column on the right."""

    name: str
    operation: str
    value: Term
    other: str | None = None
    element: Term | None = None
    field: str | None = None


class Update(Struct, frozen=True):
    table: TableName
    assignments: tuple[Assignment, ...]
    where: tuple[Relation, ...]
    using: Using = Using()
    conditions: Conditions | None = None


class ColumnDelete(Struct, frozen=True):
    name: str
    element: Term | None = None
    field: str | None = None


class Delete(Struct, frozen=True):
    """`columns` () deletes whole rows or partitions."""

    table: TableName
    columns: tuple[ColumnDelete, ...]
    where: tuple[Relation, ...]
    using: Using = Using()
    conditions: Conditions | None = None


Modification = Insert | Update | Delete


class Batch(Struct, frozen=True):
    """`kind`: LOGGED, UNLOGGED, COUNTER."""

    kind: str
    statements: tuple[Modification, ...]
    using: Using = Using()


class Truncate(Struct, frozen=True):
    table: TableName


class Use(Struct, frozen=True):
    keyspace: str


# Schema statements

OptionValue = str | tuple[tuple[str, str], ...]


class Properties(Struct, frozen=True):
    """Options in the order written; a map option's value is its (key, value) texts."""

    options: tuple[tuple[str, OptionValue], ...] = ()
    clustering_order: tuple[tuple[str, bool], ...] = ()
    compact_storage: bool = False


class CreateKeyspaceStatement(Struct, frozen=True):
    name: str
    properties: Properties
    if_not_exists: bool


class AlterKeyspaceStatement(Struct, frozen=True):
    name: str
    properties: Properties
    if_exists: bool


class DropKeyspaceStatement(Struct, frozen=True):
    name: str
    if_exists: bool


class ColumnDefinition(Struct, frozen=True):
    name: str
    type: str
    static: bool = False
    primary: bool = False


class PrimaryKey(Struct, frozen=True):
    partition: tuple[str, ...]
    clustering: tuple[str, ...]


class CreateTableStatement(Struct, frozen=True):
    table: TableName
    columns: tuple[ColumnDefinition, ...]
    primary_keys: tuple[PrimaryKey, ...]
    properties: Properties
    if_not_exists: bool


class DropTableStatement(Struct, frozen=True):
    table: TableName
    if_exists: bool


class AlterTableStatement(Struct, frozen=True):
    """Exactly one of the changes is given."""

    table: TableName
    if_exists: bool
    add: tuple[ColumnDefinition, ...] = ()
    drop: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    properties: Properties | None = None
    alter_type: str | None = None
    if_column_not_exists: bool = False
    if_column_exists: bool = False
    using: Using = Using()


class CreateTypeStatement(Struct, frozen=True):
    """`table` names the type; `fields` are (name, type text)."""

    table: TableName
    fields: tuple[tuple[str, str], ...]
    if_not_exists: bool


class AlterTypeStatement(Struct, frozen=True):
    """`table` names the type. Exactly one of the changes is given; `alter` names a field."""

    table: TableName
    if_exists: bool
    add: tuple[str, str] | None = None
    rename: tuple[tuple[str, str], ...] = ()
    alter: str | None = None
    if_field_not_exists: bool = False
    if_field_exists: bool = False


class DropTypeStatement(Struct, frozen=True):
    """`table` names the type."""

    table: TableName
    if_exists: bool


class IndexTarget(Struct, frozen=True):
    """`what`: keys, values, entries or full; None when only the column is named."""

    column: str
    what: str | None = None


class CreateIndexStatement(Struct, frozen=True):
    """`class_`: after USING, as written; `name` None: one is made from table and column."""

    name: str | None
    table: TableName
    targets: tuple[IndexTarget, ...]
    class_: str | None
    properties: Properties
    custom: bool
    if_not_exists: bool


class DropIndexStatement(Struct, frozen=True):
    """`table` names the index."""

    table: TableName
    if_exists: bool


class CreateViewStatement(Struct, frozen=True):
    """`table` names the view; `selectors` () is `*`."""

    table: TableName
    base: TableName
    selectors: tuple[Selector, ...]
    where: tuple[Relation, ...]
    primary_key: PrimaryKey | None
    properties: Properties
    if_not_exists: bool


class AlterViewStatement(Struct, frozen=True):
    """`table` names the view."""

    table: TableName
    properties: Properties
    if_exists: bool


class DropViewStatement(Struct, frozen=True):
    """`table` names the view."""

    table: TableName
    if_exists: bool


class CreateFunctionStatement(Struct, frozen=True):
    """`table` names the function; `arguments` are (name, type text)."""

    table: TableName
    arguments: tuple[tuple[str, str], ...]
    returns: str
    language: str
    body: str
    called_on_null: bool
    or_replace: bool
    if_not_exists: bool


class DropFunctionStatement(Struct, frozen=True):
    """`table` names the function; `arguments` None: whichever there is one of."""

    table: TableName
    arguments: tuple[str, ...] | None
    if_exists: bool


class CreateAggregateStatement(Struct, frozen=True):
    """`table` names the aggregate."""

    table: TableName
    arguments: tuple[str, ...]
    state_function: str
    state_type: str
    final_function: str | None
    initial: Term | None
    or_replace: bool
    if_not_exists: bool


class DropAggregateStatement(Struct, frozen=True):
    """As DropFunctionStatement."""

    table: TableName
    arguments: tuple[str, ...] | None
    if_exists: bool


class Describe(Struct, frozen=True):
    """`what`: cluster, schema, keyspaces, tables, types, functions, aggregates, keyspace, table, type,
    function, aggregate, index, view or any."""

    what: str
    keyspace: str | None = None
    name: str | None = None
    full: bool = False
    only: bool = False
    internals: bool = False


ObjectStatement = (
    CreateIndexStatement
    | DropIndexStatement
    | CreateViewStatement
    | AlterViewStatement
    | DropViewStatement
    | CreateFunctionStatement
    | DropFunctionStatement
    | CreateAggregateStatement
    | DropAggregateStatement
)
SchemaStatement = (
    CreateKeyspaceStatement
    | AlterKeyspaceStatement
    | DropKeyspaceStatement
    | CreateTableStatement
    | DropTableStatement
    | AlterTableStatement
    | CreateTypeStatement
    | AlterTypeStatement
    | DropTypeStatement
    | ObjectStatement
)
Statement = (
    Select | Insert | Update | Delete | Batch | Truncate | Use | SchemaStatement | Describe | RoleStatement
)
