"""What each grammar rule of indexes, views, functions, aggregates, roles and permissions becomes.

Invariant: as in `reductions`; the body of a function and the WHERE clause of a view stay as written. As in
`reductions`; what is said of a role twice is a syntax error.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.cql.parse.reductions import (
    Children,
    Clause,
    Handler,
    Where,
    constant,
    first,
    flag,
    has_flag,
    pick,
)
from lockstep.cql.parse.reductions_ddl import check_each_once
from lockstep.cql.parse.tree import (
    AlterRole,
    AlterViewStatement,
    CreateAggregateStatement,
    CreateFunctionStatement,
    CreateIndexStatement,
    CreateRole,
    CreateViewStatement,
    DropAggregateStatement,
    DropFunctionStatement,
    DropIndexStatement,
    DropRole,
    DropViewStatement,
    GrantPermission,
    GrantRole,
    IndexTarget,
    ListPermissions,
    ListRoles,
    Literal,
    MapLiteral,
    PrimaryKey,
    Properties,
    Resource,
    RevokePermission,
    RevokeRole,
    RoleOptions,
    SetLiteral,
    TableName,
    Term,
)
from lockstep.values.errors import SyntaxError_

_TARGETS = ("keys", "values", "entries", "full")


class IndexName(msgspec.Struct, frozen=True):
    name: str


class IndexClass(msgspec.Struct, frozen=True):
    name: str


class Argument(msgspec.Struct, frozen=True):
    name: str
    type: str


class Signature(msgspec.Struct, frozen=True):
    types: tuple[str, ...]


class Returned(msgspec.Struct, frozen=True):
    type: str


class Language(msgspec.Struct, frozen=True):
    name: str


class StateFunction(msgspec.Struct, frozen=True):
    name: str


class FinalFunction(msgspec.Struct, frozen=True):
    name: str


class InitialState(msgspec.Struct, frozen=True):
    value: Term


def _index_target(children: Children) -> IndexTarget:
    if len(children) == 1:
        return IndexTarget(children[0])
    what, column = children
    if what not in _TARGETS:
        raise SyntaxError_(f"no viable alternative at input '{what}': an index is on {', '.join(_TARGETS)}")
    return IndexTarget(column, what)


def _create_index(children: Children) -> CreateIndexStatement:
    named, of_class = pick(children, IndexName), pick(children, IndexClass)
    return CreateIndexStatement(
        named.name if named is not None else None,
        pick(children, TableName),
        tuple(child for child in children if isinstance(child, IndexTarget)),
        of_class.name if of_class is not None else None,
        pick(children, Properties, Properties()),
        has_flag(children, "custom"),
        has_flag(children, "if_not_exists"),
    )


def _create_view(children: Children) -> CreateViewStatement:
    names = [child for child in children if isinstance(child, TableName)]
    where = pick(children, Where)
    return CreateViewStatement(
        names[0],
        names[1],
        pick(children, Clause).value,
        where.relations if where is not None else (),
        pick(children, PrimaryKey),
        pick(children, Properties, Properties()),
        has_flag(children, "if_not_exists"),
    )


def _create_function(children: Children) -> CreateFunctionStatement:
    arguments = tuple((child.name, child.type) for child in children if isinstance(child, Argument))
    return CreateFunctionStatement(
        pick(children, TableName),
        arguments,
        pick(children, Returned).type,
        pick(children, Language).name,
        str(children[-1]),
        called_on_null=has_flag(children, "called_on_null"),
        or_replace=has_flag(children, "or_replace"),
        if_not_exists=has_flag(children, "if_not_exists"),
    )


def _create_aggregate(children: Children) -> CreateAggregateStatement:
    final, initial = pick(children, FinalFunction), pick(children, InitialState)
    return CreateAggregateStatement(
        pick(children, TableName),
        pick(children, Signature).types,
        pick(children, StateFunction).name,
        pick(children, Returned).type,
        final.name if final is not None else None,
        initial.value if initial is not None else None,
        or_replace=has_flag(children, "or_replace"),
        if_not_exists=has_flag(children, "if_not_exists"),
    )


def _signature_of(children: Children) -> tuple[str, ...] | None:
    found = pick(children, Signature)
    return found.types if found is not None else None


HANDLERS: dict[str, Handler] = {
    "custom": flag("custom"),
    "index_name": lambda children: IndexName(children[0]),
    "index_target": _index_target,
    "index_entries": lambda children: IndexTarget(children[0], "entries"),
    "index_full": lambda children: IndexTarget(children[0], "full"),
    "using_class": lambda children: IndexClass(children[0]),
    "create_index": _create_index,
    "drop_index": lambda children: DropIndexStatement(
        pick(children, TableName), has_flag(children, "if_exists")
    ),
    "create_view": _create_view,
    "alter_view": lambda children: AlterViewStatement(
        pick(children, TableName), pick(children, Properties), has_flag(children, "if_exists")
    ),
    "drop_view": lambda children: DropViewStatement(
        pick(children, TableName), has_flag(children, "if_exists")
    ),
    "or_replace": flag("or_replace"),
    "argument": lambda children: Argument(*children),
    "called_on_null": flag("called_on_null"),
    "null_on_null": flag("null_on_null"),
    "returned": lambda children: Returned(children[0]),
    "language": lambda children: Language(children[0]),
    "signature": lambda children: Signature(tuple(children)),
    "state_function": lambda children: StateFunction(children[0]),
    "final_function": lambda children: FinalFunction(children[0]),
    "initial_state": lambda children: InitialState(children[0]),
    "create_function": _create_function,
    "drop_function": lambda children: DropFunctionStatement(
        pick(children, TableName), _signature_of(children), has_flag(children, "if_exists")
    ),
    "create_aggregate": _create_aggregate,
    "drop_aggregate": lambda children: DropAggregateStatement(
        pick(children, TableName), _signature_of(children), has_flag(children, "if_exists")
    ),
}


_PERMISSIONS = ("all", "create", "alter", "drop", "select", "modify", "authorize", "describe", "execute")
_WORDS = ("UNMASK", "SELECT_MASKED")


class RoleName(msgspec.Struct, frozen=True):
    name: str


class OfRole(msgspec.Struct, frozen=True):
    name: str


class Permission(msgspec.Struct, frozen=True):
    name: str


class RoleOption(msgspec.Struct, frozen=True):
    """`field` of RoleOptions, and its value."""

    field: str
    value: Any


def _role(children: Children) -> str:
    return str(pick(children, RoleName).name)


def _two_roles(children: Children) -> tuple[str, str]:
    granted, holder = (child.name for child in children)
    return granted, holder


def _options(children: Children) -> RoleOptions:
    given: dict[str, Any] = {}
    for child in children:
        if isinstance(child, RoleOption):
            if child.field in given:
                raise SyntaxError_(f"Multiple definitions for property '{child.field}'")
            given[child.field] = child.value
    return RoleOptions(**given)


def _text(value: Any, what: str) -> str:
    if isinstance(value, Literal) and value.kind != "null":
        return value.text
    raise SyntaxError_(f"Invalid value for {what}: only literals are allowed")


def _custom(children: Children) -> RoleOption:
    value = children[0]
    if isinstance(value, MapLiteral):
        pairs = tuple((_text(key, "OPTIONS"), _text(item, "OPTIONS")) for key, item in value.entries)
        check_each_once(name for name, _ in pairs)
        return RoleOption("custom", pairs)
    if isinstance(value, SetLiteral) and not value.items:
        return RoleOption("custom", ())
    raise SyntaxError_("Invalid value for property 'OPTIONS'. It should be a map of options.")


def _datacenters(children: Children) -> RoleOption:
    value = children[0]
    if not isinstance(value, SetLiteral) or not value.items:
        raise SyntaxError_("ACCESS TO DATACENTERS takes a set of names of data centres")
    return RoleOption("datacenters", tuple(_text(item, "DATACENTERS") for item in value.items))


def _option(field: str) -> Handler:
    return lambda children: RoleOption(field, children[0])


def _boolean(field: str) -> Handler:
    return lambda children: RoleOption(field, children[0].text == "true")


def _set(field: str, value: Any) -> Handler:
    return lambda _: RoleOption(field, value)


def _create(*, is_user: bool) -> Handler:
    return lambda children: CreateRole(
        _role(children), _options(children), has_flag(children, "if_not_exists"), is_user
    )


def _alter(*, is_user: bool) -> Handler:
    return lambda children: AlterRole(
        _role(children), _options(children), has_flag(children, "if_exists"), is_user
    )


def _drop(*, is_user: bool) -> Handler:
    return lambda children: DropRole(_role(children), has_flag(children, "if_exists"), is_user)


def _of(children: Children) -> str | None:
    found = pick(children, OfRole)
    return str(found.name) if found is not None else None


def _permissions(children: Children) -> tuple[str, ...]:
    return tuple(child.name for child in children if isinstance(child, Permission))


def _permission_word(children: Children) -> Permission:
    word = str(children[0]).upper()
    if word not in _WORDS:
        raise SyntaxError_(f"no viable alternative at input '{children[0]}': no permission has this name")
    return Permission(word)


def _grant(children: Children) -> GrantPermission:
    return GrantPermission(_permissions(children), pick(children, Resource), _role(children))


def _revoke(children: Children) -> RevokePermission:
    return RevokePermission(_permissions(children), pick(children, Resource), _role(children))


def _list_permissions(children: Children) -> ListPermissions:
    return ListPermissions(
        _permissions(children),
        pick(children, Resource),
        _of(children),
        not has_flag(children, "norecursive"),
    )


def _in_keyspace(kind: str) -> Handler:
    return lambda children: Resource(kind, children[0])


def _named(kind: str) -> Handler:
    return lambda children: Resource(kind, name=str(getattr(children[0], "name", children[0])))


def _table(children: Children) -> Resource:
    table: TableName = children[0]
    return Resource("table", table.keyspace, table.name)


def _function(children: Children) -> Resource:
    function: TableName = pick(children, TableName)
    return Resource("function", function.keyspace, function.name, pick(children, Signature).types)


ROLE_HANDLERS: dict[str, Handler] = {
    "role_name": lambda children: RoleName(children[0]),
    "create_role": _create(is_user=False),
    "alter_role": _alter(is_user=False),
    "drop_role": _drop(is_user=False),
    "create_user": _create(is_user=True),
    "alter_user": _alter(is_user=True),
    "drop_user": _drop(is_user=True),
    "boolean": first,
    "role_password": _option("password"),
    "role_hashed_password": _option("hashed_password"),
    "role_custom": _custom,
    "role_superuser": _boolean("superuser"),
    "role_login": _boolean("login"),
    "role_all_datacenters": _set("datacenters", ()),
    "role_datacenters": _datacenters,
    "user_is_superuser": _set("superuser", True),
    "user_is_no_superuser": _set("superuser", False),
    "of_role": lambda children: OfRole(children[0].name),
    "norecursive": flag("norecursive"),
    "list_roles": lambda children: ListRoles(_of(children), not has_flag(children, "norecursive")),
    "list_users": lambda _: ListRoles(users=True),
    "grant_role": lambda children: GrantRole(*_two_roles(children)),
    "revoke_role": lambda children: RevokeRole(*_two_roles(children)),
    "grant_permission": _grant,
    "revoke_permission": _revoke,
    "list_permissions": _list_permissions,
    "permission_word": _permission_word,
    **{f"permission_{name}": constant(Permission(name.upper())) for name in _PERMISSIONS},
    "on_resource": first,
    "resource_all_keyspaces": lambda _: Resource("keyspaces"),
    "resource_all_tables": _in_keyspace("tables"),
    "resource_all_roles": lambda _: Resource("roles"),
    "resource_all_functions": lambda _: Resource("functions"),
    "resource_functions_in": _in_keyspace("functions_in"),
    "resource_all_mbeans": lambda _: Resource("mbeans"),
    "resource_keyspace": _in_keyspace("keyspace"),
    "resource_table": _table,
    "resource_role": _named("role"),
    "resource_function": _function,
    "resource_mbean": _named("mbean"),
    "resource_mbeans": _named("mbean"),
}
